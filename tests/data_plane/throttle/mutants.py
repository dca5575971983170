"""Deliberate bugs, each put into the plain throttler of a process of its own: a judge that lets one pass is blind.

    ACTIVATOR_COMPILE=0 python -m tests.data_plane.throttle.mutants NAME

Prints what the trace found and exits with 0 when it found something, with 1 when it did not.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from activator.data_plane.throttle.disciplines import FairQueue, FifoQueue, PriorityQueue
from activator.data_plane.throttle.queue import RevisionQueue
from activator.data_plane.throttle.revision import RevisionThrottler
from activator.data_plane.throttle.waiters import SubQueue
from bench.trace import Trace
from bench.trace_world import DeliberateError, ViolationError
from lb.tracker import PodTracker

EVENTS = 30_000
Bug = Callable[[], None]


def patch(owner: type, name: str, replacement: Callable[..., Any]) -> None:
    setattr(owner, name, replacement)


def newcomers_overtake() -> None:
    """try_acquire does not look whether anybody waits."""
    honest = RevisionThrottler.try_acquire

    def try_acquire(self: RevisionThrottler, *arguments: Any) -> Any:
        queue = self.queue
        waiters, queue.waiters = queue.waiters, FifoQueue()
        try:
            return honest(self, *arguments)
        finally:
            queue.waiters = waiters

    patch(RevisionThrottler, "try_acquire", try_acquire)


def a_grant_that_raises_keeps_its_slot() -> None:
    """The error is swallowed, the lease forgotten."""

    def grant(self: RevisionThrottler, waiter: Any, lease: Any) -> None:
        try:
            waiter.granted(lease)
        except DeliberateError as error:
            self._errors.raised(error)

    patch(RevisionThrottler, "_grant", grant)


def a_retry_goes_to_the_end() -> None:
    """A request that is tried again loses its place."""

    def add_again(self: SubQueue, waiter: Any) -> None:
        waiter.arrival = 1 << 40
        self.add(waiter)

    patch(SubQueue, "add_again", add_again)


def what_one_turn_leaves_over_is_forgotten() -> None:
    """After `grants_per_turn_max` hand-overs nobody goes on."""
    patch(RevisionThrottler, "_pump_soon", lambda self: None)


def a_slot_too_many() -> None:
    """A pod is picked at its limit as well."""

    def may_take_one(self: PodTracker) -> bool:
        return self.state in {2, 4} and self.in_flight <= self.limit and self.suspect_until_s == 0.0

    patch(PodTracker, "may_take_one", may_take_one)


def who_leaves_is_still_counted() -> None:
    """A cancelled waiter goes on counting as held."""

    def cancel(self: RevisionQueue, waiter: Any) -> None:
        if waiter.is_queued:
            self._remove_and_notify(waiter)

    patch(RevisionQueue, "cancel", cancel)


def the_lowest_starve() -> None:
    """Waiting counts for nothing."""
    honest = PriorityQueue.__init__
    patch(PriorityQueue, "__init__", lambda self, levels, ageing_s, make_level: honest(self, levels, 1e9, make_level))


def a_share_costs_nothing() -> None:
    """The key whose turn it is keeps it."""
    patch(FairQueue, "take", FairQueue.leave)


def the_old_line_is_dropped() -> None:
    """Another discipline begins with an empty line."""
    honest = RevisionThrottler.reconfigure

    def reconfigure(self: RevisionThrottler, spec: Any) -> None:
        if spec.queue.discipline != self.spec.queue.discipline:
            self.queue.waiters = FifoQueue()
        honest(self, spec)

    patch(RevisionThrottler, "reconfigure", reconfigure)


def a_release_wakes_nobody() -> None:
    """The slot that came free waits for the next event."""
    honest = RevisionThrottler.release

    def release(self: RevisionThrottler, *arguments: Any) -> None:
        self._pumping, before = True, self._pumping
        try:
            honest(self, *arguments)
        finally:
            self._pumping = before

    patch(RevisionThrottler, "release", release)


MUTANTS: dict[str, Bug] = {
    bug.__name__: bug
    for bug in (
        newcomers_overtake,
        a_grant_that_raises_keeps_its_slot,
        a_retry_goes_to_the_end,
        what_one_turn_leaves_over_is_forgotten,
        a_slot_too_many,
        who_leaves_is_still_counted,
        the_lowest_starve,
        a_share_costs_nothing,
        the_old_line_is_dropped,
        a_release_wakes_nobody,
    )
}


def main(name: str) -> int:
    if name != "none":
        MUTANTS[name]()
    trace = Trace(7)
    try:
        trace.run(EVENTS)
    except (ViolationError, AssertionError) as error:
        sys.stdout.write(f"event {trace.events}: {error}\n")
        return 0
    sys.stdout.write("nothing was found\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
