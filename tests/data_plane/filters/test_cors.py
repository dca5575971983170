"""What pages of other origins may do, and that their preflights start nothing."""

from __future__ import annotations

import pytest

from activator.config.model.keys import Key
from activator.config.model.kinds import Secret
from activator.config.user_keys import users_of
from activator.data_plane.filters.cors import REQUESTED_FIELDS_BYTES_MAX, Cors
from activator.data_plane.filters.keys import Keys
from activator.data_plane.tables.apply import load_of
from tests.data_plane.proxy.proxy_fakes import World, at_pod, request_head, response_head

PAGE = "https://app.test"
KEY = "alices-secret-key"


def world_of(*origins: str) -> World:
    world = World()
    world.share(Cors(origins), Keys(users_of([Key("alice", Secret(KEY))]), {}))
    return world


def test_a_preflight_is_answered_without_a_key_and_starts_nothing() -> None:
    world = world_of(PAGE)
    for host in ("app.test", "nobody.test"):
        head = request_head(
            "OPTIONS",
            host,
            Origin=PAGE,
            Access_Control_Request_Method="POST",
            Access_Control_Request_Headers="authorization,content-type",
        )
        _, client = world.begin(head)
        assert client.status == 204 and client.body == b"" and client.has_ended()
        assert client.fields == {
            "access-control-allow-origin": PAGE,
            "vary": "Origin",
            "access-control-allow-methods": "POST",
            "access-control-allow-headers": "authorization,content-type",
            "access-control-max-age": "7200",
        }
    assert world.heard.events == [] and load_of(world.throttler, 0.0).requests_total == 0
    world.check_idle()


def test_with_any_origin_no_answer_depends_on_it() -> None:
    world = world_of("*")
    _, client = world.begin(request_head("OPTIONS", Origin="null", Access_Control_Request_Method="PUT"))
    assert client.status == 204
    assert client.fields == {
        "access-control-allow-origin": "*",
        "access-control-allow-methods": "PUT",
        "access-control-max-age": "7200",
    }
    world.check_idle()


@pytest.mark.parametrize(
    "fields",
    [
        {"Origin": PAGE},
        {"Access_Control_Request_Method": "POST"},
        {"Origin": "https://evil.test", "Access_Control_Request_Method": "POST"},
        {"Origin": "https://app.test.evil.test", "Access_Control_Request_Method": "POST"},
        {"Origin": "null", "Access_Control_Request_Method": "POST"},
        {"Origin": PAGE, "Access_Control_Request_Method": "PO ST"},
        {"Origin": PAGE, "Access_Control_Request_Method": "POST", "Access_Control_Request_Headers": "a: b"},
        {
            "Origin": PAGE,
            "Access_Control_Request_Method": "POST",
            "Access_Control_Request_Headers": "a" * (REQUESTED_FIELDS_BYTES_MAX + 1),
        },
    ],
)
def test_anything_else_needs_a_key(fields: dict[str, str]) -> None:
    world = world_of(PAGE)
    head = request_head("OPTIONS")
    for name, value in fields.items():
        head.headers = head.headers.with_line(name.replace("_", "-").encode(), value.encode())
    _, client = world.begin(head)
    assert (client.status, client.reason) == (401, "key_required")
    assert client.fields.get("access-control-allow-origin") == (PAGE if fields.get("Origin") == PAGE else None)
    assert world.heard.events == []
    world.check_idle()


def test_the_response_of_a_pod_names_the_origin_once() -> None:
    world = world_of(PAGE)
    world.pod()
    exchange, client = world.begin(request_head(Origin=PAGE, X_Api_Key=KEY))
    head = response_head()
    pairs = [(b"access-control-allow-origin", b"*"), (b"Access-Control-Allow-Credentials", b"true"), (b"Vary", b"A")]
    head.headers = type(head.headers).from_pairs([*pairs, (b"Access-Control-Expose-Headers", b"B")])
    before = head.headers
    at_pod(exchange).response_head(head)
    at_pod(exchange).response_body(b"hello")
    at_pod(exchange).response_end([])
    assert (client.status, client.body) == (200, b"hello")
    assert client.pairs == [
        (b"Vary", b"A"),
        (b"Access-Control-Expose-Headers", b"B"),
        (b"Access-Control-Allow-Origin", PAGE.encode()),
        (b"Vary", b"Origin"),
    ]
    assert head.headers is before, "a shared head is not changed"
    world.check_idle()


def test_a_page_of_another_origin_learns_nothing() -> None:
    world = world_of(PAGE)
    world.pod()
    exchange, client = world.begin(request_head(Origin="https://evil.test", X_Api_Key=KEY))
    world.answer(exchange)
    assert client.status == 200 and "access-control-allow-origin" not in client.fields
    world.check_idle()


def test_a_websocket_is_not_a_matter_of_cors() -> None:
    world = world_of(PAGE)
    world.pod()
    head = request_head(Origin=PAGE, X_Api_Key=KEY, Connection="upgrade", Upgrade="websocket")
    exchange, client = world.begin(head)
    assert exchange.client() is client
    exchange.client_gone()
    world.check_idle()
