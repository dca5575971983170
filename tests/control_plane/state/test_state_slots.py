"""Slots as the state worker gives and takes them: trims are told, drains end, none is given twice, none is lost."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from random import Random

import pytest
from msgspec.structs import replace

from activator.config.specs import DRAIN_TIMEOUT_S, RevisionSpec
from activator.control_plane.state.worker import CHANGES_BATCH_STEP, StateWorker
from activator.data_plane.hooks import PlaneHooks
from activator.data_plane.tables.apply import ENDED_PER_TURN_MAX, RevisionTables
from activator.data_plane.throttle.budget import HeldBudget
from activator.data_plane.throttle.revision import RevisionThrottler
from activator.data_plane.throttle.verdict import SUSPECT_S
from activator.messages import (
    PodGone,
    PodStatus,
    Probed,
    RevisionBroken,
    RevisionGone,
    RevisionSet,
    SlotDrained,
    ToControl,
)
from activator.runtime.clock import TimingWheel
from activator.runtime.reasons import Reason
from lb.slots import Trim
from lb.table import TrackerTable
from lb.tracker import EMPTY, PodTracker
from tests.control_plane.state.state_fakes import KEY, SPEC, Hooks, Joined, Pool, balanced, seen
from tests.data_plane.throttle.throttle_fakes import Heard, Request
from tests.manual_clock import ManualClock
from tests.shuffled_loop import run_shuffled

# Trims.


def test_each_trim_is_told_once_with_its_numbers() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), *(seen(f"p{number}") for number in range(4)))
    joined.do(PodGone(KEY, "list", "p3"), PodGone(KEY, "list", "p2"))
    assert joined.hooks.trims == [], "half is empty: not more than the threshold"
    joined.do(PodGone(KEY, "list", "p1"))
    assert joined.hooks.trims == [(KEY, Trim(4, 1, 0.75, 0.5, 8, 8))]
    joined.do(seen("p5"))
    joined.do(RevisionSet(balanced(trailing_fragmentation_threshold=0.0)), PodGone(KEY, "list", "p5"))
    assert joined.hooks.trims[1:] == [(KEY, Trim(2, 1, 0.5, 0.0, 8, 8))]


def test_a_trim_is_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    hooks = PlaneHooks.__new__(PlaneHooks)  # what it is made with has no part in this
    with caplog.at_level(logging.DEBUG, "activator.data"):
        hooks.trimmed(KEY, Trim(512, 10, 0.98, 0.5, 512, 64))
    expected = "trimmed the table of ns/rev: length 512 -> 10 (98 % was empty, threshold 50 %), slots 512 -> 64"
    assert [record.getMessage() for record in caplog.records] == [expected]


# Drains.


def test_a_second_drain_of_a_pod_has_all_of_its_time() -> None:
    """The pod flaps: what is left of its first drain must not cut the second short."""
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"))
    request = joined.ask()
    joined.do(PodGone(KEY, "list", "p1"))
    joined.clock.pass_time(DRAIN_TIMEOUT_S - 10.0)
    joined.do(seen("p1"), PodGone(KEY, "list", "p1"))  # folded: nothing has happened
    joined.do(seen("p1"))
    joined.do(PodGone(KEY, "list", "p1"))
    joined.clock.pass_time(DRAIN_TIMEOUT_S - 10.0)
    assert request.ends == ["granted"]
    joined.clock.pass_time(11.0)
    assert request.ends == ["granted", "revoked"]


def test_the_end_of_a_drain_ends_nothing_at_the_address_that_the_pod_has_moved_to() -> None:
    """Its sandbox was made anew, or it is spoken to over TLS from now on: the same pod, another address."""
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"))
    before, after = Request(joined.throttler()), Request(joined.throttler())
    before.ask(joined.clock.now())
    joined.do(seen("p1", address="10.0.9.1:80"))
    after.ask(joined.clock.now())
    assert [one.address for one in joined.throttler().leases] == ["10.0.0.1:80", "10.0.9.1:80"]
    joined.clock.pass_time(DRAIN_TIMEOUT_S + 1.0)
    assert before.ends == ["granted", "revoked"] and after.ends == ["granted"]


def test_a_pod_that_moves_away_and_back_while_it_carries_something_is_where_its_source_says() -> None:
    """As when the slice of its first address family is made anew: the other family's address counts for a moment."""
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"))
    for address in ("10.0.0.1:80", "[fd00::1]:80", "10.0.0.1:80"):
        joined.do(seen("p1", address=address))
        joined.ask()
    joined.do(seen("p1", address="[fd00::1]:80"))
    table = joined.throttler().table
    live = [one.address for one in table.slots[: table.length] if one.is_routable()]
    assert live == ["[fd00::1]:80"]
    joined.auditor.check(joined.throttler())
    joined.do()
    assert joined.worker.mismatch_totals == {}


def test_a_table_made_anew_finds_a_pod_where_it_is_and_not_where_it_still_carries_something() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"))
    request = joined.ask()
    joined.do(seen("p1", address="10.0.9.1:80"))
    joined.do(RevisionBroken(KEY, "told so"))
    joined.do(seen("p1", address="10.0.0.1:80"))
    table = joined.throttler().table
    assert [one.address for one in table.slots[: table.length] if one.is_routable()] == ["10.0.0.1:80"]
    assert table.in_flight == 1 and request.ends == ["granted"]
    joined.auditor.check(joined.throttler())
    joined.do()
    assert joined.worker.mismatch_totals == {}


def test_a_table_made_anew_finds_at_an_address_the_pod_that_has_it_now() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"))
    joined.ask()
    joined.do(PodGone(KEY, "list", "p1"), seen("p2", address="10.0.0.1:80"))
    joined.do(RevisionBroken(KEY, "told so"))
    found = joined.throttler().table.find("10.0.0.1:80")
    assert found is not None and found.identity == "p2"


def test_what_befalls_requests_at_its_former_address_says_nothing_of_the_pod_where_it_is_now() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"), seen("p2"))
    throttler = joined.throttler()
    requests = [Request(throttler) for _ in range(4)]
    for request in requests:
        request.ask(joined.clock.now())
    joined.do(seen("p1", address="10.0.9.1:80"), seen("p2", address="10.0.9.2:80"))
    for lease in list(throttler.leases):
        throttler.pod_failed(lease, Reason.CONNECT_FAILED)
        throttler.pod_failed(lease, Reason.POD_CLOSED)
    assert [event for event in joined.heard.events if event[0] == "refused"] == []


def test_an_answer_from_its_former_address_does_not_prove_a_pod_where_it_is_now() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1", PodStatus.PENDING, probe=True))
    joined.do(
        seen("p1", PodStatus.PENDING, probe=True, address="10.0.9.1:80"),
        Probed(KEY, "p1", "10.0.0.1:80"),  # on its way while the pod moved
    )
    assert joined.slots() == {"p1": "pending"}
    joined.do(Probed(KEY, "p1", "10.0.9.1:80"))
    assert joined.slots() == {"p1": "ready"}


def test_the_drains_of_a_removed_revision_end_in_time_too() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"), seen("p2"))
    throttler = joined.throttler()
    requests = [Request(throttler) for _ in range(2)]
    for request in requests:
        request.ask(joined.clock.now())
    joined.do(PodGone(KEY, "list", "p1"))
    joined.clock.pass_time(100.0)
    joined.do(RevisionGone(KEY))
    joined.clock.pass_time(DRAIN_TIMEOUT_S - 99.0)
    assert [request.ends for request in requests] == [["granted", "revoked"], ["granted"]]
    joined.clock.pass_time(100.0)
    assert [request.ends for request in requests] == [["granted", "revoked"]] * 2
    departed = [event[1] for event in joined.heard.events if event[0] == "departed"]
    assert departed == ["p1", "p2"]
    assert joined.hooks.expired == [], "nobody asks the worker about slots of a table that is gone"
    assert throttler.table.in_flight == 0


def made_since(before: list[object]) -> list[object]:
    """What there is of tables and throttlers beside `before`, which other tests may have left."""
    known = set(map(id, before))
    return [
        one
        for one in gc.get_objects()
        if isinstance(one, TrackerTable | RevisionThrottler | PodTracker) and id(one) not in known
    ]


def test_nothing_of_a_removed_revision_is_left_once_its_drains_have_ended() -> None:
    before = made_since([])
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"), seen("p2"), seen("p3"))
    pools = []
    for tracker in joined.throttler().table.slots[:3]:
        assert isinstance(tracker.attachment, Pool)
        pools.append(weakref.ref(tracker.attachment))
    del tracker
    request = joined.ask()
    joined.do(PodGone(KEY, "list", "p1"))
    joined.do(RevisionGone(KEY))
    joined.clock.pass_time(DRAIN_TIMEOUT_S + 1.0)
    assert request.ends == ["granted", "revoked"]
    del request
    joined.tables.end_dropped()
    joined.hooks.ended.clear()
    gc.collect()
    assert [pool() for pool in pools] == [None] * 3
    assert made_since(before) == []
    assert joined.clock.pending() == 0


def test_a_removed_revision_needs_no_collector() -> None:
    """Which looks at everything there is, and so does it hardly ever: thousands of revisions that were would stay."""
    gc.collect()
    gc.disable()
    try:
        before = made_since([])
        joined = Joined()
        for number in range(10):
            key = f"ns/rev-{number}"
            joined.do(RevisionSet(replace(SPEC, key=key)), seen("p1", key=key))
            request = joined.ask(key)
            request.release()
            del request
            joined.do(RevisionGone(key))
            joined.tables.end_dropped()
            joined.hooks.ended.clear()
        assert made_since(before) == []
    finally:
        gc.enable()


def test_a_removed_revision_ends_with_its_last_request() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"))
    throttler = joined.throttler()
    request = joined.ask()
    joined.do(RevisionGone(KEY), RevisionSet(SPEC))
    successor = joined.throttler()
    assert successor.incarnation != throttler.incarnation
    joined.tables.end_dropped()
    assert joined.hooks.ended == [] and list(joined.tables.dropped.values()) == [throttler]
    request.release()
    joined.tables.end_dropped()
    joined.tables.end_dropped()
    assert joined.hooks.ended == [throttler] and not joined.tables.dropped, "once"


def test_a_removed_revision_has_not_ended_while_a_request_is_counted_that_is_at_no_pod() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC))
    throttler = joined.throttler()
    throttler.counters.traffic.begun(joined.clock.now())
    joined.do(RevisionGone(KEY))
    joined.tables.end_dropped()
    assert joined.hooks.ended == []
    throttler.counters.traffic.ended(joined.clock.now())
    joined.tables.end_dropped()
    assert joined.hooks.ended == [throttler]


def test_a_suspicion_that_nobody_decides_about_passes() -> None:
    """As while changes of the revision are parked: its only pod was kept from the picks for up to a minute."""
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"))
    throttler = joined.throttler()
    tracker = throttler.table.slots[0]
    throttler.table.suspect(tracker, joined.clock.now() + SUSPECT_S)
    joined.tables.suspected(KEY, "p1")
    request = joined.ask()
    assert request.ends == []
    joined.clock.pass_time(SUSPECT_S - 0.1)
    assert request.ends == []
    joined.clock.pass_time(0.3)
    assert request.ends == ["granted"], "and it is handed over at once"
    request.release()
    assert joined.clock.pending() == 0


def test_a_suspicion_of_what_is_there_no_more_ends_nothing() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"))
    table = joined.throttler().table
    table.suspect(table.slots[0], joined.clock.now() + SUSPECT_S)
    joined.tables.suspected(KEY, "p1")
    joined.tables.suspected(KEY, "p2")
    joined.tables.suspected("ns/other", "p1")
    joined.do(PodGone(KEY, "list", "p1"))
    joined.clock.pass_time(SUSPECT_S / 2)
    joined.do(seen("p3"))
    assert table.slots[0].identity == "p3", "the same slot"
    table.suspect(table.slots[0], joined.clock.now() + SUSPECT_S)
    joined.clock.pass_time(SUSPECT_S / 2 + 0.2)
    assert table.slots[0].suspect_until_s > 0.0, "the suspicion of the one before was another one"


def test_many_that_end_at_once_end_over_turns() -> None:
    joined = Joined()
    keys = [f"ns/rev-{number}" for number in range(2 * ENDED_PER_TURN_MAX + 1)]
    joined.do(*(RevisionSet(replace(SPEC, key=key)) for key in keys))
    joined.do(*map(RevisionGone, keys))
    ended = []
    while joined.tables.dropped:
        joined.tables.end_dropped()
        ended.append(len(joined.hooks.ended))
    assert ended == [ENDED_PER_TURN_MAX, 2 * ENDED_PER_TURN_MAX, len(keys)]


def test_what_comes_late_about_a_former_table_does_not_hit_the_one_after_it() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1"))
    joined.ask()
    joined.do(PodGone(KEY, "list", "p1"))
    old = joined.throttler().table.slots[0]
    slot, generation = int(old.slot), int(old.generation)
    joined.do(RevisionGone(KEY), RevisionSet(SPEC), seen("p2"))
    joined.ask()
    joined.do(PodGone(KEY, "list", "p2"))
    assert joined.slots() == {"p2": "draining"}
    joined.do(SlotDrained(KEY, slot, generation))
    assert joined.slots() == {"p2": "draining"}
    assert int(joined.throttler().table.slots[0].generation) > generation


# Order.


class Posting(Heard):
    """What throttlers learn goes to the worker, as the data plane does it."""

    def __init__(self) -> None:
        super().__init__()
        self.worker: StateWorker | None = None

    def drained(self, key: str, slot: int, generation: int) -> None:
        assert self.worker is not None
        self.worker.submit(SlotDrained(key, slot, generation))


class Ledger(Hooks):
    """Who was given which slot, by the hooks; a slot given twice is refused."""

    def __init__(self) -> None:
        super().__init__()
        self.holders: dict[int, str] = {}
        self.given = 0
        self.told: list[ToControl] = []

    def pod_placed(self, tracker: PodTracker, spec: RevisionSpec) -> None:
        super().pod_placed(tracker, spec)
        slot = int(tracker.slot)
        assert self.holders.get(slot, tracker.identity) == tracker.identity, f"slot {slot} was given twice"
        if slot not in self.holders:
            self.given += 1
        self.holders[slot] = tracker.identity

    def pod_drained(self, key: str, identity: str) -> None:
        super().pod_drained(key, identity)
        slots = [slot for slot, holder in self.holders.items() if holder == identity]
        assert len(slots) == 1, f"{identity} left {len(slots)} slots"
        del self.holders[slots[0]]


@pytest.mark.parametrize("seed", range(8))
def test_concurrent_slot_operations(seed: int) -> None:
    """Tasks add and remove pods through the worker while others send requests, in an order that the seed decides."""
    run_shuffled(seed, lambda: _concurrent_slot_operations(seed))


async def _concurrent_slot_operations(seed: int) -> None:
    rng, clock, events, hooks = Random(seed), ManualClock(), Posting(), Ledger()
    errors: list[Exception] = []
    wheel = TimingWheel(clock.now, clock.call_later, errors.append)
    tables = RevisionTables(clock.now, wheel, asyncio.get_running_loop().call_soon, events, hooks, HeldBudget())
    worker = StateWorker(clock.now, tables.apply, lambda _: None, lambda _source, _key: None)
    events.worker = worker
    running = asyncio.create_task(worker.run())
    worker.submit(RevisionSet(balanced(max_scale=0, trailing_fragmentation_threshold=rng.choice([0.0, 0.25, 1.0]))))
    for _ in range(10):
        await asyncio.sleep(0)
    throttler = tables.throttlers[KEY]
    table = throttler.table

    async def pod(number: int) -> None:
        """Comes and goes; now and then it only flaps, or another pod takes its address at once."""
        for life in range(6):
            identity = f"pod{number}-{life if rng.random() < 0.7 else 0}"
            worker.submit(seen(identity, address=f"10.0.{number % 80}.1:80"))
            for _ in range(rng.randrange(6)):
                await asyncio.sleep(0)
            table.check_invariants()
            worker.submit(PodGone(KEY, "list", identity))
            for _ in range(rng.randrange(3)):
                await asyncio.sleep(0)

    async def client() -> None:
        for _ in range(25):
            request = Request(throttler)
            request.ask(clock.now())
            for _ in range(rng.randrange(8)):
                await asyncio.sleep(0)
            if request.lease is None:
                request.leave()
            else:
                slot, generation = request.lease.tracker.slot, request.lease.generation
                assert table.slots[slot].generation == generation, "a slot was freed under a request"
                request.release()

    await asyncio.gather(*(pod(number) for number in range(90)), *(client() for _ in range(30)))
    for _ in range(10_000):  # turns; a few hundred are enough
        if not worker.queue and not table.used:
            break
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    table.check_invariants()
    assert (errors, hooks.failures, list(worker.supervision.dead_letters)) == ([], [], [])
    assert hooks.holders == {}, "a slot was lost"
    assert hooks.given == len(hooks.drained) > 90
    assert (table.used, table.in_flight, table.late_releases) == (0, 0, 0)
    assert all(tracker.state == EMPTY for tracker in table.slots)
    assert throttler.counters.granted_total > 0
    if table.trims == 0:
        assert table.grown > 0, "the table never had more pods than it was made for"


def test_it_is_settled_when_all_that_was_asked_for_at_first_is_applied() -> None:
    joined = Joined()
    worker = joined.worker
    assert worker.is_settled(), "nothing was asked for"
    for number in range(10 * CHANGES_BATCH_STEP):
        worker.submit(RevisionSet(replace(SPEC, key=f"ns/rev-{number}")))
    assert not worker.is_settled()
    while len(worker.queue):
        assert not worker.is_settled()
        worker.turn()
    assert worker.is_settled()
    worker.submit(RevisionSet(replace(SPEC, key="ns/later")))
    assert worker.is_settled(), "for good"
