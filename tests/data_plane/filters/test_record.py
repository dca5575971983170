"""Records of requests: tokens, times, the ring of each revision, captures and their bounds."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from activator.codec.message import Fields, RequestHead
from activator.codec.token_counts import TokenCounts
from activator.config.model.keys import Key
from activator.config.model.kinds import Secret
from activator.config.specs import BuffersSpec, FiltersSpec, RecordSpec
from activator.config.user_keys import users_of
from activator.data_plane.captures import (
    CAPTURE_BYTES_MIN,
    CAPTURES_BYTES_MAX,
    CAPTURES_CHECK_S,
    Capture,
    CaptureStore,
)
from activator.data_plane.exchange import Exchange
from activator.data_plane.filters.filter import Filter, FilterChain
from activator.data_plane.filters.keys import Keys
from activator.data_plane.filters.record import UsageWatch
from activator.data_plane.shown_requests import describe_capture, describe_requests
from activator.data_plane.usage import Usage
from activator.runtime.clock import TimingWheel
from activator.runtime.reasons import Reason
from tests.data_plane.proxy.proxy_fakes import World, at_pod, request_head, response_head
from tests.data_plane.proxy.test_answers_later import SPEC, Later
from tests.data_plane.proxy.test_fallback_revision import Two
from tests.manual_clock import ManualClock

USAGE = {"prompt_tokens": 12, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4}}
CAPTURING = RecordSpec(capture_bytes=64, capture_keep_s=60.0)


def world_of(record: RecordSpec, **more: Any) -> World:
    return World(filters=FiltersSpec(record=record), **more)


def post(**fields: Any) -> RequestHead:
    return request_head("POST", length=0, **fields)


def answer(world: World, exchange: Any, kind: str, *pieces: bytes, coding: str = "", apart_s: float = 0.0) -> None:
    head = response_head(200, -1)
    fields = [(b"Content-Type", kind.encode())] + ([(b"Content-Encoding", coding.encode())] if coding else [])
    head.headers = Fields.from_pairs(fields)
    at_pod(exchange).response_head(head)
    for piece in pieces:
        world.clock.pass_time(apart_s)
        at_pod(exchange).response_body(piece)
    at_pod(exchange).response_end([])


def records(world: World, count: int = 100) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = describe_requests([world.throttler], count, world.clock.now())["records"]
    return found


def test_the_tokens_of_a_response() -> None:
    world = world_of(RecordSpec())
    world.pod()
    exchange, client = world.begin(post())
    answer(world, exchange, "application/json; charset=utf-8", json.dumps({"usage": USAGE}).encode())
    assert client.fields["activator-queue-time"] == "0.000000"
    (record,) = records(world)
    assert record["tokens"] == {"prompt": 12, "completion": 5, "cached": 4}
    assert (record["first_token_s"], record["status"], record["pod"]) == (None, 200, "10.0.0.1:80")
    tokens = world.throttler.counters.traffic.tokens
    assert tokens is not None
    assert (tokens.prompt, tokens.completion, tokens.cached) == (12, 5, 4)
    assert tokens.first_token.sum == tokens.output_token.sum == 0.0
    world.check_idle()


def test_the_times_of_an_event_stream() -> None:
    world = world_of(RecordSpec())
    world.pod()
    exchange, _ = world.begin(post())
    events = [
        b": keep-",
        b"alive\n",
        b"\n",
        *[b'data: {"choices": []}\n\n'] * 4,
        b"data: " + json.dumps({"usage": USAGE}).encode(),
    ]
    answer(world, exchange, "text/event-stream", *events, apart_s=0.25)
    (record,) = records(world)
    assert record["first_token_s"] == pytest.approx(1.0), "a comment is no event, whole or in pieces"
    assert record["output_token_s"] == pytest.approx(1.0 / 4)
    tokens = world.throttler.counters.traffic.tokens
    assert tokens is not None
    assert [tokens.first_token.sum, tokens.output_token.sum] == pytest.approx([1.0, 0.25])


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data: 1\n\n: comment\n\ndata: 2\r\n\r\ndata: 3\n\n", 3),
        (b": ping\n\n" * 50 + b"data: 1\n\ndata: [DONE]\n\n", 1),
        (b"event: delta\r\nid: 7\r\ndata: 1\r\ndata: 2\r\n\r\nevent: ping\r\n\r\ndata:\r\n\r\n", 1),
        (b'data: {"text": "' + 400 * b"data: " + b'"}\n\ndata:[DONE]\n\ndata: [DONE] and more\n\n', 2),
        (b": ping\n\n: ping\n\n", 1),
        (b"data: without an end\n", 0),
        (b"data: [\ndata: {\n\ndata: {}\n\ndata: {\n\n", 3),
    ],
)
def test_events_with_data_are_counted_in_any_pieces(stream: bytes, events: int) -> None:
    """A stream of nothing else counts as one, because it is a stream."""
    for size in range(1, len(stream) + 1):
        usage = Usage()
        watch = UsageWatch(usage, b"text/event-stream", lambda: 1.0)
        for at in range(0, len(stream), size):
            watch.pod_sent(stream[at : at + size])
        assert usage.events == events, size


def test_a_response_that_is_fetched_again_does_not_count_again() -> None:
    world = world_of(RecordSpec())
    world.pod()
    exchange, client = world.begin()
    answer(world, exchange, "application/json", json.dumps({"usage": USAGE}).encode())
    assert records(world)[0]["tokens"] is None and "activator-queue-time" in client.fields


def test_a_pods_own_queue_time_is_replaced() -> None:
    world = world_of(RecordSpec())
    world.pod()
    exchange, client = world.begin(post())
    head = response_head(200, 0)
    head.headers = Fields.from_pairs([(b"activator-queue-time", b"9.9"), (b"Content-Encoding", b"identity")])
    at_pod(exchange).response_head(head)
    at_pod(exchange).response_end([])
    assert [value for name, value in client.pairs if name.lower() == b"activator-queue-time"] == [b"0.000000"]


@pytest.mark.parametrize(("kind", "coding"), [("text/html", ""), ("application/json", "gzip"), ("", "")])
def test_other_responses_are_not_searched(kind: str, coding: str) -> None:
    world = world_of(RecordSpec())
    world.pod()
    exchange, _ = world.begin(post())
    answer(world, exchange, kind, json.dumps({"usage": USAGE}).encode(), coding=coding)
    (record,) = records(world)
    assert record["tokens"] is None


def test_the_wait_for_a_slot_is_sent_and_recorded() -> None:
    world = world_of(RecordSpec())
    exchange, client = world.begin()
    world.clock.pass_time(1.5)
    world.pod()
    answer(world, exchange, "text/plain", b"x")
    assert client.fields["activator-queue-time"] == "1.500000"
    assert records(world)[0]["wait_s"] == 1.5


def test_each_end_has_a_record() -> None:
    world = world_of(RecordSpec())
    world.pod()
    refused, client = world.begin()
    refused.fail(Reason.QUEUE_FULL, "")
    gone, _ = world.begin()
    gone.client_gone()
    found = records(world)
    assert [(one["status"], one["reason"]) for one in found] == [(499, "client_gone"), (client.status, "queue_full")]
    assert found[0]["number"] > found[1]["number"]
    assert records(world, 1) == found[:1]
    world.check_idle()


def test_the_ring_keeps_the_last_ones_over_a_reload() -> None:
    world = world_of(RecordSpec(requests=3))
    world.pod()
    for _ in range(5):
        exchange, _ = world.begin()
        answer(world, exchange, "text/plain", b"x")
    numbers = [one["number"] for one in records(world)]
    assert numbers == [numbers[-1] + 2, numbers[-1] + 1, numbers[-1]]
    assert describe_requests([world.throttler], 1, world.clock.now())["evicted"] == numbers[-1] - 1

    def reload(record: RecordSpec | None) -> None:
        world.throttler.reconfigure(msgspec.structs.replace(world.spec, filters=FiltersSpec(record=record)))
        world.filter(world.throttler)

    before, _ = world.begin()
    reload(RecordSpec(requests=10))
    assert [one["number"] for one in records(world)] == numbers
    for _ in range(5):
        exchange, _ = world.begin(request_head())
        exchange.client_gone()
    answer(world, before, "text/plain", b"x")
    assert len(records(world)) == 3 + 5 + 1, "a request with the former filter does not change the size"
    before, _ = world.begin()
    reload(None)
    assert records(world) == [] and world.throttler.filters is None
    answer(world, before, "text/plain", b"x")
    assert records(world) == []


def test_the_tokens_of_a_user() -> None:
    world = world_of(RecordSpec())
    keys = Keys(users_of([Key("alice", Secret("alice's-key-0"), None, None)]), {})
    world.share(keys)
    world.pod()
    exchange, _ = world.begin(post(X_Api_Key="alice's-key-0"))
    answer(world, exchange, "application/json", json.dumps({"usage": USAGE}).encode())
    assert vars(keys.totals()["alice"]) == {"requests": 1, "prompt_tokens": 12, "completion_tokens": 5}
    assert records(world)[0]["user"] == "alice"
    exchange, _ = world.begin(post(X_Api_Key="alice's-key-0"))
    after = Keys(users_of([Key("alice", Secret("alice's-key-0"), None, None)]), keys.totals())
    answer(world, exchange, "application/json", json.dumps({"usage": USAGE}).encode())
    assert after.totals()["alice"].prompt_tokens == 24, "a request that a reload overtakes is counted, too"


def test_without_records_there_is_no_filter() -> None:
    assert World().throttler.filters is None


# --- captures ---


def test_what_was_sent_and_received() -> None:
    world = world_of(CAPTURING)
    world.pod()
    head = request_head("POST", length=21, Authorization="Bearer abc", Content_Type="application/json")
    exchange, _ = world.begin(head)
    exchange.request_body(b'{"api_key": "x",')
    exchange.request_body(b' "n":')
    exchange.request_end([])
    answer(world, exchange, "text/plain", b"y" * 50, b"z" * 50)
    (record,) = records(world)
    assert record["has_capture"]
    capture = world.captures.find(record["number"])
    assert capture is not None
    assert describe_capture(capture) == {
        "request": {
            "head": "POST /\r\nHost: app.test\r\nAuthorization: Bearer ***\r\nContent-Type: application/json",
            "body": '{"api_key": "***", "n":',
        },
        "response": {
            "head": "200\r\nContent-Type: text/plain\r\nActivator-Queue-Time: 0.000000",
            "body": "y" * 50 + "z" * 14,
        },
        "is_cut": True,
    }
    world.clock.pass_time(60.0 + CAPTURES_CHECK_S + 0.1)
    assert world.captures.find(record["number"]) is None and world.captures.size == 0
    world.check_idle()


@pytest.mark.parametrize("end", ["refused", "gone", "cut"])
def test_a_capture_of_a_request_that_fails_is_kept_and_frees_its_room(end: str) -> None:
    world = world_of(CAPTURING)
    world.pod()
    exchange, _ = world.begin()
    if end == "refused":
        exchange.fail(Reason.QUEUE_FULL, "")
    elif end == "gone":
        exchange.client_gone()
    else:
        at_pod(exchange).response_head(response_head(200, 100))
        at_pod(exchange).response_body(b"half")
        at_pod(exchange).pod_failed(Reason.POD_CLOSED, "", False)
    assert world.captures.find(records(world)[0]["number"]) is not None
    assert world.captures.size == CAPTURE_BYTES_MIN
    world.clock.pass_time(70.0)
    assert world.captures.size == 0
    world.check_idle()


class Gathers(Filter):
    """Waits for the body before the filters behind it."""

    def on_request(self, request: Exchange) -> None:
        request.gather(100_000)


@pytest.mark.parametrize("held_bytes", [60, 100_000])
def test_a_capture_that_begins_with_the_last_piece_of_a_full_buffer_has_it(held_bytes: int) -> None:
    world = world_of(RecordSpec(capture_bytes=1000), held_bytes=held_bytes, held_body_bytes=held_bytes)
    chain = world.throttler.filters
    assert isinstance(chain, FilterChain)
    world.throttler.filters = FilterChain([Gathers(), *chain.filters])
    world.pod()
    pieces = (b"a" * 40, b"b" * 40, b"c" * 40)
    exchange, _ = world.begin(request_head("POST", length=120))
    for piece in pieces:
        exchange.request_body(piece)
    exchange.request_end([])
    world.clock.turn()
    world.answer(exchange)
    capture = world.captures.find(records(world)[0]["number"])
    assert capture is not None and not capture.is_cut
    assert bytes(capture.request_body) == b"".join(pieces)


def test_a_body_in_a_file_is_left_out() -> None:
    buffers = BuffersSpec(request_bytes=0, file_bytes=1 << 20)
    world = world_of(CAPTURING, held_bytes=1_000_000, held_body_bytes=100_000, file_bytes=10_000_000, buffers=buffers)
    chain = world.throttler.filters
    assert isinstance(chain, FilterChain)
    world.throttler.filters = FilterChain([Gathers(), *chain.filters])
    world.pod()
    exchange, _ = world.begin(request_head("POST", length=300_000))
    for _ in range(30):
        exchange.request_body(b"x" * 10_000)
        world.clock.turn()
    exchange.request_end([])
    world.clock.turn()
    world.answer(exchange)
    capture = world.captures.find(records(world)[0]["number"])
    assert capture is not None and capture.is_cut and capture.request_body == b""


@pytest.mark.parametrize(
    ("second", "shows"),
    [(CAPTURING, True), (RecordSpec(), False), (None, None)],
    ids=["captures", "records", "nothing"],
)
def test_a_request_that_falls_back_is_captured_as_its_last_revision_says(
    second: RecordSpec | None, shows: bool | None
) -> None:
    world = Two({"filters": FiltersSpec(record=second)})
    filters = msgspec.structs.replace(world.spec.filters, record=CAPTURING)
    world.throttler.reconfigure(msgspec.structs.replace(world.spec, filters=filters))
    world.filter(world.throttler)
    exchange, _ = world.begin(post())
    world.throttler.queue.fail("no model file")
    world.clock.turn()
    world.second_pod()
    world.answer(exchange)
    found = describe_requests([world.throttler, world.second], 10, world.clock.now())["records"]
    assert [one["has_capture"] for one in found] == ([] if shows is None else [shows])
    assert [one["first_revision"] for one in found] == ["ns/app"] * len(found)
    assert len(world.captures._kept) == (1 if shows else 0)
    assert world.captures.size == (CAPTURE_BYTES_MIN if shows else 0)


def test_a_request_that_ends_within_the_end_of_another_keeps_both_captures(monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_of(CAPTURING)
    pool = world.pod()
    first, _ = world.begin(post())
    second, _ = world.begin(post())
    second.attempts = 3
    monkeypatch.setattr(pool, "is_closed", lambda: True)  # the slot of the first is granted to the second, which ends
    world.answer(first)
    world.clock.turn()
    found = records(world)
    assert [one["status"] for one in found] == [200, 502]
    assert all(one["has_capture"] and world.captures.find(one["number"]) is not None for one in found)
    assert world.captures.size == 2 * CAPTURE_BYTES_MIN


def test_an_error_with_tokens_counts_none() -> None:
    world = world_of(RecordSpec())
    world.pod()
    exchange, _ = world.begin(post())
    head = response_head(422, -1)
    head.headers = Fields.from_pairs([(b"Content-Type", b"application/json")])
    at_pod(exchange).response_head(head)
    at_pod(exchange).response_body(json.dumps({"usage": USAGE}).encode())
    at_pod(exchange).response_end([])
    assert records(world)[0]["tokens"] is None


def test_a_request_with_a_stored_response_has_one_record() -> None:
    world = Later()
    world.throttler.reconfigure(
        msgspec.structs.replace(world.spec, filters=FiltersSpec(respond_async=SPEC, record=CAPTURING))
    )
    world.filter(world.throttler)
    pool = world.pod()
    client = world.post(b"hello")
    world.answer(world.exchange_at(pool))
    world.clock.turn()
    assert client.status == 202
    (record,) = records(world)
    assert (record["status"], record["has_capture"]) == (200, True)


def test_a_connection_of_the_pod_before_has_no_time() -> None:
    world = world_of(RecordSpec())
    world.pod()
    exchange, _ = world.begin()
    exchange.granted_s = exchange.connected_s + 2.0  # of the slot of another pod, which it has not reached
    exchange.client_gone()
    assert records(world)[0]["connect_s"] is None


def room() -> tuple[CaptureStore, ManualClock]:
    clock = ManualClock()
    return CaptureStore(TimingWheel(clock.now, clock.call_later, _raise), clock.now), clock


def _raise(error: Exception) -> None:
    raise error


def begun(captures: CaptureStore, bytes_max: int, keep_s: float = 60.0) -> Capture:
    capture = captures.begin("ns/app", bytes_max, keep_s)
    assert capture is not None
    return capture


def end(captures: CaptureStore, capture: Capture) -> None:
    capture.stop()
    capture.keep(captures.next_number())


def test_new_captures_displace_the_oldest_complete_ones() -> None:
    captures, _ = room()
    size = 1 << 20
    made = []
    for _ in range(40):
        capture = begun(captures, size)
        capture.pod_sent(b"x" * size)
        end(captures, capture)
        made.append(capture)
        assert captures.size <= CAPTURES_BYTES_MAX
    kept = [one for one in made if captures.find(one.number) is one]
    assert kept == made[-len(kept) :] and len(kept) == CAPTURES_BYTES_MAX // size
    assert all(len(one.response_body) == size for one in kept)


def test_requests_in_progress_keep_their_room() -> None:
    captures, _ = room()
    size = 1 << 20
    made = [begun(captures, size) for _ in range(64)]
    for one in made:
        one.client_sent(b"x" * size)
    assert captures.size <= CAPTURES_BYTES_MAX
    assert sum(one.is_cut for one in made) > 30
    for one in made:
        end(captures, one)
    assert captures.size == sum(one.size for one in made)


def test_a_capture_without_a_record_is_dropped() -> None:
    captures, clock = room()
    made = [begun(captures, 100) for _ in range(100)]
    for one in made:
        one.stop()
        one.release()
        one.release()
    assert captures.size == 0
    end(captures, begun(captures, 100))
    clock.pass_time(100.0)
    assert captures.size == 0


def test_many_small_captures_are_bounded() -> None:
    captures, _ = room()
    for _ in range(10_000):
        end(captures, begun(captures, 100))
    assert len(captures._kept) == CAPTURES_BYTES_MAX // CAPTURE_BYTES_MIN


@given(st.lists(st.tuples(st.floats(1.0, 500.0), st.floats(0.0, 30.0)), min_size=1, max_size=30))
def test_none_is_kept_longer_than_its_time(steps: list[tuple[float, float]]) -> None:
    captures, clock = room()
    made: list[tuple[float, Capture]] = []
    for keep_s, wait_s in steps:
        capture = begun(captures, 10, keep_s)
        end(captures, capture)
        made.append((clock.now() + keep_s, capture))
        clock.pass_time(wait_s)
        for until_s, one in made:
            is_kept = captures.find(one.number) is not None
            assert is_kept or until_s <= clock.now()
            assert not is_kept or until_s + CAPTURES_CHECK_S + 0.1 >= clock.now()
    clock.pass_time(600.0)
    assert captures.size == 0


def test_token_counts_have_names() -> None:
    assert TokenCounts(1, 2, 3)._asdict() == {"prompt": 1, "completion": 2, "cached": 3}
