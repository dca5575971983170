"""Responses that clients do not take: which of them is cut, and that what is counted is given back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from activator.data_plane.proxy.record import RequestRecord
from activator.data_plane.proxy.stalled import STALLED_MIN_S, StalledResponses
from activator.data_plane.throttle.budget import HeldBudget
from tests.data_plane.proxy.proxy_fakes import World, request_head, response_head


class Response(RequestRecord):
    def __init__(self) -> None:
        super().__init__(request_head(), 1.0)
        self.is_cut = False

    def shed(self) -> None:
        assert not self.is_cut
        self.is_cut = True


def cut(*responses: Response) -> list[bool]:
    return [one.is_cut for one in responses]


def test_the_one_that_has_waited_longest_is_cut_but_none_that_is_only_slow() -> None:
    stalled = StalledResponses(HeldBudget(1_000))
    first, slow, third = Response(), Response(), Response()
    assert stalled.begin(first, 200, 100.0)
    assert stalled.begin(slow, 200, 100.0)
    stalled.end(slow)
    assert stalled.begin(slow, 200, 104.0)
    assert stalled.begin(third, 200, 104.5), "600 of 500, but none for long"
    assert cut(first, slow, third) == [False] * 3 and stalled.bytes == 600
    assert stalled.begin(Response(), 100, 100.0 + STALLED_MIN_S)
    assert cut(first, slow, third) == [True, False, False]
    assert (stalled.bytes, stalled.shed_total) == (500, 1)


def test_all_of_the_budget_is_a_bound_however_short_the_time() -> None:
    stalled = StalledResponses(HeldBudget(1_000))
    responses = [Response() for _ in range(100)]
    for response in responses:
        assert stalled.begin(response, 100, 100.0)
        assert stalled.bytes <= 1_000
    assert [one.is_cut for one in responses] == [True] * 90 + [False] * 10
    assert not stalled.begin(Response(), 2_000, 100.0)
    assert stalled.bytes == 0


def test_a_connection_that_holds_nothing_is_not_counted() -> None:
    """It is closing, perhaps: nothing would ever end the count."""
    stalled = StalledResponses(HeldBudget(1_000))
    response = Response()
    assert stalled.begin(response, 0, 100.0)
    assert not stalled._since_s and stalled.bytes == 0


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(-1, 300), st.floats(0.0, 4.0)), max_size=60))
def test_what_is_counted_is_what_is_there(steps: list[tuple[int, int, float]]) -> None:
    stalled = StalledResponses(HeldBudget(1_000))
    responses = [Response() for _ in range(6)]
    now_s = 1.0
    for which, count, passed_s in steps:
        now_s += passed_s
        response = responses[which]
        if response.is_cut:
            continue
        if count < 0:
            stalled.end(response)
        else:
            stalled.begin(response, count, now_s)
        assert stalled.bytes == sum(one.stalled_bytes for one in responses) <= 1_000
    for response in responses:
        stalled.end(response)
    assert stalled.bytes == 0


def test_a_client_that_takes_nothing_is_counted_until_it_does_or_leaves() -> None:
    world = World()
    world.pod()
    stalled = world.proxy.bodies.stalled
    for end in ("drained", "gone"):
        exchange, client = world.begin()
        client.unsent = 10
        pod = exchange.pod
        assert pod is not None
        exchange.response_head(response_head(200, 100_000))
        exchange.client_blocked()
        assert stalled.bytes == 10
        if end == "drained":
            exchange.client_drained()
            assert stalled.bytes == 0
        exchange.client_gone()
        assert stalled.bytes == 0
    world.check_idle()
