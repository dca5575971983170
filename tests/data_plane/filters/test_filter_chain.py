"""Filters that misbehave, and what the chain promises to those that do not."""

from __future__ import annotations

import traceback
from collections.abc import Callable

import pytest

from activator.codec.message import RequestHead, ResponseHead
from activator.config.specs import FilterSpec, FiltersSpec
from activator.data_plane.exchange import Exchange
from activator.data_plane.filters.filter import Failure, Filter, FilterChain
from activator.data_plane.headers.edits import HeadEdits
from activator.runtime.plugins import PluginError
from activator.runtime.reasons import Reason
from tests.data_plane.proxy.proxy_fakes import World, at_pod, request_head

HOOKS = ("on_routed", "on_request", "on_attempt", "on_pod_status", "on_response", "on_failure", "on_end")


class DefectError(Exception):
    pass


class Raises(Filter):
    """Raises in one hook."""

    def __init__(self, hook: str) -> None:
        self.hook = hook

    def _meet(self, hook: str) -> None:
        if hook == self.hook:
            raise DefectError(hook)

    def on_routed(self, request: Exchange) -> None:
        self._meet("on_routed")

    def on_request(self, request: Exchange) -> None:
        self._meet("on_request")

    def on_attempt(self, request: Exchange, edits: HeadEdits) -> None:
        self._meet("on_attempt")

    def on_pod_status(self, request: Exchange, head: ResponseHead) -> None:
        self._meet("on_pod_status")

    def on_response(self, request: Exchange, head: ResponseHead) -> None:
        self._meet("on_response")

    def on_failure(self, request: Exchange, failure: Failure) -> None:
        self._meet("on_failure")

    def on_end(self, request: Exchange) -> None:
        self._meet("on_end")


class OnRequest(Filter):
    """Does what it is given, in `on_request`."""

    def __init__(self, act: Callable[[Exchange], None]) -> None:
        self.act = act
        self.seen: list[Exchange] = []

    def on_request(self, request: Exchange) -> None:
        self.seen.append(request)
        self.act(request)


def hold_it(request: Exchange) -> None:
    request.hold(30.0)


def world_of(*filters: Filter) -> World:
    world = World()
    world.throttler.filters = FilterChain(filters)
    return world


@pytest.mark.parametrize("hook", HOOKS)
def test_one_that_raises_ends_its_own_request_alone(hook: str) -> None:
    world = world_of(Raises(hook))
    pool = world.pod(limit=1)
    exchange, client = world.begin()
    if hook == "on_failure":
        exchange.fail(Reason.TOTAL_TIMEOUT, "")
    elif not exchange.over:
        world.answer(exchange)
    assert client.status == {"on_failure": 504, "on_end": 200}.get(hook, 500)
    assert [type(error) for error in world.errors] == [DefectError]
    world.errors.clear()
    world.check_idle()

    world.throttler.filters = None
    exchange, client = world.begin()
    world.answer(exchange)
    assert client.status == 200
    assert len(pool.pods) >= 1
    world.check_idle()


def test_one_that_holds_for_ever_is_given_up_after_its_time() -> None:
    holding = OnRequest(hold_it)
    world = world_of(holding)
    world.pod()
    _, client = world.begin()
    world.clock.pass_time(29.0)
    assert client.silent()
    world.clock.pass_time(2.0)
    assert (client.status, client.reason) == (504, "filter_timeout")
    world.check_idle()
    holding.seen[0].proceed(1)  # late: harmless
    holding.seen[0].answer(200)
    world.clock.pass_time(1.0)
    world.check_idle()


def test_one_that_holds_and_proceeds() -> None:
    holding = OnRequest(hold_it)
    after = OnRequest(lambda request: None)
    world = world_of(holding, after)
    world.pod()
    exchange, client = world.begin()
    assert after.seen == []
    for _ in range(3):  # more than once is harmless
        holding.seen[0].proceed(1)
    world.clock.turn()
    assert (len(holding.seen), len(after.seen)) == (1, 1)
    world.answer(exchange)
    assert client.status == 200
    world.check_idle()


def test_a_client_that_leaves_while_it_is_held() -> None:
    holding = OnRequest(hold_it)
    world = world_of(holding)
    exchange, _ = world.begin()
    exchange.client_gone()
    world.check_idle()
    holding.seen[0].proceed(1)
    world.clock.pass_time(60.0)
    world.check_idle()


def test_an_answer_ends_the_request_and_a_second_one_is_ignored() -> None:
    def twice(request: Exchange) -> None:
        request.answer(403, b"no\n")
        request.answer(200, b"yes\n")

    after = OnRequest(lambda request: None)
    world = world_of(OnRequest(twice), after)
    world.pod()
    _, client = world.begin()
    assert (client.status, bytes(client.body)) == (403, b"no\n")
    assert after.seen == []
    world.check_idle()


def test_after_an_answer_a_hold_and_a_wait_for_the_body_have_no_effect() -> None:
    found: list[object] = []

    def act(request: Exchange) -> None:
        request.answer(403)
        found.extend([request.hold(1.0), request.gather(100)])

    world = world_of(OnRequest(act))
    exchange, client = world.begin()
    assert (client.status, found, exchange.filters) == (403, [0, True], None)
    world.check_idle()


def test_an_answer_that_comes_later() -> None:
    holding = OnRequest(hold_it)
    world = world_of(holding)
    _, client = world.begin()
    assert client.silent()
    holding.seen[0].answer(202, b"later\n")
    assert (client.status, bytes(client.body)) == (202, b"later\n")
    world.check_idle()


@pytest.mark.parametrize("value", [b"a\r\nX-Evil: 1", b"a\nb", b"a\0"])
def test_no_filter_makes_two_fields_of_one(value: bytes) -> None:
    world = world_of(OnRequest(lambda request: request.answer(200, b"", [(b"X-A", value)])))
    _, client = world.begin()
    assert client.status == 500
    assert [type(error) for error in world.errors] == [ValueError]
    world.errors.clear()
    with pytest.raises(ValueError, match="CR, LF or NUL"):
        HeadEdits().set(b"X-A", value)
    with pytest.raises(ValueError, match="CR, LF or NUL"):
        HeadEdits().append(b"X-A", value)
    world.check_idle()


@pytest.mark.parametrize(
    "act",
    [
        lambda request: request.answer(99),
        lambda request: request.answer(600),
        lambda request: request.answer(204, b"body"),
        lambda request: request.answer(200, "text"),
        lambda request: request.hold(float("inf")),
        lambda request: request.hold(float("nan")),
        lambda request: request.hold(-1.0),
    ],
)
def test_what_no_answer_and_no_hold_can_be_is_an_error_of_the_filter(act: Callable[[Exchange], None]) -> None:
    world = world_of(OnRequest(act))
    _, client = world.begin()
    assert client.status == 500
    assert [type(error) in {ValueError, TypeError} for error in world.errors] == [True]
    world.errors.clear()
    world.check_idle()


def test_an_answer_without_a_body() -> None:
    world = world_of(OnRequest(lambda request: request.answer(204)))
    _, client = world.begin()
    assert (client.status, client.body, client.has_ended()) == (204, b"", True)
    world.check_idle()


def test_a_hundred_filters_meet_a_request_in_their_order() -> None:
    order: list[int] = []

    def noting(number: int) -> OnRequest:
        return OnRequest(lambda _: order.append(number))

    world = world_of(*[noting(number) for number in range(100)])
    world.pod()
    exchange, client = world.begin()
    assert order == list(range(100))
    world.answer(exchange)
    assert client.status == 200
    world.check_idle()


def test_one_that_proceeds_late_does_not_free_what_another_one_holds() -> None:
    first, second = OnRequest(hold_it), OnRequest(hold_it)
    after = OnRequest(lambda request: None)
    world = world_of(first, second, after)
    world.pod()
    exchange, client = world.begin()
    (request,) = first.seen
    request.proceed(1)
    world.clock.turn()
    assert (len(second.seen), after.seen) == (1, [])
    request.proceed(1)
    world.clock.turn()
    assert after.seen == []
    request.proceed(2)
    world.clock.turn()
    assert len(after.seen) == 1
    world.answer(exchange)
    assert client.status == 200
    world.check_idle()


def test_the_time_of_a_hold_ends_with_it() -> None:
    first, second = OnRequest(hold_it), OnRequest(hold_it)
    world = world_of(first, second)
    _, client = world.begin()
    world.clock.pass_time(29.0)
    first.seen[0].proceed(1)
    world.clock.turn()
    world.clock.pass_time(29.0)
    assert client.silent()
    world.clock.pass_time(2.0)
    assert (client.status, client.reason) == (504, "filter_timeout")
    world.check_idle()


class Counts(Filter):
    """Adds a field to each attempt."""

    def on_attempt(self, request: Exchange, edits: HeadEdits) -> None:
        edits.append(b"X-Attempt", b"%d" % request.attempts)


def test_an_attempt_does_not_see_the_edits_of_the_one_before() -> None:
    world = world_of(Counts())
    world.pod("p1", reused=True)
    second = world.pod("p2")
    exchange, client = world.begin(request_head())
    at_pod(exchange).pod_failed(Reason.POD_CLOSED, "", True)
    (pod,) = second.pods
    assert pod.head is not None
    assert pod.head.headers.get(b"x-attempt") == b"1"
    assert pod.head.headers.block.count(b"X-Attempt") == 1
    world.answer(exchange)
    assert client.status == 200
    world.check_idle()


def test_one_that_cannot_be_made_lets_nothing_through() -> None:
    """It may be what keeps strangers out."""
    world = World(filters=FiltersSpec(of_packages=(FilterSpec("no.such.module:Filter"),)))
    pool = world.pod()
    _, client = world.begin()
    assert client.status == 500
    assert pool.pods == []
    assert [type(error) for error in world.errors] == [PluginError, PluginError]  # once when it is made
    world.errors.clear()
    world.check_idle()


class Shared(Filter):
    """Of all requests."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def on_arrival(self, request: Exchange) -> None:
        self.seen.append("on_arrival")
        if request.head.target == b"/elsewhere":
            request.route_to("ns/elsewhere")
        elif request.head.target == b"/own":
            request.answer(204)

    def on_failure(self, request: Exchange, failure: Failure) -> None:
        self.seen.append("on_failure")
        failure.text = b"not here\n"
        failure.fields = [(b"X-Shared", b"1")]

    def on_end(self, request: Exchange) -> None:
        self.seen.append("on_end")


def head_for(target: bytes) -> RequestHead:
    head = request_head()
    head.target = target
    return head


def test_a_filter_of_all_requests_meets_those_without_a_revision() -> None:
    world, shared = World(), Shared()
    world.share(shared)
    _, client = world.begin(head_for(b"/elsewhere"))
    assert (client.status, client.reason, bytes(client.body)) == (404, "no_route", b"not here\n")
    assert client.fields["x-shared"] == "1"
    assert shared.seen == ["on_arrival", "on_failure", "on_end"]
    _, client = world.begin(head_for(b"/own"))
    assert client.status == 204
    world.check_idle()


def test_the_filters_of_a_revision_come_before_it_when_a_request_fails() -> None:
    order: list[str] = []

    class Inner(Filter):
        def on_failure(self, request: Exchange, failure: Failure) -> None:
            order.append("inner")

    class Outer(Filter):
        def on_request(self, request: Exchange) -> None:
            order.append("request")
            request.hold(1.0)

        def on_failure(self, request: Exchange, failure: Failure) -> None:
            order.append("outer")

    world = World()
    world.throttler.filters = FilterChain((Inner(),), (Outer(),))
    world.begin()
    world.clock.pass_time(2.0)
    assert order == ["request", "inner", "outer"]
    world.check_idle()


def test_the_error_of_one_that_cannot_be_made_does_not_show_its_options() -> None:
    world = World(
        filters=FiltersSpec(of_packages=(FilterSpec("tests.e2e.faulty_filters:WantsNumber", (("number", "s3cret"),)),))
    )
    (error,) = world.errors
    assert "ValueError" in str(error)
    assert "s3cret" not in "".join(traceback.format_exception(error))
    world.errors.clear()
    world.check_idle()
