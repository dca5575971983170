"""Comments of an event stream while a request has no answer, and what becomes of the answer then."""

from __future__ import annotations

import json
from typing import Any

import pytest

from activator.codec.message import Fields
from activator.config.specs import FiltersSpec, ProgressSpec, QueueSpec
from activator.data_plane.filters.progress_events import ERROR_BYTES_MAX
from activator.data_plane.proxy.exchange import ProxiedExchange
from activator.runtime.reasons import Reason
from tests.data_plane.proxy.proxy_fakes import SEND_TIMEOUT_S, Client, World, at_pod, request_head, response_head

AFTER_S, INTERVAL_S = 1.0, 5.0
SPEC = ProgressSpec(AFTER_S, INTERVAL_S)
EVENTS: dict[str, Any] = {"Accept": "text/event-stream", "Accept_Encoding": "gzip"}


def told(**spec: Any) -> World:
    return World(filters=FiltersSpec(progress=SPEC), **spec)


def asked(world: World, **fields: Any) -> tuple[ProxiedExchange, Client]:
    return world.begin(request_head(**{**EVENTS, **fields}))


def answer(world: World, exchange: ProxiedExchange, status: int, kind: bytes, body: bytes, **more: bytes) -> None:
    head = response_head(status, len(body))
    pairs = [(b"Content-Type", kind), *((name.replace("_", "-").encode(), value) for name, value in more.items())]
    head.headers = Fields.from_pairs(pairs)
    at_pod(exchange).response_head(head)
    at_pod(exchange).response_body(body)
    at_pod(exchange).response_end([])


def error_of(client: Client) -> dict[str, Any]:
    *_, event, rest = client.body.decode().split("\n\n")
    assert rest == "" and event.startswith("event: error\ndata: ") and client.ended
    said: dict[str, Any] = json.loads(event.partition("data: ")[2])["error"]
    return said


def test_comments_and_then_the_pods_events() -> None:
    world = told()
    other, _ = world.begin()
    exchange, client = asked(world)
    world.clock.pass_time(AFTER_S - 0.1)
    assert client.silent()
    world.clock.pass_time(0.2)
    assert (client.status, client.fields["content-type"]) == (200, "text/event-stream")
    assert client.fields["cache-control"] == "no-store" and client.flushes == 1
    assert client.body == b": starting position=2 waiting=2 waited_s=1 expected_s=2\n\n"
    other.client_gone()
    world.clock.pass_time(INTERVAL_S)
    assert client.body.split(b"\n\n")[1].startswith(b": starting position=1 waiting=1 waited_s=6 expected_s=")
    pool = world.pod()
    assert pool.pods[0].head is not None and pool.pods[0].head.headers.get(b"accept-encoding") is None
    world.clock.pass_time(INTERVAL_S)
    assert client.body.endswith(b": running waited_s=11\n\n")
    before = len(client.body)
    answer(world, exchange, 200, b"text/event-stream; charset=utf-8", b"data: 1\n\n", Set_Cookie=b"a=b")
    assert client.body[before:] == b"data: 1\n\n" and client.ended
    world.clock.pass_time(3 * INTERVAL_S)
    world.check_idle()


def test_a_quick_answer_is_as_it_is() -> None:
    world = told()
    world.pod()
    exchange, client = asked(world)
    answer(world, exchange, 418, b"text/plain", b"no", X_Y=b"z")
    assert (client.status, client.body, client.fields["x-y"]) == (418, b"no", "z")
    world.check_idle()


@pytest.mark.parametrize(
    "fields", [{"Accept": "application/json"}, {"method": "HEAD"}, {"Upgrade": "websocket", "Connection": "Upgrade"}]
)
def test_others_are_told_nothing(fields: dict[str, Any]) -> None:
    world = told()
    exchange, client = asked(world, **fields)
    world.clock.pass_time(60.0)
    assert client.silent()
    exchange.client_gone()
    plain = World()
    exchange, client = asked(plain)
    plain.clock.pass_time(60.0)
    assert client.silent()
    exchange.client_gone()
    plain.check_idle()
    world.check_idle()


@pytest.mark.parametrize(
    ("status", "kind", "more"),
    [
        (500, b"text/plain", {}),
        (200, b"application/json", {}),
        (429, b"text/event-stream", {}),
        (200, b"text/event-stream", {"Content_Encoding": b"gzip"}),
    ],
)
def test_another_answer_is_an_error_event(status: int, kind: bytes, more: dict[str, bytes]) -> None:
    world = told()
    exchange, client = asked(world)
    world.clock.pass_time(AFTER_S + 0.1)
    world.pod()
    answer(world, exchange, status, kind, b"line\ndata: <\xff>", **more)
    assert error_of(client) == {"message": "line\ndata: <\ufffd>", "type": "upstream_status", "code": status}
    assert exchange.status == status, "the log and the metrics say what the pod did"
    world.check_idle()


def test_a_large_error_is_told_in_part() -> None:
    world = told()
    exchange, client = asked(world)
    world.clock.pass_time(AFTER_S + 0.1)
    world.pod()
    answer(world, exchange, 500, b"text/plain", b"x" * (ERROR_BYTES_MAX * 4))
    assert error_of(client)["message"] == "x" * ERROR_BYTES_MAX


def test_a_refusal_is_an_error_event_with_its_reason() -> None:
    world = told(queue=QueueSpec(timeout_s=3.0))
    _, client = asked(world)
    world.clock.pass_time(3.1)
    world.clock.turn()
    assert error_of(client)["type"] == "queue_timeout" and error_of(client)["code"] == 504
    world = told()
    _, client = asked(world)
    world.clock.pass_time(AFTER_S + 0.1)
    world.throttler.queue.fail("no model file")
    world.clock.turn()
    assert "no model file" in error_of(client)["message"]
    world.check_idle()


def test_a_stream_that_its_pod_cuts_is_cut() -> None:
    world = told()
    exchange, client = asked(world)
    world.clock.pass_time(AFTER_S + 0.1)
    world.pod()
    head = response_head(200, -1)
    head.headers = Fields.from_pairs([(b"Content-Type", b"text/event-stream")])
    at_pod(exchange).response_head(head)
    at_pod(exchange).response_body(b"data: 1\n\n")
    at_pod(exchange).pod_failed(Reason.POD_CLOSED, "", False)
    assert client.aborted
    world.check_idle()


def test_a_client_that_leaves_frees_its_place_at_once() -> None:
    world = told()
    exchange, _ = asked(world)
    world.clock.pass_time(AFTER_S + 0.1)
    exchange.client_gone()
    world.check_idle()


def test_a_client_that_takes_nothing_is_sent_nothing_and_ended_in_time() -> None:
    world = told()
    exchange, client = asked(world)
    world.clock.pass_time(AFTER_S + 0.1)
    exchange.client_blocked()
    before = client.body
    world.clock.pass_time(10 * INTERVAL_S)
    assert client.body == before
    pool = world.pod()
    world.clock.pass_time(SEND_TIMEOUT_S + INTERVAL_S)
    assert client.is_aborted() or client.has_ended()
    assert pool.pods[0].aborted
    world.check_idle()


def test_a_request_that_is_not_here_whole_is_told_nothing() -> None:
    """An answer that begins before its request has ended is the connection's last."""
    world = told()
    client = Client()
    exchange = world.proxy.open(request_head("POST", length=4, **EVENTS), client)
    exchange.begin()
    world.clock.pass_time(20.0)
    assert client.silent()
    exchange.request_body(b"body")
    exchange.request_end([])
    world.clock.pass_time(INTERVAL_S)
    assert client.status == 200
    exchange.client_gone()
    world.check_idle()


def test_a_pod_that_fails_before_its_answer_is_replaced_behind_the_comments() -> None:
    world = told()
    exchange, client = asked(world)
    world.clock.pass_time(AFTER_S + 0.1)
    pool = world.pod(connects=False)
    pool.stop_waiting(at_pod(exchange))
    at_pod(exchange).connect_failed(Reason.CONNECT_FAILED)
    world.pod("p2")
    answer(world, exchange, 200, b"text/event-stream", b"data: 2\n\n")
    assert client.body.endswith(b"data: 2\n\n") and client.ended
    world.check_idle()
