"""The line in which requests wait: intrusive, first in first out, every step O(1).

Rules
  1. A waiter stands in at most one line, and ends in exactly one way: granted, refused, or taken out by its owner.
  2. `arrival` orders the line. Every request is numbered when it first asks for a slot, whether it must wait or not;
     one that is tried again on another pod keeps its number, and so its place.
"""

from __future__ import annotations

from mypy_extensions import mypyc_attr

from activator.clock import Deadline
from activator.errors import Reason
from activator.throttle.lease import Lease


@mypyc_attr(allow_interpreted_subclasses=True)
class Waiter(Deadline):
    """A request that may have to wait. Plain methods, never a future: a grant cannot be lost between two turns."""

    def __init__(self) -> None:
        super().__init__()
        self.arrival: int = 0  # 0: has not asked for a slot yet
        self.line_next: Waiter | None = None
        self.line_prev: Waiter | None = None
        self.in_line: bool = False
        self.avoided: Lease | None = None  # of the pod that has just failed the request: any other is better

    def granted(self, lease: Lease) -> None:
        """A slot is reserved; whoever is granted must see to it that the lease is released exactly once."""
        raise NotImplementedError

    def refused(self, reason: Reason, detail: str) -> None:
        """The wait is over without a slot."""
        raise NotImplementedError

    def revoked(self, reason: Reason, detail: str) -> None:
        """The slot that was granted is taken back; the lease must be released before this returns."""
        raise NotImplementedError


class WaiterLine:
    """A doubly linked list of waiters."""

    def __init__(self) -> None:
        self.length: int = 0
        self.first: Waiter | None = None
        self._last: Waiter | None = None
        self._arrivals: int = 0

    def number(self, waiter: Waiter) -> None:
        """Give `waiter` the next arrival number."""
        self._arrivals += 1
        waiter.arrival = self._arrivals

    def join(self, waiter: Waiter) -> None:
        """To the end: the waiter has just been numbered."""
        assert not waiter.in_line
        assert waiter.arrival == self._arrivals
        self._insert(waiter, self._last)

    def rejoin(self, waiter: Waiter) -> None:
        """To the place that its arrival number gives: ahead of everyone who came later.

        Walks past earlier arrivals only, that is, past others that are being tried again.
        """
        assert not waiter.in_line
        before: Waiter | None = None
        after = self.first
        while after is not None and after.arrival < waiter.arrival:
            before = after
            after = after.line_next
        self._insert(waiter, before)

    def leave(self, waiter: Waiter) -> None:
        """Out of the line; harmless for one who is not in it."""
        if not waiter.in_line:
            return
        before = waiter.line_prev
        after = waiter.line_next
        if before is None:
            self.first = after
        else:
            before.line_next = after
        if after is None:
            self._last = before
        else:
            after.line_prev = before
        waiter.line_next = None
        waiter.line_prev = None
        waiter.in_line = False
        self.length -= 1

    def _insert(self, waiter: Waiter, before: Waiter | None) -> None:
        after = self.first if before is None else before.line_next
        waiter.line_prev = before
        waiter.line_next = after
        if before is None:
            self.first = waiter
        else:
            before.line_next = waiter
        if after is None:
            self._last = waiter
        else:
            after.line_prev = waiter
        waiter.in_line = True
        self.length += 1
