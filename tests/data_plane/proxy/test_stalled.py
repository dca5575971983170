"""Responses that clients do not take: which of them is cut, and that what is counted is given back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from activator.data_plane.phases import OVER
from activator.data_plane.proxy.exchange import ProxiedExchange
from activator.data_plane.proxy.stalled import STALLED_MIN_S, StalledResponses
from activator.data_plane.throttle.budget import HeldBudget
from tests.data_plane.proxy.proxy_fakes import World, at_pod, response_head


def responses(count: int) -> list[ProxiedExchange]:
    """Return `count` responses of which the head has been sent."""
    world = World()
    world.pod(limit=count)
    begun = [world.begin()[0] for _ in range(count)]
    for one in begun:
        at_pod(one).response_head(response_head())
    return begun


def cut(some: list[ProxiedExchange]) -> list[bool]:
    return [one.phase == OVER for one in some]


def test_the_one_that_has_waited_longest_is_cut_but_none_that_is_only_slow() -> None:
    stalled = StalledResponses(HeldBudget(1_000))
    first, slow, third, last = some = responses(4)
    assert stalled.begin(first, 200, 100.0)
    assert stalled.begin(slow, 200, 100.0)
    stalled.end(slow)
    assert stalled.begin(slow, 200, 104.0)
    assert stalled.begin(third, 200, 104.5), "600 of 500, but none for long"
    assert cut(some) == [False] * 4 and stalled.bytes == 600
    assert stalled.begin(last, 100, 100.0 + STALLED_MIN_S)
    assert cut(some) == [True, False, False, False]
    assert (stalled.bytes, stalled.shed_total) == (500, 1)


def test_all_of_the_budget_is_a_bound_however_short_the_time() -> None:
    stalled = StalledResponses(HeldBudget(1_000))
    *some, large = responses(101)
    for response in some:
        assert stalled.begin(response, 100, 100.0)
        assert stalled.bytes <= 1_000
    assert cut(some) == [True] * 90 + [False] * 10
    assert not stalled.begin(large, 2_000, 100.0)
    assert stalled.bytes == 0


def test_a_connection_that_holds_nothing_is_not_counted() -> None:
    """It is closing, perhaps: nothing would ever end the count."""
    stalled = StalledResponses(HeldBudget(1_000))
    (response,) = responses(1)
    assert stalled.begin(response, 0, 100.0)
    assert not stalled._since_s and stalled.bytes == 0


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(-1, 300), st.floats(0.0, 4.0)), max_size=60))
def test_what_is_counted_is_what_is_there(steps: list[tuple[int, int, float]]) -> None:
    stalled = StalledResponses(HeldBudget(1_000))
    some = responses(6)
    now_s = 1.0
    for which, count, passed_s in steps:
        now_s += passed_s
        response = some[which]
        if response.phase == OVER:
            continue
        if count < 0:
            stalled.end(response)
        else:
            stalled.begin(response, count, now_s)
        assert stalled.bytes == sum(one.stalled_bytes for one in some) <= 1_000
    for response in some:
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
        at_pod(exchange).response_head(response_head(200, 100_000))
        exchange.client_blocked()
        assert stalled.bytes == 10
        if end == "drained":
            exchange.client_drained()
            assert stalled.bytes == 0
        exchange.client_gone()
        assert stalled.bytes == 0
    world.check_idle()
