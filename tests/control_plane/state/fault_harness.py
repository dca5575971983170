"""Raises at every line of `reduce` and `apply` in turn, and looks what is left: run as a program, in plain Python.

For each line that the story executes, in the order of execution, the story is told once with an exception at that line.
Afterwards the sources repeat themselves and the auditor looks; then nothing that was in flight may have been
disturbed, nobody may be lost, the other revision may not have noticed, and the table must be that of a world without
the exception.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from msgspec.structs import replace

from activator.control_plane.state import difference, health, model, reduce, repair
from activator.control_plane.state.supervision import PANIC_BACKOFF_MAX_S
from activator.data_plane import apply, rebuild
from activator.messages import (
    Change,
    Listed,
    PodGone,
    PodStatus,
    Probed,
    RevisionSet,
    SlotDrained,
    Sweep,
)
from lb.tracker import DRAINING, EMPTY, STATE_NAMES
from tests.control_plane.state.state_fakes import KEY, SPEC, Joined, seen
from tests.data_plane.throttle.throttle_fakes import Request

FILES = {module.__file__ for module in (apply, difference, health, model, rebuild, reduce, repair)}
OTHER = "ns/other"
LAST_OTHERS = Listed(OTHER, "list", (seen("o1", key=OTHER),))
LAST_WORDS = Listed(KEY, "list", (seen("p1"), seen("p3"), seen("p4", PodStatus.NOT_READY)))


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
                self.where = f"{frame.f_code.co_name}, line {frame.f_lineno}"
                raise InjectedError(self.where)
        return self._local


class Story:
    """One revision with requests in flight and in line, another beside it, and much that happens to the first."""

    def __init__(self) -> None:
        self.joined = Joined()
        self.joined.do(RevisionSet(SPEC), seen("p1"), seen("p2"), seen("p3"))
        self.joined.do(RevisionSet(replace(SPEC, key=OTHER)), seen("o1", key=OTHER))
        self.held = [self._ask(KEY) for _ in range(6)]
        self.waiting = [self._ask(KEY) for _ in range(2)]
        self.other = [self._ask(OTHER) for _ in range(3)]
        assert [request.ends for request in self.held] == [["granted"]] * 6

    def _ask(self, key: str) -> Request:
        request = Request(self.joined.throttler(key))
        request.ask(self.joined.clock.now())
        return request

    def tell(self, *changes: Change) -> None:
        """As the program's supervision does it: a worker that raised is run again."""
        for change in changes:
            self.joined.worker.submit(change)
        for _ in range(5):
            try:
                self.joined.do()
                break
            except InjectedError:
                continue
        self.joined.clock.pass_time(0.5)

    def happen(self) -> None:
        self.tell(seen("p4"))
        self.tell(seen("p4", PodStatus.NOT_READY), seen("o2", key=OTHER))
        found = self.joined.found
        self.tell(*found("dead", "p1"), *found("struck", "p3"))
        self.tell(Probed(KEY, "p1"), *found("served", "p3"))
        self.tell(*found("passed", "p1"), RevisionSet(replace(SPEC, container_concurrency=3)))
        self.tell(PodGone(KEY, "list", "p2"), PodGone(OTHER, "list", "o2"))
        self.joined.tables.distrust(KEY, "told so")
        self.tell(Sweep(KEY), seen("p2"))
        self.tell(LAST_WORDS)

    def calm_down(self) -> None:
        """Backoffs end, the sources repeat themselves, the auditor looks twice."""
        for _ in range(3):
            self.joined.clock.pass_time(PANIC_BACKOFF_MAX_S)
            self.tell(RevisionSet(replace(SPEC, container_concurrency=3)), LAST_WORDS, LAST_OTHERS)
            pods = self.joined.worker.model.revisions[KEY].pods.values()
            self.tell(*(Probed(KEY, pod.identity) for pod in pods if pod.wants_probe()))
            pods = self.joined.worker.model.revisions[KEY].pods.values()
            self.tell(*(report for pod in pods for report in self.joined.found("passed", pod.identity)))
            for key in (KEY, OTHER):
                self.joined.tables._changed.add(key)
                self.joined.tables._restructured.add(key)
            self.joined.auditor.expired(self.joined.clock.now())
            self.tell()

    def end(self) -> None:
        """Every request that was granted ends well, once."""
        for request in [*self.held, *self.waiting, *self.other]:
            while request.lease is not None:
                request.release()
                drained = [event for event in self.joined.heard.events if event[0] == "drained"]
                self.joined.heard.events.clear()
                self.tell(*(SlotDrained(KEY, int(event[1]), int(event[2])) for event in drained))

    def live(self, key: str) -> set[tuple[str, str, int]]:
        table = self.joined.throttler(key).table
        return {
            (one.identity, STATE_NAMES[one.state], int(one.limit))
            for one in table.slots[: table.length]
            if one.state not in {EMPTY, DRAINING}
        }


def told(at: int) -> tuple[Story, Injector]:
    """The story with an exception at so many lines from its beginning."""
    story, injector = Story(), Injector(at)
    before: Callable[..., Any] | None = sys.gettrace()
    sys.settrace(injector)
    try:
        story.happen()
    except InjectedError:
        # Where nothing of ours stands above: the caller was the test, in the program it is the loop, which goes on.
        pass
    finally:
        sys.settrace(before)
    story.calm_down()
    return story, injector


def check(story: Story, calm: Story) -> None:
    assert not story.joined.tables.distrusted
    assert not story.joined.worker.parked
    assert story.joined.worker.illegal_totals == {}
    for key in (KEY, OTHER):
        throttler = story.joined.throttler(key)
        throttler.table.check_invariants()
        assert throttler.failure is None
        assert throttler.table.in_flight == len(throttler.leases)
        assert story.live(key) == calm.live(key), f"{story.live(key)}, expected {calm.live(key)}"
    assert [request.ends for request in story.held] == [["granted"]] * 6, "a request in flight was disturbed"
    assert all(request.ends in ([], ["granted"], ["revision_failed"]) for request in story.waiting)
    assert [request.ends for request in story.other[:2]] == [["granted"]] * 2
    story.end()
    assert all(len(request.ends) == 1 for request in [*story.held, *story.waiting, *story.other]), "somebody was lost"
    assert all(story.joined.throttler(key).table.in_flight == 0 for key in (KEY, OTHER))


def main() -> None:
    logging.disable(logging.CRITICAL)
    calm, counter = told(0)
    lines = counter.lines
    check(told(0)[0], calm)
    failed = 0
    for at in range(1, lines + 1):
        story, injector = told(at)
        assert injector.where, f"nothing was raised at {at}"
        try:
            check(story, calm)
        except Exception as error:
            failed += 1
            print(f"{injector.where}: {type(error).__name__}: {error}")
    print(f"{lines} lines, {failed} failed")


if __name__ == "__main__":
    main()
