"""The option that requests get and the event that streams lose, as pods and clients see them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from activator.codec.json_edit import ObjectEdit
from activator.codec.message import Fields, RequestHead
from activator.config.model.keys import Key, KeyLimits
from activator.config.model.kinds import Secret
from activator.config.specs import FallbackSpec, FiltersSpec, ProgressSpec, QueueSpec, RecordSpec
from activator.config.user_keys import users_of
from activator.data_plane.exchange import Exchange
from activator.data_plane.filters.keys import Keys
from activator.data_plane.filters.quota_limits import QuotaLimits
from activator.data_plane.proxy.exchange import ProxiedExchange
from activator.data_plane.quotas.quotas import Quotas
from activator.runtime.reasons import Reason
from tests.data_plane.proxy.proxy_fakes import Client, World, at_pod, request_head, response_head
from tests.data_plane.proxy.test_answers_later import SPEC, Later, place_of
from tests.data_plane.proxy.test_fallback_revision import Two

RECORD = RecordSpec(include_usage=True)
FILTERS = FiltersSpec(record=RECORD)
ROOM: dict[str, Any] = {"held_bytes": 100_000, "held_body_bytes": 5_000}
OPTION = b',"stream_options":{"include_usage":true}'
ASKED = b'{"model":"m","stream":true}'
EDITED = ASKED[:-1] + OPTION + b"}"
TOKENS = b'data: {"choices":[{"delta":{"content":"w"}}]}\n\n' * 3
REPORT = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":20}}\n\n'
DONE = b"data: [DONE]\n\n"
STREAM = TOKENS + REPORT + DONE
KEY = "alice's-key-0"


def post(body: bytes, target: str = "/v1/chat/completions", method: str = "POST", **fields: Any) -> RequestHead:
    head = request_head(method, length=len(body), **{"Content_Type": "application/json", **fields})
    head.target = target.encode()
    return head


def send(world: World, body: bytes = ASKED, head: RequestHead | None = None) -> tuple[ProxiedExchange, Client]:
    client = Client()
    exchange = world.proxy.open(head or post(body), client)
    exchange.request_body(body)
    exchange.request_end([])
    exchange.begin()
    world.clock.turn()
    return exchange, client


def stream(exchange: Exchange, *pieces: bytes, status: int = 200, length: int = -1, **fields: str) -> None:
    head = response_head(status, 1)
    head.content_length = length
    pairs = {"Content_Type": "text/event-stream; charset=utf-8", **fields}
    head.headers = Fields.from_pairs([(name.replace("_", "-").encode(), text.encode()) for name, text in pairs.items()])
    at_pod(exchange).response_head(head)
    for piece in pieces:
        at_pod(exchange).response_body(piece)


def end(exchange: Exchange) -> None:
    at_pod(exchange).response_end([])


@pytest.mark.parametrize("cut", [1, 10, len(TOKENS) + 30, len(STREAM)])
def test_the_pod_is_asked_and_the_client_sees_what_it_has_asked_for(cut: int) -> None:
    world = World(filters=FILTERS, **ROOM)
    pool = world.pod()
    exchange, client = send(world, ASKED, post(ASKED, Accept_Encoding="gzip", Content_Digest="x", X_Other="stays"))
    (pod,) = pool.pods
    assert pod.head is not None and pod.head.headers.get(b"x-other") == b"stays"
    assert pod.head.headers.get(b"accept-encoding") is None and pod.head.headers.get(b"content-digest") is None
    assert pod.body == EDITED and pod.head.content_length == len(EDITED)
    stream(exchange, *[STREAM[at : at + cut] for at in range(0, len(STREAM), cut)])
    end(exchange)
    assert client.body == TOKENS + DONE and client.ended
    usage = exchange.usage
    assert usage is not None and usage.tokens is not None and usage.tokens[:2] == (7, 20)
    world.check_idle()


@pytest.mark.parametrize(
    ("body", "head"),
    [
        (b'{"stream":true,"stream_options":{"include_usage":true}}', {}),
        (b'{"stream":false}', {}),
        (b"stream=true", {}),
        (ASKED, {"target": "/v1/messages"}),
        (ASKED, {"target": "/completions/x"}),
        (ASKED, {"method": "PUT"}),
        (ASKED, {"Content_Type": "text/plain"}),
        (ASKED, {"Content_Encoding": "gzip"}),
    ],
)
def test_other_requests_and_their_streams_are_left_alone(body: bytes, head: dict[str, Any]) -> None:
    world = World(filters=FILTERS, **ROOM)
    pool = world.pod()
    exchange, client = send(world, body, post(body, **head))
    assert pool.pods[0].body == body
    stream(exchange, STREAM)
    end(exchange)
    assert client.body == STREAM
    world.check_idle()


def test_without_the_setting_nothing_is_added() -> None:
    world = World(filters=FiltersSpec(record=RecordSpec()), **ROOM)
    pool = world.pod()
    exchange, client = send(world)
    stream(exchange, STREAM)
    end(exchange)
    assert pool.pods[0].body == ASKED and client.body == STREAM


@pytest.mark.parametrize(
    ("status", "fields"),
    [
        (200, {"Content_Encoding": "gzip"}),
        (200, {"Content_Type": "application/json"}),
        (400, {}),
    ],
)
def test_other_responses_are_left_alone(status: int, fields: dict[str, str]) -> None:
    world = World(filters=FILTERS, **ROOM)
    world.pod()
    exchange, client = send(world)
    stream(exchange, STREAM, status=status, length=len(STREAM), **fields)
    end(exchange)
    assert client.body == STREAM and client.status == status
    world.check_idle()


def test_a_stream_of_known_length_has_none_for_the_client() -> None:
    lengths: list[int] = []

    class Measured(Client):
        def send_head(self, head: Any) -> None:
            lengths.append(head.content_length)
            super().send_head(head)

    world = World(filters=FILTERS, **ROOM)
    world.pod()
    for body in (ASKED, b'{"stream":false}'):
        exchange = world.proxy.open(post(body), Measured())
        exchange.begin()
        exchange.request_body(body)
        exchange.request_end([])
        stream(exchange, STREAM, length=len(STREAM))
        end(exchange)
    assert lengths == [-1, len(STREAM)]


def test_tokens_are_not_delayed() -> None:
    world = World(filters=FILTERS, **ROOM)
    world.pod()
    exchange, client = send(world)
    stream(exchange)
    seen = b""
    for piece in (TOKENS, b": ping\n\n", b'data: {"choices":[{"de', b'lta":{}}]}\n', b"\n"):
        at_pod(exchange).response_body(piece)
        seen += piece
        assert client.body == seen
    at_pod(exchange).response_body(b'data: {"choices":')
    assert client.body == seen, "it may be the report"
    at_pod(exchange).response_body(b"[0")
    assert client.body == seen + b'data: {"choices":[0'
    end(exchange)
    world.check_idle()


def test_a_long_request_gets_the_option_at_its_end() -> None:
    world = World(filters=FILTERS, held_bytes=100_000, held_body_bytes=100)
    pool = world.pod()
    body = b'{"messages":["' + b"x" * 200_000 + b'"],"stream":true}'
    exchange = world.proxy.open(post(body), Client())
    exchange.begin()
    for at in range(0, len(body), 997):
        exchange.request_body(body[at : at + 997])
    exchange.request_end([])
    (pod,) = pool.pods
    assert pod.body == body[:-1] + OPTION + b"}" and pod.ended
    assert pod.head is not None and pod.head.content_length == -1
    exchange.client_gone()
    world.check_idle()


def test_each_attempt_gets_the_same() -> None:
    world = World(filters=FILTERS, **ROOM)
    first = world.pod("p1", connects=False)
    exchange, client = send(world)
    second = world.pod("p2")
    (attempt, _), = first.asked  # fmt: skip
    attempt.connect_failed(Reason.CONNECT_FAILED)
    world.clock.turn()
    assert second.pods[0].body == EDITED
    stream(exchange, STREAM)
    end(exchange)
    assert client.body == TOKENS + DONE


def test_set_members_are_edited_first() -> None:
    world = World(filters=FILTERS, **ROOM)
    pool = world.pod(limit=5)
    world.throttler.object_edit = ObjectEdit(["stream_options"], [("stream", "true")])
    exchange, client = send(world, b'{"stream_options":{},"a":1}')
    assert pool.pods[0].body == b'{"stream":true,"a":1' + OPTION + b"}"
    stream(exchange, STREAM)
    end(exchange)
    assert client.body == TOKENS + DONE
    world.throttler.object_edit = ObjectEdit([], [("stream_options", '{"include_usage":true}')])
    exchange, client = send(world)
    stream(exchange, STREAM)
    end(exchange)
    assert client.body == STREAM, "the operator wants all clients to see it"


@pytest.mark.parametrize("is_first", [True, False])
def test_a_fallback_gets_what_the_first_revision_would_have_got(is_first: bool) -> None:
    other = {"filters": FiltersSpec(record=None if is_first else RECORD)}
    world = Two(second=other, queue=QueueSpec(depth=0), **ROOM)
    if is_first:
        fallback = FallbackSpec(revision="ns/second", while_starting=False)
        world.throttler.filters = world.catalogue().chain_of("ns/app", FiltersSpec(fallback=fallback, record=RECORD))
    pool = world.second_pod()
    client = Client()
    exchange = world.proxy.open(post(ASKED), client)
    exchange.request_body(ASKED)
    exchange.request_end([])
    exchange.begin()
    assert exchange.throttler is world.second
    assert pool.pods[0].body == (EDITED if is_first else ASKED)
    stream(exchange, STREAM)
    end(exchange)
    assert client.body == (TOKENS + DONE if is_first else STREAM)
    world.check_idle()


def test_a_stored_response_has_no_report() -> None:
    world = Later(**ROOM)
    world.throttler.filters = world.catalogue().chain_of("ns/app", FiltersSpec(respond_async=SPEC, record=RECORD))
    pool = world.pod()
    _, client = send(world, ASKED, post(ASKED, Prefer="respond-async"))
    assert client.status == 202
    exchange = world.exchange_at(pool)
    assert pool.pods[0].body == EDITED
    stream(exchange, STREAM)
    end(exchange)
    assert world.ask(place_of(client)).body == TOKENS + DONE


def test_events_behind_comments_of_progress() -> None:
    world = World(filters=FiltersSpec(record=RECORD, progress=ProgressSpec(after_s=1.0, interval_s=2.0)), **ROOM)
    exchange, client = send(world, ASKED, post(ASKED, Accept="text/event-stream"))
    world.clock.pass_time(1.5)
    assert client.body.startswith(b": ")
    world.pod()
    before = client.body
    stream(exchange, STREAM)
    end(exchange)
    assert client.body == before + TOKENS + DONE
    world.check_idle()


@pytest.mark.parametrize("at", [len(TOKENS) + 10, len(TOKENS) + len(REPORT) - 1, len(STREAM)])
@pytest.mark.parametrize("who", ["client", "pod"])
def test_a_stream_that_is_cut(who: str, at: int) -> None:
    world = World(filters=FILTERS, **ROOM)
    world.pod()
    exchange, client = send(world)
    stream(exchange, STREAM[:at])
    if who == "client":
        exchange.client_gone()
    else:
        at_pod(exchange).pod_failed(Reason.POD_CLOSED, "", False)
        assert client.aborted
    assert client.body == (TOKENS if at < len(STREAM) else TOKENS + DONE)
    world.check_idle()


def test_a_reload_in_the_middle() -> None:
    world = World(filters=FILTERS, **ROOM)
    world.pod()
    exchange, client = send(world)
    stream(exchange, TOKENS, REPORT[:30])
    world.throttler.filters = None
    at_pod(exchange).response_body(REPORT[30:] + DONE)
    end(exchange)
    assert client.body == TOKENS + DONE
    world.check_idle()


@pytest.mark.parametrize(("ends", "taken"), [(True, 27), (False, len(ASKED) // 4 + 3)])
def test_limits_of_tokens_are_settled_by_the_report(ends: bool, taken: int) -> None:
    world = World(key="default/app", filters=FiltersSpec(record=RecordSpec(False, 0, include_usage=True)), **ROOM)
    users = users_of([Key("alice", Secret(KEY), limits=KeyLimits(tokens="1000/day", response_tokens=300))])
    quotas = Quotas(world.clock.now)
    quotas.set_users(users)
    catalogue = world.catalogue()
    catalogue._limits = QuotaLimits(quotas, world.clock.now)
    catalogue.shared = (Keys(users, {}),)
    world.proxy.filters = catalogue.chain_before_routing()
    world.throttler.filters = catalogue.chain_of("default/app", world.spec.filters)
    world.pod()
    exchange, client = send(world, ASKED, post(ASKED, X_Api_Key=KEY))
    stream(exchange, STREAM if ends else TOKENS)
    if ends:
        end(exchange)
        assert client.body == TOKENS + DONE
    else:
        exchange.client_gone()
    quota = quotas.find("alice")
    assert quota is not None and quota.ledger is not None
    assert quota.ledger.tokens.remaining(world.clock.now()) == 1000 - taken
    assert json.loads(EDITED)["stream_options"] == {"include_usage": True}
    world.check_idle()


@pytest.mark.parametrize("second_record", [None, RECORD])
def test_a_request_that_another_revision_serves_during_a_start(second_record: RecordSpec | None) -> None:
    """The option is in its body already, so its client is protected before it moves."""
    world = Two(second={"filters": FiltersSpec(record=second_record)}, **ROOM)
    fallback = FallbackSpec(revision="ns/second", while_starting=True)
    world.throttler.filters = world.catalogue().chain_of("ns/app", FiltersSpec(fallback=fallback, record=RECORD))
    world.second_pod()
    client = Client()
    exchange = world.proxy.open(post(ASKED), client)
    exchange.request_body(ASKED)
    exchange.request_end([])
    exchange.begin()
    world.clock.turn()
    stream(exchange, STREAM)
    end(exchange)
    assert client.body == TOKENS + DONE
