"""Filters that call what they may not, at the wrong time, and objects of theirs that raise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from activator.codec.message import ResponseHead
from activator.config.specs import FaultSpec, FiltersSpec
from activator.data_plane.body_watcher import BodyWatcher
from activator.data_plane.exchange import Exchange
from activator.data_plane.filters.filter import Failure, Filter, FilterChain
from activator.data_plane.headers.edits import HeadEdits
from activator.data_plane.streams import ClientWrapper
from activator.runtime.reasons import Reason
from tests.data_plane.proxy.proxy_fakes import World, request_head
from tests.data_plane.proxy.test_answers_later import KEEP_S, Later

Act = Callable[[Exchange], Any]


class Acts(Filter):
    """Does what it is given, in one hook."""

    def __init__(self, **acts: Act) -> None:
        self.acts = acts
        self.seen: list[Exchange] = []

    def _act(self, hook: str, request: Exchange) -> None:
        if hook in self.acts:
            self.seen.append(request)
            self.acts[hook](request)

    def on_routed(self, request: Exchange) -> None:
        self._act("on_routed", request)

    def on_request(self, request: Exchange) -> None:
        self._act("on_request", request)

    def on_attempt(self, request: Exchange, edits: HeadEdits) -> None:
        self._act("on_attempt", request)

    def on_pod_status(self, request: Exchange, head: ResponseHead) -> None:
        self._act("on_pod_status", request)

    def on_response(self, request: Exchange, head: ResponseHead) -> None:
        self._act("on_response", request)


def world_of(*filters: Filter, **more: Any) -> World:
    world = World(**more)
    world.throttler.filters = FilterChain(filters)
    return world


def hold_and_go(request: Exchange) -> None:
    request.proceed(request.hold(5.0))


def hold(request: Exchange) -> None:
    request.hold(30.0)


def test_what_one_lets_go_at_once_does_not_free_what_the_next_one_holds() -> None:
    second = Acts(on_request=hold)
    world = world_of(Acts(on_request=hold_and_go), second)
    pool = world.pod()
    exchange, client = world.begin()
    for _ in range(3):
        world.clock.turn()
    assert len(second.seen) == 1
    assert pool.pods == [] and client.silent()
    second.seen[0].proceed(2)
    world.clock.turn()
    world.answer(exchange)
    assert client.status == 200
    world.check_idle()


def test_what_one_lets_go_at_once_does_not_end_the_gathering_of_the_next() -> None:
    second = Acts(on_request=lambda request: request.gather(100))
    world = world_of(Acts(on_request=hold_and_go), second)
    pool = world.pod()
    exchange, client = world.begin(request_head("POST", length=10))
    exchange.request_body(b"12345")
    for _ in range(3):
        world.clock.turn()
    assert pool.pods == []
    exchange.request_body(b"67890")
    exchange.request_end([])
    world.clock.turn()
    assert pool.pods[0].body == b"1234567890"
    world.answer(exchange)
    assert client.status == 200
    world.check_idle()


def test_a_larger_body_is_waited_for_after_a_smaller_one() -> None:
    seen: list[bytes | None] = []

    def take(bytes_max: int) -> Act:
        def act(request: Exchange) -> None:
            if request.gather(bytes_max):
                seen.append(request.body())

        return act

    world = world_of(Acts(on_request=take(4)), Acts(on_request=take(50)))
    world.pod()
    exchange, client = world.begin(request_head("POST", length=10))
    exchange.request_body(b"12345")
    world.clock.turn()
    assert seen == [b"12345"], "as much as it has asked for"
    exchange.request_body(b"67890")
    exchange.request_end([])
    world.clock.turn()
    assert seen == [b"12345", b"1234567890"]
    world.answer(exchange)
    assert client.status == 200
    world.check_idle()


@pytest.mark.parametrize("hook", ["on_routed", "on_attempt", "on_response"])
@pytest.mark.parametrize(
    "act",
    [
        hold,
        lambda request: request.gather(10),
        lambda request: request.answer(403),
        lambda request: request.fall_back("ns/other", Reason.STARTING),
    ],
)
def test_hooks_that_edit_cannot_decide(hook: str, act: Act) -> None:
    world = world_of(Acts(**{hook: act}))
    world.pod()
    exchange, client = world.begin()
    if not exchange.over:
        world.answer(exchange)
    assert client.status == 500
    assert [type(error) for error in world.errors] == [RuntimeError]
    world.errors.clear()
    world.check_idle()


@pytest.mark.parametrize("act", [hold, lambda request: request.gather(10)])
def test_a_response_that_has_arrived_cannot_be_held(act: Act) -> None:
    world = world_of(Acts(on_pod_status=act))
    world.pod()
    exchange, client = world.begin()
    world.answer(exchange)
    assert client.status == 500 and [type(error) for error in world.errors] == [RuntimeError]
    world.errors.clear()
    world.check_idle()


def test_a_response_that_is_replaced_twice() -> None:
    def twice(request: Exchange) -> None:
        request.answer(404, b"first")
        request.answer(200, b"second")
        request.fall_back("ns/other", Reason.UPSTREAM_STATUS)

    world = world_of(Acts(on_pod_status=twice), Acts(on_pod_status=hold))
    world.pod()
    exchange, client = world.begin()
    world.answer(exchange)
    assert (client.status, client.body) == (404, b"first")
    world.check_idle()


def test_a_filter_cannot_gather_while_it_holds() -> None:
    def both(request: Exchange) -> None:
        request.hold(30.0)
        request.gather(10)

    world = world_of(Acts(on_request=both))
    world.pod()
    exchange, client = world.begin(request_head("POST", length=10))
    assert client.status == 500
    assert exchange.over
    assert [type(error) for error in world.errors] == [RuntimeError]
    world.errors.clear()
    world.check_idle()


class BrokenWrapper(ClientWrapper):
    """Raises in one call."""

    def __init__(self, request: Exchange, call: str) -> None:
        super().__init__(request.client())
        self.call = call

    def _meet(self, call: str) -> None:
        if call == self.call:
            raise RuntimeError(call)

    def send_head(self, head: ResponseHead) -> None:
        self._meet("send_head")
        super().send_head(head)

    def send_body(self, data: bytes) -> None:
        self._meet("send_body")
        super().send_body(data)

    def send_end(self, trailers: Any) -> None:
        self._meet("send_end")
        super().send_end(trailers)

    def stop(self) -> None:
        self._meet("stop")
        super().stop()


@pytest.mark.parametrize("call", ["send_head", "send_body", "send_end", "stop"])
@pytest.mark.parametrize("answers", [True, False])
def test_a_wrapper_that_raises_ends_its_own_request(call: str, answers: bool) -> None:
    world = world_of(Acts(on_request=lambda request: request.wrap_client(BrokenWrapper(request, call))))
    world.pod()
    exchange, client = world.begin()
    if answers:
        world.answer(exchange)
    else:
        exchange.fail(Reason.TOTAL_TIMEOUT, "")
    world.clock.turn()
    assert client.is_aborted() or client.has_ended(), "nobody waits for ever"
    assert client.is_aborted() == (call != "stop")
    assert [type(error) for error in world.errors] == [RuntimeError]
    world.errors.clear()
    world.check_idle()


class BrokenWatcher(BodyWatcher):
    """Raises when bytes pass, or when it is stopped."""

    def __init__(self, call: str) -> None:
        super().__init__()
        self.call = call

    def pod_sent(self, data: bytes) -> None:
        if self.call == "pod_sent":
            raise RuntimeError("pod_sent")

    def stop(self) -> None:
        if self.call == "stop":
            raise RuntimeError("stop")


@pytest.mark.parametrize("call", ["pod_sent", "stop"])
def test_a_watcher_that_raises_ends_its_own_request(call: str) -> None:
    world = world_of(Acts(on_request=lambda request: request.watch(BrokenWatcher(call))))
    world.pod()
    exchange, client = world.begin()
    world.answer(exchange)
    world.clock.turn()
    assert client.is_aborted() or client.has_ended()
    assert [type(error) for error in world.errors] == [RuntimeError]
    world.errors.clear()
    world.check_idle()


class BrokenFailure(Filter):
    """Edits the refusal in a way that cannot be sent."""

    def __init__(self, text: Any, fields: Any, status: int) -> None:
        self.text = text
        self.fields = fields
        self.status = status

    def on_failure(self, request: Exchange, failure: Failure) -> None:
        failure.text, failure.fields, failure.status = self.text, self.fields, self.status


@pytest.mark.parametrize(
    ("text", "fields", "status"),
    [
        ("text", [], 504),
        (b"", [("X-A", "b")], 504),
        (b"", [(b"X-A", b"b\r\nSet-Cookie: evil")], 504),
        (b"", [b"X-A"], 504),
        (b"text", [], 200),
        (b"text", [], 5040),
    ],
)
def test_a_refusal_that_cannot_be_sent_is_sent_unedited(text: Any, fields: Any, status: int) -> None:
    world = world_of(Acts(on_request=hold), BrokenFailure(text, fields, status))
    _, client = world.begin()
    world.clock.pass_time(31.0)
    assert (client.status, client.reason) == (504, "filter_timeout")
    assert "set-cookie" not in client.fields
    assert len(world.errors) == 1
    world.errors.clear()
    world.check_idle()


def test_a_client_cannot_take_off_a_wrapper_by_asking_for_a_later_answer() -> None:
    class Wraps(Filter):
        def on_request(self, request: Exchange) -> None:
            request.wrap_client(ClientWrapper(request.client()))

    world = Later()
    stored = world.throttler.filters
    assert isinstance(stored, FilterChain)
    world.throttler.filters = FilterChain([Wraps(), *stored.filters])
    world.pod()
    exchange, client = world.begin(request_head(Prefer="respond-async"))
    world.answer(exchange)
    assert client.status == 200
    world.throttler.filters = stored
    exchange, client = world.begin(request_head(Prefer="respond-async"))
    assert client.status == 202
    world.answer(world.throttler_holder())
    world.clock.pass_time(2 * KEEP_S)
    world.check_idle()


@pytest.mark.parametrize("status", [204, 205, 304])
@pytest.mark.parametrize("delay_s", [0.0, 1.0])
def test_a_fault_with_a_status_that_has_no_body(status: int, delay_s: float) -> None:
    world = World(filters=FiltersSpec(fault=FaultSpec(delay_s, 1.0, status, 1.0)))
    _, client = world.begin()
    world.clock.pass_time(1.1)
    assert (client.status, client.body, client.has_ended()) == (status, b"", True)
    world.check_idle()


def test_a_fault_of_a_grpc_call_is_a_grpc_status() -> None:
    world = World(filters=FiltersSpec(fault=FaultSpec(0.0, 1.0, 503, 1.0)))
    head = request_head("POST", length=5, Content_Type="application/grpc", TE="trailers")
    head.takes_trailers = True  # as from HTTP/2
    exchange, client = world.begin(head)
    assert (client.status, client.fields["grpc-status"]) == (200, "14")
    assert exchange.grpc_status == 14
    world.check_idle()


def test_the_deadline_of_a_grpc_call_bounds_a_hold() -> None:
    world = world_of(Acts(on_request=hold))
    head = request_head("POST", length=5, Content_Type="application/grpc", TE="trailers", grpc_timeout="1S")
    head.takes_trailers = True
    _, client = world.begin(head)
    world.clock.pass_time(1.1)
    assert client.fields["grpc-status"] == "4"
    world.check_idle()


@pytest.mark.parametrize("target", [b"/ HTTP/1.1\r\nX: y", b"/a b", b"", b"/\x00", b"/\x7f"])
def test_a_target_that_splits_the_request_is_refused(target: bytes) -> None:
    with pytest.raises(ValueError, match="is not a valid request target"):
        HeadEdits().set_target(target)
    with pytest.raises(ValueError, match="CR, LF or NUL"):
        HeadEdits().set_host(b"a\r\nb")
    with pytest.raises(ValueError, match="CR, LF or NUL"):
        HeadEdits().set_upgrade(b"a\r\nb")
