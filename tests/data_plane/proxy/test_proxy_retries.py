"""When a request goes to a second pod, and what it takes along."""

from __future__ import annotations

from activator.data_plane.throttle.budget import RETRY_BUDGET_MAX, RetryBudget
from activator.runtime.reasons import Reason
from tests.data_plane.proxy.proxy_fakes import Pool, World, at_pod, request_head


def reused(world: World, name: str = "p1", limit: int = 1) -> Pool:
    """A ready pod whose connections have all been idle."""
    return world.pod(name, limit, reused=True)


def test_a_stale_connection_sends_the_request_to_another_pod() -> None:
    world = World()
    first = reused(world, "p1")
    second = reused(world, "p2")
    exchange, client = world.begin()
    assert len(first.pods) == 1
    at_pod(exchange).pod_failed(Reason.POD_CLOSED, "", True)
    assert second.pods[0].head is exchange.head
    assert second.fresh == [True], "the second time without the risk"
    assert world.throttler.counters.retries == {Reason.POD_CLOSED: 1}
    world.answer(exchange)
    assert client.status == 200
    world.check_idle()


def test_where_there_is_no_other_pod_the_same_will_do() -> None:
    world = World()
    pool = reused(world)
    exchange, client = world.begin()
    at_pod(exchange).pod_failed(Reason.POD_CLOSED, "", True)
    assert pool.fresh == [False, True]
    world.answer(exchange)
    assert client.status == 200
    world.check_idle()


def test_a_retry_keeps_its_place_in_line() -> None:
    world = World()
    pool = reused(world)
    first, _ = world.begin()
    second, _ = world.begin()
    at_pod(first).pod_failed(Reason.POD_CLOSED, "", True)
    assert world.throttler_holder() is first
    world.answer(first)
    assert world.throttler_holder() is second
    world.answer(second)
    assert len(pool.pods) == 3
    world.check_idle()


def test_a_small_body_is_sent_again_whole() -> None:
    world = World(held_body_bytes=100)
    first = reused(world, "p1")
    second = reused(world, "p2")
    exchange, client = world.begin(request_head("PUT", length=12))
    exchange.request_body(b"abcd")
    exchange.request_body(b"efgh")
    assert first.pods[0].body == b"abcdefgh"
    assert world.held.held_bytes == 8, "what may be sent again counts"
    at_pod(exchange).pod_failed(Reason.POD_CLOSED, "", True)
    assert second.pods[0].body == b"abcdefgh"
    assert world.held.held_bytes == 0, "a fresh connection is not stale"
    exchange.request_body(b"ijkl")
    exchange.request_end([])
    assert second.pods[0].body == b"abcdefghijkl"
    assert second.pods[0].ended
    world.answer(exchange)
    assert client.status == 200
    world.check_idle()


def test_a_body_that_waited_in_line_is_sent_again_as_well() -> None:
    world = World()
    exchange, client = world.begin(request_head("PUT", length=4))
    exchange.request_body(b"abcd")
    exchange.request_end([])
    pool = reused(world)
    world.pod("p2")
    assert pool.pods[0].body == b"abcd"
    at_pod(exchange).pod_failed(Reason.POD_CLOSED, "", True)
    world.answer(exchange)
    assert client.status == 200
    world.check_idle()


def test_a_body_too_large_to_keep_is_not_sent_again() -> None:
    world = World(held_body_bytes=10)
    pool = reused(world)
    world.pod("p2")
    exchange, client = world.begin(request_head("PUT", length=12))
    exchange.request_body(b"abcdef")
    exchange.request_body(b"ghijkl")
    assert world.held.held_bytes == 0
    assert pool.pods[0].body == b"abcdefghijkl"
    at_pod(exchange).pod_failed(Reason.POD_CLOSED, "", True)
    assert (client.status, client.reason) == (502, "pod_closed")
    world.check_idle()


def test_a_body_that_the_process_cannot_hold_is_not_sent_again() -> None:
    world = World(held_bytes=5, held_body_bytes=100)
    reused(world)
    exchange, client = world.begin(request_head("PUT", length=6))
    exchange.request_body(b"abcdef")
    at_pod(exchange).pod_failed(Reason.POD_CLOSED, "", True)
    assert (client.status, client.reason) == (502, "pod_closed")
    world.check_idle()


def test_what_the_pod_has_begun_to_answer_is_kept_no_longer() -> None:
    world = World()
    reused(world)
    exchange, client = world.begin(request_head("PUT", length=4))
    exchange.request_body(b"abcd")
    exchange.request_end([])
    assert world.held.held_bytes == 4
    world.answer(exchange)
    assert client.status == 200
    world.check_idle()


def test_the_budget_bounds_what_is_sent_twice() -> None:
    world = World()
    world.throttler.retry_budget.left = 2.0
    pool = reused(world)
    refused = 0
    for _ in range(4):
        exchange, client = world.begin()
        at_pod(exchange).pod_failed(Reason.POD_CLOSED, "", True)
        if client.silent():
            world.answer(exchange)
        else:
            assert (client.status, client.reason) == (502, "pod_closed")
            refused += 1
    assert refused == 2
    assert len(pool.pods) == 6
    world.check_idle()


def test_the_budget_grows_with_the_requests() -> None:
    budget = RetryBudget()
    spent = 0
    while budget.spend(0):
        spent += 1
    assert spent == RETRY_BUDGET_MAX
    assert not budget.spend(4), "four fifths of one"
    assert budget.spend(5 + 4)
    assert not budget.spend(9)
    assert budget.spend(1_000_000)
    assert budget.left == RETRY_BUDGET_MAX - 1


def test_only_what_may_be_repeated_goes_out_on_connections_that_were_idle_long() -> None:
    world = World()
    pool = reused(world)
    for method, idle_max_s in (("GET", float("inf")), ("PUT", float("inf")), ("POST", 1.0), ("PATCH", 1.0)):
        exchange, _ = world.begin(request_head(method, length=0))
        assert pool.idle_max_s == idle_max_s
        world.answer(exchange)
    world.check_idle()
