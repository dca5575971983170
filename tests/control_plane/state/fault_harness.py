"""Raises at every line of the state worker, `reduce`, `apply`, the auditor and so on in turn, and looks what is left.

    ACTIVATOR_COMPILE=0 python -m tests.control_plane.state.fault_harness [STEP]

Run as a program, in plain Python. For each line that the story executes, in the order of execution, the story is told
once with an exception at that line; with a STEP, for each STEPth line. Nobody repeats anything by himself: sources say
again what they know when they are asked, probes answer until they are stopped, the auditor looks every few seconds, and
a worker that raised is run again. Within RECOVERY_S, nothing that was in flight may have been disturbed, nobody may be
lost, the other revision may not have noticed, and the table must be that of a world without the exception.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from msgspec.structs import replace

from activator.config.specs import RevisionSpec
from activator.control_plane.state import (
    address_index,
    addresses,
    difference,
    health,
    lifecycle,
    model,
    parked,
    queue,
    records,
    reduce,
    repair,
    resync,
    supervision,
    tally,
    worker,
)
from activator.control_plane.state.worker import CONFIRM_WITHIN_S
from activator.data_plane.tables import apply, audit, drains, empty_tables, rebuild, suspicions
from activator.data_plane.tables.audit import AUDIT_INTERVAL_S
from activator.messages import (
    Change,
    PodGone,
    PodsListed,
    Probed,
    ProbeOrder,
    RevisionGone,
    RevisionSet,
    SetProbes,
    SlotDrained,
    StartProbe,
    Sweep,
)
from lb.tracker import DRAINING, EMPTY, STATE_NAMES
from tests.control_plane.state.state_fakes import KEY, SPEC, Joined, seen
from tests.data_plane.throttle.throttle_fakes import Request

MODULES = (
    *(address_index, addresses, difference, health, lifecycle, model, parked, queue, records, reduce, repair, resync),
    *(supervision, tally, worker),
    *(apply, audit, drains, empty_tables, rebuild, suspicions),
)
FILES = {module.__file__ for module in MODULES}
OTHER = "ns/other"
LATE = "ns/late"  # comes and goes
NARROW = replace(SPEC, container_concurrency=3)
STEP_S = 0.5
RECOVERY_S = CONFIRM_WITHIN_S + 4.0 * AUDIT_INTERVAL_S


class InjectedError(RuntimeError):
    """What is raised."""


class Injector:
    """Counts the lines of FILES that run, and raises at the one that it is told; 0: at none."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.lines = 0
        self.where = ""

    def __call__(self, frame: FrameType, event: str, argument: object) -> Any:
        return self._local if frame.f_code.co_filename in FILES else None

    def _local(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "line":
            self.lines += 1
            if self.lines == self.at:
                self.where = f"{frame.f_code.co_filename.rpartition('/')[2]}, {frame.f_code.co_name}, {frame.f_lineno}"
                raise InjectedError(self.where)
        return self._local


class Program(Joined):
    """Worker, data plane and auditor as the program joins them; sources and probes that do what is asked of them."""

    def __init__(self) -> None:
        super().__init__()
        self.heard.on_refused = self.tables.suspected
        self.specs: dict[str, RevisionSpec] = {}
        self.lists: dict[str, PodsListed] = {}
        self.asked: dict[tuple[str, str], StartProbe] = {}
        self.silent: set[str] = set()  # pods that do not answer
        self.aftermath: list[Exception] = []
        self.worker._probe = self._order
        self.auditor.arm()

    # --- what stands around the worker ---

    def _order(self, orders: list[ProbeOrder]) -> None:
        for order in orders:
            if isinstance(order, SetProbes):
                for name in [name for name in self.asked if name[0] == order.key]:
                    del self.asked[name]
                self.asked.update({(one.key, one.identity): one for one in order.pods})
            elif isinstance(order, StartProbe):
                self.asked[order.key, order.identity] = order
            else:
                self.asked.pop((order.key, order.identity), None)

    def source_dirty(self, source: str, key: str) -> None:
        if key in self.specs:
            self.say(RevisionSet(self.specs[key]), self.lists.get(key, PodsListed(key, "list", ())))
        else:
            self.say(RevisionGone(key))

    def say(self, *changes: Change) -> None:
        """As a source submits: where that itself raises, it is asked later, as after every error of its own."""
        for change in changes:
            try:
                self.worker.submit(change)
            except InjectedError:
                self.clock.call_later(1.0, lambda key=change.key: self.source_dirty("", key))  # type: ignore[misc]

    def turn(self, worker_turns: int = 3) -> None:
        """One turn of the loop, and of the tasks that wait in it."""
        told = list(self.hooks.told)
        self.hooks.told.clear()  # the auditor has this very list
        reports, self.heard.reports = self.heard.reports, []
        drained = [event for event in self.heard.events if event[0] == "drained"]
        self.heard.events.clear()
        expired, self.hooks.expired = self.hooks.expired, []
        for message in (
            *told,
            *reports,
            *(SlotDrained(KEY, int(slot), int(generation)) for _, slot, generation in drained),
            *(SlotDrained(*one, forced=True) for one in expired),
        ):
            self._try(lambda message=message: self.worker.submit(message))  # type: ignore[misc]
        for _ in range(worker_turns):
            self._try(self.worker.turn)
        self._try(self.clock.turn)

    def pass_time(self, seconds: float) -> None:
        for _ in range(round(seconds / STEP_S)):
            self._try(lambda: self.clock.pass_time(STEP_S))
            self._try(self.worker.rebuild_unconfirmed)
            for order in list(self.asked.values()):
                if order.identity not in self.silent:
                    self._try(lambda order=order: self.worker.submit(Probed(*_name(order))))  # type: ignore[misc]
            self.turn()

    def _try(self, call: Callable[[], object]) -> None:
        """The loop goes on, and supervision runs what raised again."""
        try:
            call()
        except InjectedError:
            pass
        except Exception as error:  # what follows from it
            self.aftermath.append(error)


def _name(order: StartProbe) -> tuple[str, str, str]:
    return order.key, order.identity, order.address


class Story:
    """One revision with requests in flight and in line, another beside it, and much that happens to the first."""

    def __init__(self) -> None:
        self.joined = joined = Program()
        joined.worker.model.renewed_at_once = 2  # a table of three pods comes in parts
        joined.specs = {KEY: SPEC, OTHER: replace(SPEC, key=OTHER)}
        joined.lists = {
            KEY: PodsListed(KEY, "list", (seen("p1"), seen("p2"), seen("p3"))),
            OTHER: PodsListed(OTHER, "list", (seen("o1", key=OTHER),)),
        }
        for key in (KEY, OTHER):
            joined.source_dirty("", key)
        joined.pass_time(1.0)
        self.held = [self._ask(KEY) for _ in range(6)]
        self.waiting = [self._ask(KEY) for _ in range(2)]
        self.other = [self._ask(OTHER) for _ in range(3)]
        assert [request.ends for request in self.held] == [["granted"]] * 6
        self.recovery_s = 0.0

    def _ask(self, key: str) -> Request:
        request = Request(self.joined.throttler(key))
        request.ask(self.joined.clock.now())
        return request

    def lists(self, key: str, *pods: Any) -> None:
        self.joined.lists[key] = PodsListed(key, "list", pods)
        self.joined.say(self.joined.lists[key])
        self.joined.pass_time(STEP_S)

    def sets(self, spec: RevisionSpec) -> None:
        self.joined.specs[spec.key] = spec
        self.joined.say(RevisionSet(spec))

    def finds(self, kind: str, identity: str) -> None:
        self.joined.say(*self.joined.found(kind, identity))

    def happen(self) -> None:
        """What is said of pods is said as lists, which are repeated when they are asked for."""
        joined = self.joined
        p1, p2, p3, p4 = seen("p1"), seen("p2"), seen("p3"), seen("p4", probe=True)
        self.lists(KEY, p1, p2, p3, p4)
        self.sets(replace(SPEC, key=LATE))
        self.lists(LATE, seen("l1", key=LATE))
        joined.silent = {"p1"}
        self.finds("dead", "p1")
        self.finds("struck", "p3")
        joined.pass_time(STEP_S)
        self.finds("served", "p3")
        joined.silent.clear()
        joined.pass_time(2 * STEP_S)
        self.finds("passed", "p1")
        self.sets(NARROW)
        self.lists(KEY, p1, p3, p4, seen("uid", address=p4.address), seen("p5", address=p2.address))
        self.held[0].release()
        joined.say(Sweep(KEY))
        joined._try(lambda: joined.tables.distrust(KEY, "told so"))
        joined.pass_time(STEP_S)
        del joined.specs[LATE], joined.lists[LATE]
        joined.say(RevisionGone(LATE))
        joined.say(PodGone(OTHER, "list", "o9"))
        self.lists(KEY, p1, p3, p4)
        joined.pass_time(AUDIT_INTERVAL_S)

    def recover(self, calm: Story | None) -> None:
        """Until it is as calm as the world without an exception, for RECOVERY_S at the most."""
        joined = self.joined
        begun_s = joined.clock.now()
        until_s = begun_s + RECOVERY_S
        while joined.clock.now() < until_s and not (calm is not None and self.is_like(calm)):
            joined.pass_time(STEP_S)
            if KEY in joined.tables.throttlers:
                table = joined.throttler().table
                for pod in list(table.slots[: table.length]):
                    joined.say(*joined.found("passed", pod.identity))  # requests come, and trials with them
        self.recovery_s = joined.clock.now() - begun_s

    def is_like(self, calm: Story) -> bool:
        """Nothing is left to be done."""
        joined = self.joined
        worker = joined.worker
        if joined.tables.distrusted or worker.parked or len(worker.queue) or len(worker._resync) or joined.asked:
            return False
        known = worker.model.revisions.keys()
        if worker.model.unconfirmed or not joined.tables.throttlers.keys() == known == {KEY, OTHER}:
            return False
        return all(self.live(key) == calm.live(key) for key in (KEY, OTHER)) and not self.drained()

    def drained(self) -> list[str]:
        """Pods whose slots have not been freed though they carry nothing."""
        return [
            one.identity
            for throttler in self.joined.tables.throttlers.values()
            for one in throttler.table.slots[: throttler.table.length]
            if one.state == DRAINING and one.in_flight == 0
        ]

    def end(self) -> None:
        """Every request that was granted ends well, once."""
        for request in [*self.held, *self.waiting, *self.other]:
            while request.lease is not None:
                request.release()
                self.joined.turn()
        self.joined.pass_time(2.0 * AUDIT_INTERVAL_S)

    def live(self, key: str) -> set[tuple[str, str, int]]:
        table = self.joined.throttler(key).table
        return {
            (one.identity, STATE_NAMES[one.state], int(one.own_limit))
            for one in table.slots[: table.length]
            if one.state not in {EMPTY, DRAINING}
        }


def told(at: int, calm: Story | None = None) -> tuple[Story, Injector]:
    """The story with an exception at so many lines from its beginning."""
    story, injector = Story(), Injector(at)
    before: Callable[..., Any] | None = sys.gettrace()
    sys.settrace(injector)
    try:
        story.happen()
    finally:
        sys.settrace(before)
    story.recover(calm)
    return story, injector


def check(story: Story, calm: Story) -> None:
    joined = story.joined
    assert not joined.tables.distrusted, f"distrusted: {joined.tables.distrusted}"
    assert not joined.worker.parked, f"parked: {joined.worker.parked}"
    assert joined.worker.illegal_totals == {}
    assert len(joined.worker.queue) == len(joined.worker._resync) == 0
    assert joined.tables.throttlers.keys() == joined.worker.model.revisions.keys() == {KEY, OTHER}
    assert joined.asked == {}, f"still asked: {joined.asked}"
    assert joined.worker.model.unconfirmed == {}, "what was sent was not confirmed"
    for key in (KEY, OTHER):
        throttler = joined.throttler(key)
        throttler.table.check_invariants()
        assert throttler.queue.failure is None, throttler.queue.failure
        assert throttler.table.in_flight == len(throttler.leases)
        assert story.live(key) == calm.live(key), f"{story.live(key)}, expected {calm.live(key)}"
    assert [request.ends for request in story.held] == [["granted"]] * 6, "a request in flight was disturbed"
    assert all(request.ends in ([], ["granted"], ["revision_failed"]) for request in story.waiting)
    assert [request.ends for request in story.other[:2]] == [["granted"]] * 2
    story.end()
    assert all(len(request.ends) == 1 for request in [*story.held, *story.waiting, *story.other]), "somebody was lost"
    for key in (KEY, OTHER):
        assert joined.throttler(key).table.in_flight == 0
    assert story.drained() == [], "a slot was never freed"


def main(step: int) -> int:
    logging.disable(logging.CRITICAL)
    calm, counter = told(0)
    lines = counter.lines
    check(told(0, calm)[0], calm)
    failed = 0
    longest_s = 0.0
    for at in range(1, lines + 1, step):
        story, injector = told(at, calm)
        assert injector.where, f"nothing was raised at {at}"
        try:
            check(story, calm)
        except Exception as error:
            failed += 1
            print(f"{injector.where}: {type(error).__name__}: {error}")
        longest_s = max(longest_s, story.recovery_s)
    print(f"the longest recovery took {longest_s:.1f} s")
    print(f"{lines} lines, {failed} failed")
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1))
