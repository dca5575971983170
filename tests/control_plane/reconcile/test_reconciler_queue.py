"""Many Activations: whose turn it is, how many at once, what jumps the queue, and how it ends."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from activator.control_plane.reconcile.work_queue import FAILED_PAUSE_MAX_S, URGENT_IN_A_ROW_MAX, WorkQueue
from activator.runtime.rendezvous import owner_of
from lb.rng import Rng
from tests.control_plane.reconcile.reconcile_world import desired_of, world
from tests.kubernetes.fake_cluster import on_a_loop
from tests.manual_clock import ManualClock


@on_a_loop
async def test_so_many_passes_at_once_and_no_more() -> None:
    async with world(passes_max=3) as here:
        for number in range(12):
            here.reconciler.want(desired_of(here.make(f"a{number}"), 1))
        here.api.hold = asyncio.Event()
        for _ in range(50):
            await asyncio.sleep(0)
        assert here.api.running == here.api.most_running == 3
        counts = here.controllers.of("activation")
        assert (counts.active, counts.depth) == (3, 9)
        here.api.hold.set()
        await here.settle()
        assert here.api.most_running <= 6, "two components of a group at once"
        assert len(here.reports) == 12 and all(one.good for one in here.reports)


@on_a_loop
async def test_the_latest_counts_and_what_is_between_is_folded() -> None:
    async with world() as here:
        thing = here.make("a")
        here.api.hold = asyncio.Event()
        for replicas in (1, 2, 3, 4):
            here.reconciler.want(desired_of(thing, replicas))
            for _ in range(10):
                await asyncio.sleep(0)
        here.api.hold.set()
        await here.settle()
        assert here.one("deployments", "a")["spec"]["replicas"] == 4
        assert len(here.reports) == 2, "the pass that was under way, and one for all that came meanwhile"


@on_a_loop
async def test_a_start_from_zero_jumps_the_queue() -> None:
    async with world(passes_max=1) as here:
        things = [here.make(f"a{number}") for number in range(6)]
        here.api.hold = asyncio.Event()
        for thing in things[:5]:
            here.reconciler.want(desired_of(thing, 0))
        here.reconciler.want(desired_of(things[5], 1, observed=here.observed("a5")))
        await asyncio.sleep(0)
        here.api.hold.set()
        await here.settle()
        assert [one.key for one in here.reports][:2] == ["default/a0", "default/a5"]


@on_a_loop
async def test_what_is_another_replicas_is_not_written_any_more() -> None:
    async with world() as here:
        a, b = here.make("a"), here.make("b")
        here.api.hold = asyncio.Event()
        here.reconciler.want(desired_of(a, 3))
        here.reconciler.want(desired_of(b, 3))
        for _ in range(10):
            await asyncio.sleep(0)
        assert here.api.running == 2, "a pass of each is under way"
        here.reconciler.abandon("default/a")
        here.api.hold.set()
        await here.settle()
        assert here.one("deployments", "a")["spec"]["replicas"] == 0
        assert here.one("deployments", "b")["spec"]["replicas"] == 3
        assert [one.key for one in here.reports] == ["default/b"]
        here.reconciler.want(desired_of(a, 2))
        await here.settle()
        assert here.one("deployments", "a")["spec"]["replicas"] == 2, "it is ours again"


@on_a_loop
async def test_a_pass_that_has_not_begun_is_abandoned_as_well() -> None:
    async with world(passes_max=1) as here:
        things = [here.make(name) for name in "abc"]
        for thing in things:
            here.reconciler.want(desired_of(thing, 3))
        for thing in things[:2]:
            here.reconciler.abandon(f"default/{thing['metadata']['name']}")
        await here.settle()
        assert [here.one("deployments", name)["spec"]["replicas"] for name in "abc"] == [0, 0, 3]


@on_a_loop
async def test_keys_are_bounded_and_a_closed_reconciler_takes_none() -> None:
    async with world(keys_max=2) as here:
        a, b, c = (here.make(name) for name in "abc")
        assert here.reconciler.want(desired_of(a)) and here.reconciler.want(desired_of(b))
        assert not here.reconciler.want(desired_of(c)) and here.reconciler.refused_total == 1
        await here.settle()
        here.reconciler.forget("default/a")
        assert here.reconciler.want(desired_of(c))
        await here.settle()
        here.api.hold = asyncio.Event()
        here.reconciler.want(desired_of(b, 5))
        for _ in range(5):
            await asyncio.sleep(0)
        await here.reconciler.close()
        assert not here.reconciler.want(desired_of(c, 1))
        assert here.api.running == 0, "what ran is cancelled"


# --- the queue alone ------------------------------------------------------------------------------------------------


class Turns:
    """A queue, and what is under way."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.queue = WorkQueue(self.clock.now, self.clock.call_later, Rng(1), lambda: None, lambda again: None)
        self.active: set[str] = set()

    def take(self) -> str | None:
        taken = self.queue.take()
        if taken is None:
            return None
        assert taken[0] not in self.active, "one pass per key at a time"
        self.active.add(taken[0])
        return taken[0]

    def done(self, key: str, failed: bool = False) -> float | None:
        self.active.discard(key)
        return self.queue.done(key, failed)


def test_urgent_keys_go_first_and_the_others_have_their_turn() -> None:
    turns = Turns()
    for number in range(20):
        turns.queue.put(f"u{number}", urgent=True)
    turns.queue.put("n")
    order = [turns.take() for _ in range(21)]
    assert order.index("n") == URGENT_IN_A_ROW_MAX


def test_a_key_that_waits_becomes_urgent() -> None:
    turns = Turns()
    turns.queue.put("a")
    turns.queue.put("b")
    turns.queue.put("b", urgent=True)
    assert [turns.take(), turns.take(), turns.take()] == ["b", "a", None]


def test_a_failing_key_waits_longer_and_longer_and_holds_up_no_other() -> None:
    turns = Turns()
    waits = []
    for _ in range(14):
        turns.queue.put("bad")
        assert turns.take() == "bad"
        turns.queue.put("good")
        assert turns.take() == "good"
        turns.done("good")
        wait_s = turns.done("bad", failed=True)
        assert wait_s is not None
        waits.append(wait_s)
        turns.queue.put("bad")
        assert turns.take() is None, "a change does not end the pause"
        turns.clock.pass_time(wait_s)
    assert waits[0] <= 0.25 and FAILED_PAUSE_MAX_S / 2 <= waits[-1] <= FAILED_PAUSE_MAX_S
    turns.take()
    turns.done("bad", failed=True)
    turns.queue.put("bad", urgent=True)
    assert turns.take() == "bad", "a start from zero does"


def test_the_end_of_an_outage_gives_every_key_its_turn_that_has_failed() -> None:
    turns = Turns()
    for key in ("a", "b", "contested", "asked", "runs", "fine"):
        turns.queue.put(key)
        turns.take()
    for key in ("a", "b"):
        turns.done(key, failed=True)
    turns.queue.done("contested", True, again_in_s=20.0)
    turns.queue.done("asked", True, at_least_s=20.0)
    turns.queue.done("fine", False, again_in_s=5.0)
    assert turns.take() is None
    turns.queue.wake()
    turns.queue.wake()
    assert [turns.take(), turns.take(), turns.take()] == ["a", "b", None]
    for _ in range(14):
        turns.done("a", failed=True)
        turns.queue.wake()
        turns.take()
    wait_s = turns.done("a", failed=True)
    assert wait_s is not None and wait_s <= 1.0, "after it was woken the pauses begin anew"


OPERATIONS = st.tuples(
    st.sampled_from(["put", "urgent", "take", "done", "fail", "time", "wake", "forget"]), st.integers(0, 4)
)


@settings(max_examples=200)
@given(st.lists(OPERATIONS, max_size=60))
def test_no_key_is_lost_or_given_twice(operations: list[tuple[str, int]]) -> None:
    """A model: each key that was put in has a turn after its last `put`, whatever happens between."""
    turns = Turns()
    owed: set[str] = set()
    for operation, number in operations:
        key = f"k{number}"
        match operation:
            case "put" | "urgent":
                turns.queue.put(key, operation == "urgent")
                owed.add(key)
            case "take":
                taken = turns.take()
                if taken is not None:
                    owed.discard(taken)
            case "done" | "fail" if key in turns.active:
                turns.done(key, operation == "fail")
                if operation == "fail":
                    owed.add(key)
            case "time":
                turns.clock.pass_time(0.1 * number)
            case "wake":
                turns.queue.wake()
            case "forget":
                turns.queue.forget(key)
                owed.discard(key)
    for key in list(turns.active):
        turns.done(key)
    for _ in range(20):
        turns.clock.pass_time(FAILED_PAUSE_MAX_S)
        while (taken := turns.take()) is not None:
            owed.discard(taken)
            turns.done(taken)
    assert not owed
    assert turns.queue.is_idle and turns.clock.pending() == 0, "nothing is left behind"


# --- whose it is ----------------------------------------------------------------------------------------------------


@given(st.lists(st.text(), min_size=1, max_size=50), st.sets(st.integers(0, 4_000), min_size=2, max_size=12))
def test_each_object_has_one_writer_and_few_move(uids: list[str], members: set[int]) -> None:
    left = max(members)
    for uid in uids:
        owner = owner_of(uid, members)
        assert owner in members and owner == owner_of(uid, sorted(members, reverse=True))
        rest = members - {left}
        assert owner_of(uid, rest) == owner or owner == left, "only what the one that left had moves"
