"""What a panic or a full queue swallowed is said again, and only then: the model converges though no source repeats
anything by itself, and a change that always raises costs one attempt per backoff.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from activator.control_plane.state.model import Model, Reduction
from activator.control_plane.state.queue import ChangeQueue
from activator.control_plane.state.reduce import reduce
from activator.control_plane.state.supervision import PANIC_BACKOFF_INITIAL_S, PANIC_BACKOFF_MAX_S, PANIC_RESET_AFTER_S
from activator.control_plane.state.worker import CHANGES_AT_ONCE, CHANGES_BATCH_S, ChangeOutcome
from activator.messages import (
    PUSH,
    Change,
    ObservedPod,
    PodGone,
    PodRefused,
    PodsListed,
    PodStatus,
    Probed,
    ProbeOrder,
    RevisionBroken,
    RevisionFailed,
    RevisionGone,
    RevisionRecovered,
    RevisionSet,
    SetProbes,
    SlotDrained,
    StartProbe,
)
from tests.control_plane.state.state_fakes import KEY, SPEC, Joined, seen
from tests.data_plane.throttle.throttle_fakes import Request

SOURCES = ("list", "watch")
PODS = ("p1", "p2", "p3")
LONGEST_S = 1.25 * PANIC_BACKOFF_MAX_S


class Trap:
    """`reduce`, that raises at the nth change from now where `armed` is n, or always at those of one kind."""

    def __init__(self, poison: type | None = None) -> None:
        self.armed = 0
        self.poison = poison
        self.tried: list[Change] = []

    def __call__(self, model: Model, change: Change, now_s: float) -> Reduction:
        self.tried.append(change)
        self.armed = max(self.armed - 1, -1)
        if self.armed == 0 or type(change) is self.poison:
            raise RuntimeError("injected")
        return reduce(model, change, now_s)


class World(Joined):
    """Sources that say everything once and again when they are asked, and pods that answer while they are asked."""

    def __init__(self, trap: Trap | None = None) -> None:
        super().__init__(trap or Trap())
        self.exists = True
        self.failure = ""
        self.truth: dict[str, dict[str, ObservedPod]] = {source: {} for source in SOURCES}
        self.asked: dict[str, StartProbe] = {}
        self.worker._probe = self._order
        self.do(RevisionSet(SPEC))

    def _order(self, orders: list[ProbeOrder]) -> None:
        for order in orders:
            if isinstance(order, SetProbes):
                self.asked = {one.identity: one for one in order.pods}
            elif isinstance(order, StartProbe):
                self.asked[order.identity] = order
            else:
                self.asked.pop(order.identity, None)

    def listed(self, source: str) -> PodsListed:
        return PodsListed(KEY, source, tuple(self.truth[source].values()))

    def source_dirty(self, source: str, key: str) -> None:
        super().source_dirty(source, key)
        if not self.exists:
            self.worker.submit(RevisionGone(key))
            return
        self.worker.submit(RevisionSet(SPEC))
        for name in SOURCES:
            self.worker.submit(self.listed(name))
        self.worker.submit(RevisionFailed(key, self.failure) if self.failure else RevisionRecovered(key))

    def settle(self, *changes: Change) -> None:
        """With what the data plane tells of slots that are free."""
        self.do(*changes)
        while drained := [event for event in self.heard.events if event[0] == "drained"]:
            self.heard.events.clear()
            self.do(*(SlotDrained(KEY, int(slot), int(generation)) for _, slot, generation in drained))

    def answer(self) -> None:
        """Each pod that is asked answers, until its order ends."""
        self.settle(*(Probed(KEY, order.identity, order.address) for order in self.asked.values()))

    def recover(self) -> None:
        """Until no backoff is left."""
        for _ in range(20):
            self.clock.pass_time(LONGEST_S)
            self.settle()
            self.answer()
        assert self.worker.parked == {}

    def check_recovery(self) -> None:
        """In the end the model is as if all that is so had been told to a new worker, once."""
        self.recover()
        told_once = World()
        told_once.exists, told_once.failure, told_once.truth = self.exists, self.failure, self.truth
        told_once.source_dirty("", KEY)
        told_once.recover()
        assert self.outcome() == told_once.outcome()
        assert self.worker.illegal_totals == {}

    def outcome(self) -> object:
        throttler = self.tables.throttlers.get(KEY)
        return None if throttler is None else (throttler.queue.failure or "", self.slots())

    def step(self, what: str, source: str, pod: str, status: PodStatus) -> None:
        """Something happens in the world, and is said once."""
        pods = self.truth[source]
        if what == "made":
            self.exists = True
            self.settle(RevisionSet(SPEC))
        elif what == "answers":
            self.answer()
        elif what == "time":
            self.clock.pass_time(LONGEST_S)
            self.settle()
        elif not self.exists:
            return
        elif what == "deleted":
            self.exists, self.failure = False, ""
            self.truth = {source: {} for source in SOURCES}
            self.settle(RevisionGone(KEY))
        elif what == "fails":
            self.failure = "it cannot start"
            self.settle(RevisionFailed(KEY, self.failure))
        elif what == "recovers":
            self.failure = ""
            self.settle(RevisionRecovered(KEY))
        elif what == "seen":
            pods[pod] = seen(pod, status, source=source, probe=True)
            self.settle(pods[pod])
        elif what == "gone":
            pods.pop(pod, None)
            self.settle(PodGone(KEY, source, pod))
        else:
            pods[pod] = seen(pod, status, source=source, probe=True)
            self.settle(self.listed(source))


READY = PodStatus.READY
KINDS = ("made", "answers", "time", "deleted", "fails", "recovers", "seen", "seen", "gone", "listed", "listed")
STEPS = st.tuples(*map(st.sampled_from, (range(4), KINDS, SOURCES, PODS, list(PodStatus))))


@given(st.lists(STEPS, max_size=25))
@example([(1, "listed", "list", "p1", PodStatus.READY)])
@example([(0, "listed", "list", "p1", PodStatus.PENDING), (1, "answers", "list", "p1", PodStatus.PENDING)])
@example([(0, "listed", "list", "p1", READY), (1, "deleted", "list", "p1", READY)])
@example([(0, "deleted", "list", "p1", READY), (1, "made", "list", "p1", READY), (0, "listed", "list", "p1", READY)])
@example(
    [
        (0, "seen", "list", "p1", PodStatus.PENDING),
        (1, "answers", "list", "p1", PodStatus.PENDING),
        (0, "deleted", "list", "p1", PodStatus.PENDING),
        (0, "made", "list", "p1", PodStatus.PENDING),
        (0, "seen", "list", "p1", PodStatus.PENDING),
        (1, "time", "list", "p1", PodStatus.PENDING),
    ]
)
def test_whatever_panics_swallow_the_model_is_in_the_end_what_the_sources_know(
    steps: list[tuple[int, str, str, str, PodStatus]],
) -> None:
    trap = Trap()
    world = World(trap)
    for panics, what, source, pod, status in steps:
        if panics:
            trap.armed = panics
        world.step(what, source, pod, status)
    trap.armed = 0
    world.check_recovery()


class Flooded(World):
    """The worker has only so many turns between two things that happen, each ends after a few changes, and most of them
    are others' changes.
    """

    def __init__(self, trap: Trap) -> None:
        super().__init__(trap)
        self.trap = trap
        self.turns: int | None = None  # None: as many as it needs
        self.worker._reduce = self._slowly

    def _slowly(self, model: Model, change: Change, now_s: float) -> Reduction:
        self.clock.pass_time(CHANGES_BATCH_S)
        if isinstance(change, PodRefused):
            raise RuntimeError("injected")  # of this nobody says anything again
        return self.trap(model, change, now_s) if change.key == KEY else reduce(model, change, now_s)

    def settle(self, *changes: Change) -> None:
        if self.turns is None:
            super().settle(*changes)
            return
        others = [RevisionSet(type(SPEC)(key=f"ns/other{number}")) for number in range(CHANGES_AT_ONCE - 1)]
        for change in (*changes, *others):
            self.worker.submit(change)
        for _ in range(self.turns):
            self.worker.turn()


@given(st.lists(st.tuples(STEPS, st.integers(0, 2)), max_size=25))
@example(
    [
        ((3, "recovers", "list", "p1", READY), 0),
        ((0, "seen", "list", "p1", READY), 1),
        ((0, "gone", "list", "p1", READY), 1),
    ]
)
@example([((3, "listed", "watch", "p1", PodStatus.PENDING), 0), ((0, "seen", "watch", "p2", PodStatus.PENDING), 1)])
def test_nor_does_it_matter_when_the_worker_has_its_turns(
    steps: list[tuple[tuple[int, str, str, str, PodStatus], int]],
) -> None:
    trap = Trap()
    world = Flooded(trap)
    for (panics, what, source, pod, status), turns in steps:
        world.turns = turns
        if panics == 3:
            world.worker.submit(PodRefused(KEY, "p9", 1, dead=True))
        elif panics:
            trap.armed = panics
        world.step(what, source, pod, status)
    trap.armed, world.turns = 0, None
    world.check_recovery()


def test_a_source_is_asked_when_the_backoff_is_over_and_not_before() -> None:
    trap = Trap()
    joined = Joined(trap)
    joined.do(RevisionSet(SPEC))
    for change, source in ((PodsListed(KEY, "list", (seen("p1"),)), "list"), (PodGone(KEY, "watch", "p1"), "watch")):
        trap.armed = 1
        joined.do(change)
        joined.do(change)
        assert joined.dirty == [], "while its changes wait it could not be heard"
        joined.clock.pass_time(LONGEST_S)
        joined.do()
        assert joined.dirty == [(source, KEY)]
        joined.clock.pass_time(LONGEST_S)
        joined.do()
        assert joined.dirty == [(source, KEY)], "once"
        joined.dirty.clear()
        joined.clock.pass_time(PANIC_RESET_AFTER_S)


def test_what_the_data_part_finds_out_anew_is_asked_of_nobody() -> None:
    trap = Trap()
    joined = Joined(trap)
    joined.do(RevisionSet(SPEC), seen("p1"))
    trap.armed = 1
    joined.do(PodRefused(KEY, "p1", 1, dead=True))
    joined.clock.pass_time(PANIC_BACKOFF_INITIAL_S)
    joined.do()
    assert (joined.dirty, joined.slots()) == ([], {"p1": "ready"})


def test_a_poison_that_is_said_again_and_again_costs_one_attempt_per_backoff() -> None:
    for poison in (PodsListed, RevisionFailed, Probed):
        trap = Trap()
        world = World(trap)
        world.step("listed", "list", "p1", PodStatus.PENDING)
        world.step("fails", "list", "p1", PodStatus.PENDING)
        trap.tried.clear()
        trap.poison = poison
        world.worker.submit(world.listed("list"))
        world.worker.submit(RevisionFailed(KEY, "it cannot start"))
        world.worker.submit(Probed(KEY, "p1"))
        backoffs = 0
        for _ in range(2000):
            backoffs += KEY not in world.worker.parked
            world.settle()
            world.clock.pass_time(0.1)
            backoffs += KEY in world.worker.parked and world.worker.parked[KEY].until_s <= world.clock.now()
        attempts = sum(type(change) is poison for change in trap.tried)
        assert 5 < attempts == world.worker.panics_total <= backoffs < 15, poison
        trap.poison = None
        world.clock.pass_time(LONGEST_S)
        world.settle()
        assert world.outcome() == ("it cannot start", {"p1": "ready"})


def test_a_table_whose_making_anew_panics_is_made_anew_after_the_backoff() -> None:
    trap = Trap()
    joined = Joined(trap)
    joined.do(RevisionSet(SPEC), seen("p1"))
    trap.armed = 1
    joined.tables.distrust(KEY, "the table lost count")
    joined.do()
    assert joined.throttler().queue.failure is not None and isinstance(trap.tried[-1], RevisionBroken)
    joined.clock.pass_time(LONGEST_S)
    joined.do()
    assert (joined.throttler().queue.failure, joined.slots()) == (None, {"p1": "ready"})


def test_a_slot_whose_end_panics_is_freed_after_the_backoff() -> None:
    trap = Trap()
    world = World(trap)
    world.settle(seen("p1"))
    request = Request(world.throttler())
    request.ask(world.clock.now())
    world.settle(PodGone(KEY, "list", "p1"))
    request.release()
    trap.armed = 1
    world.settle()
    assert isinstance(trap.tried[-1], SlotDrained) and world.slots() == {"p1": "draining"}
    world.clock.pass_time(1.25 * PANIC_BACKOFF_INITIAL_S)
    world.settle()
    assert world.slots() == {}


def test_an_answer_is_never_dropped_since_no_source_could_repeat_it() -> None:
    joined = Joined()
    joined.do(RevisionSet(SPEC), seen("p1", PodStatus.PENDING, probe=True))
    joined.worker.queue._changes_max = 0
    joined.do(Probed(KEY, "p1"), seen("p2"), seen("p3", source=PUSH))
    assert (joined.slots(), joined.dirty) == ({"p1": "ready"}, [("list", KEY), (PUSH, KEY)])


POISONS = [Probed(KEY, "p1"), SlotDrained(KEY, 7, 7), RevisionBroken(KEY, "the table lost count")]


@pytest.mark.parametrize("poison", POISONS, ids=lambda poison: type(poison).__name__)
def test_what_is_tried_again_for_ever_keeps_nobody_waiting_for_ever(poison: Change) -> None:
    trap = Trap(type(poison))
    joined = Joined(trap)
    joined.do(RevisionSet(SPEC), seen("p1"), poison)
    for number in range(2, 5):
        joined.do(seen(f"p{number}"))
        joined.clock.pass_time(LONGEST_S)
        joined.do()
        assert f"p{number}" in joined.worker.model.revisions[KEY].pods
    assert sum(change == poison for change in trap.tried) == 4, "once, and once per backoff"


def test_what_is_tried_again_counts_neither_for_a_successor_nor_against_what_is_newer() -> None:
    trap = Trap(Probed)
    joined = Joined(trap)
    asked = seen("p1", PodStatus.PENDING, probe=True)
    joined.do(RevisionSet(SPEC), asked, Probed(KEY, "p1", asked.address))
    joined.do(RevisionGone(KEY), RevisionSet(SPEC), asked)
    trap.poison = None
    joined.clock.pass_time(LONGEST_S)
    joined.do()
    assert joined.slots() == {"p1": "pending"}
    moved = seen("p1", PodStatus.PENDING, probe=True, address="10.0.1.1:80")
    trap.armed = 2
    joined.do(moved, Probed(KEY, "p1", asked.address))
    joined.do(Probed(KEY, "p1", moved.address))
    joined.clock.pass_time(LONGEST_S)
    joined.do()
    assert joined.worker.model.revisions[KEY].pods["p1"].proven


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        (seen("p2"), PodGone(KEY, "list", "p2")),
        (seen("p1", PodStatus.DRAINING), seen("p1")),
        (PodsListed(KEY, "list", (seen("p1"), seen("p2"))), PodGone(KEY, "list", "p2")),
        (RevisionSet(SPEC), RevisionGone(KEY)),
    ],
    ids=("gone", "seen", "listed", "revision"),
)
@pytest.mark.parametrize("hears", [True, False], ids=("while parked", "when it is over"))
def test_what_waited_for_its_batch_when_the_revision_was_parked_stays_older(
    older: Change, newer: Change, hears: bool
) -> None:
    """The batch ends after the panic: one of the revision's changes is still among all others."""
    trap = Trap()
    joined = Joined()

    def slow(model: Model, change: Change, now_s: float) -> Reduction:
        joined.clock.pass_time(CHANGES_BATCH_S)
        return trap(model, change, now_s)

    joined.worker._reduce = slow
    joined.do(RevisionSet(SPEC), seen("p1"))
    trap.armed = 1
    joined.worker.submit(PodRefused(KEY, "p9", 1, dead=True))
    for number in range(CHANGES_AT_ONCE - 1):
        joined.worker.submit(RevisionSet(type(SPEC)(key=f"ns/other{number}")))
    joined.worker.submit(older)
    joined.worker.turn()
    assert KEY in joined.worker.parked and len(joined.worker.queue) == 1
    joined.worker.submit(newer)
    if hears:
        joined.do()
    joined.clock.pass_time(LONGEST_S)
    joined.do()
    if isinstance(newer, RevisionGone):
        assert KEY not in joined.worker.model.revisions
    else:
        assert joined.slots() == {"p1": "ready"}


# What fails outside of any one change.


class Failing:
    """A callable that raises so many times, or always where `times` is negative."""

    def __init__(self, inner: Callable[..., None], times: int) -> None:
        self._inner = inner
        self.times = times
        self.calls = 0

    def __call__(self, *arguments: Any) -> None:
        self.calls += 1
        if self.times:
            self.times -= 1
            raise RuntimeError("injected")
        self._inner(*arguments)


def run(joined: Joined) -> None:
    """As supervision does it: the worker is run again after an error."""
    for _ in range(4):
        try:
            joined.do()
        except RuntimeError:
            continue


@pytest.mark.parametrize("part", ["_send", "_probe", "_before_batch"])
def test_a_turn_that_fails_loses_nothing(part: str) -> None:
    world = World()
    world.truth["list"] = {pod: seen(pod, PodStatus.PENDING, probe=True) for pod in ("p1", "p2")}
    world.do(*world.truth["list"].values())
    failing = Failing(getattr(world.worker, part), 1)
    setattr(world.worker, part, failing)
    world.truth["list"]["p3"] = seen("p3", PodStatus.PENDING, probe=True)
    world.worker.submit(world.truth["list"]["p3"])
    world.worker.submit(Probed(KEY, "p1"))
    del world.truth["list"]["p2"]
    world.worker.submit(PodGone(KEY, "list", "p2"))
    with pytest.raises(RuntimeError, match="injected"):
        world.worker.turn()
    run(world)
    assert world.outcome() == ("", {"p1": "ready", "p3": "pending"})
    assert world.asked.keys() == {"p3"}
    assert world.worker._resync.due(world.clock.now()) == []


def test_a_turn_that_fails_loses_no_end_of_a_revision() -> None:
    world = World()
    world.truth["list"] = {"p1": seen("p1", PodStatus.PENDING, probe=True)}
    world.do(world.truth["list"]["p1"])
    world.worker._send = Failing(world.worker._send, 1)
    world.exists = False
    world.worker.submit(RevisionGone(KEY))
    with pytest.raises(RuntimeError, match="injected"):
        world.worker.turn()
    run(world)
    assert (world.tables.throttlers, world.asked, world.worker.model.sent) == ({}, {}, {})


def test_who_submits_hears_of_no_error_of_ours() -> None:
    world = World()
    world.truth["list"] = {"p1": seen("p1")}
    world.worker.submit(world.truth["list"]["p1"])
    world.worker.queue._superseded = Failing(lambda key: None, 1)
    world.worker.submit(world.listed("list"))
    assert len(world.worker.queue) == 0, "the list has not come in, and what it replaces is out"
    run(world)
    assert world.slots() == {"p1": "ready"}, "its source was asked"


def test_a_source_that_raises_when_it_is_asked_keeps_nobody_else_waiting() -> None:
    joined = Joined()
    other = "ns/other"
    joined.do(RevisionSet(SPEC), seen("p1"), RevisionSet(type(SPEC)(key=other)))
    dirty = Failing(joined.worker._source_dirty, -1)
    joined.worker._source_dirty = dirty
    joined.worker._schedule_resync(KEY, RuntimeError("something was lost"))
    for number in range(100):
        joined.do(seen(f"o{number}", key=other))
        joined.clock.pass_time(1.0)
    assert len(joined.slots(other)) == 100
    assert 3 < dirty.calls < 15, "less and less often"
    dirty.times = 0
    joined.clock.pass_time(PANIC_RESET_AFTER_S)
    joined.do()
    assert joined.dirty == [("", KEY)] and len(joined.worker._resync) == 0


def test_whoever_waits_for_a_change_that_was_lost_hears_of_it() -> None:
    async def scenario() -> list[ChangeOutcome]:
        joined = Joined()
        joined.do(RevisionSet(SPEC))
        joined.worker._before_batch = Failing(joined.worker._before_batch, 1)
        kept = joined.worker.submit_with_outcome(seen("p1"))
        with pytest.raises(RuntimeError):
            joined.worker.turn()
        send, joined.worker._send = joined.worker._send, Failing(joined.worker._send, 1)
        with pytest.raises(RuntimeError):
            joined.worker.turn()
        joined.worker._send = send
        joined.worker.submit(seen("p2"))
        joined.worker.queue._superseded = Failing(lambda key: None, 1)
        lost = joined.worker.submit_with_outcome(PodsListed(KEY, "list", (seen("p2"),)))
        run(joined)
        assert kept.done() and lost.done()
        return [kept.result(), lost.result()]

    assert asyncio.run(scenario()) == [ChangeOutcome.APPLIED, ChangeOutcome.SET_ASIDE]


def test_a_queue_that_failed_half_way_gives_everything_out_after_it_was_mended() -> None:
    queue = ChangeQueue(100)
    changes = [seen(f"p{number}") for number in range(4)]
    for change in changes:
        queue.put(change)
    del queue._of_revisions[KEY][(KEY, "pod", "list", "p1")]  # as an exception between two lines leaves it
    with pytest.raises(KeyError):
        queue.take(3)
    assert queue.taken == changes[:2], "whoever failed can see what it had taken"
    queue.mend()
    assert queue.take(9) == changes[2:]
    assert queue.taken == changes[2:] and len(queue) == 0
    assert queue.take_of(KEY) == []


def test_a_queue_that_failed_while_something_came_has_it_in_order_after_it_was_mended() -> None:
    queue = ChangeQueue(100)
    changes = [seen(f"p{number}") for number in range(4)]
    for change in changes:
        queue.put(change)
    queue._newest = queue._oldest = None  # as an exception between two lines leaves it
    queue.mend()
    queue.put(seen("p4"))
    assert queue.take(2) == changes[:2]
    assert queue.take_of(KEY) == [*changes[2:], seen("p4")]
