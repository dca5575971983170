"""What requests leave behind in the counters of their revision, by the clock of the test."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activator.codec.token_counts import TokenCounts
from activator.config.specs import FiltersSpec, QueueSpec
from activator.data_plane.exchange import Exchange
from activator.data_plane.throttle.counters import OTHER_USERS, USERS_MAX, TokenTraffic
from activator.data_plane.throttle.starting import PHASES, Start
from activator.runtime.histogram import Histogram
from activator.runtime.reasons import Reason
from lb.tracker import PENDING, READY
from tests.data_plane.proxy.proxy_fakes import Client, Pool, World, at_pod, request_head, response_head


def seen(histogram: Histogram) -> tuple[int, float]:
    """How many, and their sum."""
    return histogram.buckets()[-1][1], round(histogram.sum, 6)


def test_a_warm_request() -> None:
    world = World()
    world.pod()
    assert not world.throttler.counters.has_traffic()
    exchange, _ = world.begin()
    world.clock.pass_time(0.25)
    at_pod(exchange).response_head(response_head())
    at_pod(exchange).response_body(b"hello")
    world.clock.pass_time(0.5)
    at_pod(exchange).response_end([])
    traffic = world.throttler.counters.traffic
    assert seen(traffic.first_byte) == (1, 0.25)
    assert seen(traffic.duration) == (1, 0.75)
    assert seen(traffic.wait) == (0, 0.0)
    assert (traffic.request_bytes, traffic.response_bytes) == (0, 5)
    assert traffic.cold == {}
    assert world.throttler.counters.cold_starts_total == 0


def test_bytes_of_the_body() -> None:
    world = World()
    world.pod()
    exchange, _ = world.begin(request_head("POST", length=6))
    exchange.request_body(b"abc")
    exchange.request_body(b"def")
    exchange.request_end([])
    world.answer(exchange)
    assert (world.throttler.counters.traffic.request_bytes, world.throttler.counters.traffic.response_bytes) == (6, 5)


def test_a_wait_for_a_slot_is_no_cold_start() -> None:
    world = World()
    world.pod()
    world.throttler.queue.pod_ready()
    first, _ = world.begin()
    second, _ = world.begin()
    world.clock.pass_time(2.0)
    world.answer(first)
    world.answer(second)
    traffic = world.throttler.counters.traffic
    assert seen(traffic.wait) == (1, 2.0)
    assert traffic.cold == {}


def test_a_wait_in_vain_counts_too() -> None:
    world = World(queue=QueueSpec(timeout_s=3.0))
    _, client = world.begin()
    world.clock.pass_time(4.0)
    assert client.reason == Reason.QUEUE_TIMEOUT.value
    count, total = seen(world.throttler.counters.traffic.wait)
    assert count == 1 and total == pytest.approx(3.0, abs=0.1)
    assert seen(world.throttler.counters.traffic.first_byte) == (0, 0.0)
    assert world.throttler.queue.start is None, "nobody waits for it any more"


def start_pod(world: World, pending_s: float, ready_s: float) -> Pool:
    """As apply.py does it."""
    world.clock.pass_time(pending_s)
    tracker = world.table.add("p1", "10.0.0.1:80", 1, PENDING)
    assert tracker is not None
    pool = Pool(connects=False)
    tracker.attachment = pool
    world.throttler.queue.pod_placed()
    world.clock.pass_time(ready_s)
    world.table.set_state(tracker, READY)
    world.throttler.queue.pod_ready()
    world.throttler.pump()
    return pool


def answer_cold(world: World) -> tuple[Pool, Client]:
    """A request that is answered after all phases of a start: 1.0, 2.0, 0.0, 0.5 and 0.25 s."""
    exchange, client = world.begin()
    pool = start_pod(world, 1.0, 2.0)
    world.clock.pass_time(0.5)
    pool.connect(at_pod(exchange))
    world.clock.pass_time(0.25)
    world.answer(exchange)
    return pool, client


def test_the_phases_of_a_cold_start() -> None:
    world = World()
    answer_cold(world)
    cold = world.throttler.counters.traffic.cold
    assert [seen(cold[phase]) for phase in PHASES] == [(1, 1.0), (1, 2.0), (1, 0.0), (1, 0.5), (1, 0.25)]
    assert world.throttler.counters.cold_starts_total == 1
    assert world.throttler.queue.start is None


def test_who_comes_later_and_waits_longer() -> None:
    world = World()
    first, _ = world.begin()
    world.clock.pass_time(0.5)
    second, _ = world.begin()
    pool = start_pod(world, 0.5, 2.0)  # the second sees half of the start
    pool.connect(at_pod(first))
    world.clock.pass_time(4.0)
    world.answer(first)
    pool.connect(at_pod(second))
    world.answer(second)
    cold = world.throttler.counters.traffic.cold
    assert [seen(cold[phase]) for phase in PHASES] == [(2, 1.5), (2, 4.0), (2, 4.0), (2, 0.0), (2, 4.0)]
    assert world.throttler.counters.cold_starts_total == 1


def test_a_pod_that_was_on_its_way_already() -> None:
    world = World()
    world.table.add("p1", "10.0.0.1:80", 1, PENDING)
    world.begin()
    start = world.throttler.queue.start
    assert start is not None and start.placed_s == start.wanted_s


def test_a_failed_start_is_no_cold_start() -> None:
    world = World()
    world.begin()
    world.throttler.queue.fail("exit code 1")
    assert world.throttler.queue.start is None
    world.clock.pass_time(1.0)
    world.throttler.recover()
    world.throttler.queue.pod_ready()
    assert world.throttler.counters.cold_starts_total == 0


def test_a_retry_counts_its_wait_to_the_last_grant() -> None:
    world = World()
    pool = world.pod(connects=False)
    world.throttler.queue.pod_ready()
    exchange, _ = world.begin()
    at_pod(exchange).connect_failed(Reason.CONNECT_FAILED)  # in line until the same pod is picked again
    assert isinstance(exchange, Exchange)
    world.clock.pass_time(2.0)
    world.table.set_state(world.tracker("p1"), READY)
    world.throttler.pump()
    pool.connect(at_pod(exchange))
    world.answer(exchange)
    count, total = seen(world.throttler.counters.traffic.wait)
    assert (count, total) == (1, 2.0)


def timing_of(client: Client) -> dict[str, float]:
    """What the client was told, in seconds."""
    named = [part.split(";dur=") for part in client.server_timing.split(", ") if part]
    return {name: float(took) / 1000.0 for name, took in named}


def test_the_client_is_told_where_the_time_went_if_asked_for() -> None:
    for wanted in (False, True):
        world = World(filters=FiltersSpec(server_timing=wanted))
        pool, client = answer_cold(world)
        told = {"start": 1.0, "ready": 2.0, "queue": 0.0, "connect": 0.5, "first_byte": 0.25}
        assert timing_of(client) == (told if wanted else {})
        warm, client = world.begin()
        pool.connect(at_pod(warm))
        world.clock.pass_time(0.125)
        world.answer(warm)
        told = {"queue": 0.0, "connect": 0.0, "first_byte": 0.125}
        assert timing_of(client) == (told if wanted else {})


times = st.floats(0.0, 100.0)


@given(times, times, times, times, times, times)
def test_phases_are_never_negative_and_add_up(
    placed_s: float, ready_s: float, arrived_s: float, waited_s: float, connect_s: float, answer_s: float
) -> None:
    start = Start(1.0)
    start.placed_s = placed_s
    start.ready_s = ready_s
    granted_s = arrived_s + waited_s
    connected_s = granted_s + connect_s
    first_byte_s = connected_s + answer_s
    phases = start.phases(arrived_s, granted_s, connected_s, first_byte_s)
    assert all(phase >= 0.0 for phase in phases)
    assert sum(phases) == pytest.approx(first_byte_s - arrived_s)


def test_tokens_are_counted_for_a_bounded_number_of_users() -> None:
    tokens = TokenTraffic()
    for turn in range(2):
        for number in range(USERS_MAX + 50):
            tokens.add(TokenCounts(2, 1, 0), f"user-{number}")
        tokens.add(TokenCounts(7, 7, 0), "")
        shared = tokens.by_user[OTHER_USERS]
        assert shared == (100 * (turn + 1), 50 * (turn + 1)) and len(tokens.by_user) == USERS_MAX + 1
    named = [counts for user, counts in tokens.by_user.items() if user != OTHER_USERS]
    assert named == [(4, 2)] * USERS_MAX
    assert (tokens.prompt, tokens.completion) == (4 * (USERS_MAX + 50) + 14, 2 * (USERS_MAX + 50) + 14)
