"""Waiting requests, the chains they stand in (intrusive, by arrival, each step O(1)), and the interface of a line.

Rules
  1. A waiter stands in at most one chain, and ends in exactly one way: granted, refused, or taken out by its owner.
  2. `arrival` orders a chain. Every request is numbered when it first asks for a slot, whether it must wait or not; one
     that is tried again on another pod keeps its number, and so its place.
  3. A waiter knows its lane, a lane its line: code that takes a waiter out needs to know neither.
  4. A line says which waiter is first and nothing else: it grants, refuses and times none. Its `first` names the same
     waiter until one joins or leaves; the throttler then takes that waiter and no other.
  5. Each step of a line costs the same however many wait: O(1), or O(levels) where there are levels.
"""

from __future__ import annotations

from mypy_extensions import i64, mypyc_attr

from activator.codec.message import RequestHead
from activator.data_plane.throttle.lease import Lease
from activator.runtime.clock import NEVER, Deadline
from activator.runtime.errors import Reason


@mypyc_attr(allow_interpreted_subclasses=True)
class Waiter(Deadline):
    """A request that may have to wait. Plain methods, never a future: a grant cannot be lost between two turns."""

    def __init__(self) -> None:
        super().__init__()
        self.pick_key: i64 = 0  # what the policy may know the request by; 0: nothing
        self.arrival: int = 0  # 0: has not asked for a slot yet
        self.asked_s: float = 0.0  # when it did, in monotonic seconds; never before an earlier arrival
        # Where it stands, as its line wants it; written by the throttler when the request must wait.
        self.sorted: bool = False
        self.exempt: bool = False  # a rule lets it pass even when every pod is full
        self.level: int = 0  # priority: higher goes first
        self.share: bytes = b""  # fair: whose share it is taken from
        self.charge: int = 1  # fair: how much of it
        self.own_timeout_s: float = NEVER  # from its arrival, as the request itself wants it
        self.own_deadline_s: float = NEVER  # from its arrival: then the answer is of no use any more
        # The chain's and the line's.
        self.in_line: bool = False
        self.chain: Chain | None = None
        self.lane: Lane | None = None
        self.line_next: Waiter | None = None
        self.line_prev: Waiter | None = None
        self.avoided: Lease | None = None  # of the pod that has just failed the request: any other is better

    def request(self) -> RequestHead | None:
        """What is asked for, where disciplines, rules and timeouts look; None: nothing to look at."""
        return None

    def granted(self, lease: Lease) -> None:
        """A slot is reserved; the waiter must see to it that the lease is released exactly once."""
        raise NotImplementedError

    def is_served(self, lease: Lease) -> bool:
        """Whether the slot is still in use: the request is at the pod, or waits for a connection to it."""
        return True

    def refused(self, reason: Reason, detail: str) -> None:
        """The wait is over without a slot."""
        raise NotImplementedError

    def revoked(self, reason: Reason, detail: str) -> None:
        """The slot that was granted is taken back; the lease must be released before this returns."""
        raise NotImplementedError


class Chain:
    """A doubly linked list of waiters."""

    def __init__(self) -> None:
        self.first: Waiter | None = None
        self.last: Waiter | None = None

    def append(self, waiter: Waiter) -> None:
        """To the end."""
        self._link(waiter, self.last)

    def insert(self, waiter: Waiter) -> None:
        """To the place that its arrival gives.

        Walks from the end past later arrivals: O(1) for waiters in order of arrival, or each before all others.
        """
        before: Waiter | None = None
        first = self.first
        if first is not None and first.arrival < waiter.arrival:
            before = self.last
            while before is not None and before.arrival > waiter.arrival:
                before = before.line_prev
        self._link(waiter, before)

    def remove(self, waiter: Waiter) -> None:
        """Out; the waiter must be in this chain."""
        assert waiter.chain is self
        before = waiter.line_prev
        after = waiter.line_next
        if before is None:
            self.first = after
        else:
            before.line_next = after
        if after is None:
            self.last = before
        else:
            after.line_prev = before
        waiter.line_next = None
        waiter.line_prev = None
        waiter.chain = None
        waiter.in_line = False

    def _link(self, waiter: Waiter, before: Waiter | None) -> None:
        assert not waiter.in_line
        after = self.first if before is None else before.line_next
        waiter.line_prev = before
        waiter.line_next = after
        if before is None:
            self.first = waiter
        else:
            before.line_next = waiter
        if after is None:
            self.last = waiter
        else:
            after.line_prev = waiter
        waiter.chain = self
        waiter.in_line = True


class WaitingLine:
    """The order of waiters, by discipline. `length` counts all that stand in it."""

    def __init__(self) -> None:
        self.length: int = 0

    def first(self) -> Waiter | None:
        """The waiter that is granted the next slot."""
        raise NotImplementedError

    def join(self, waiter: Waiter) -> None:
        """A waiter that has just arrived, or arrived after all that are there."""
        raise NotImplementedError

    def rejoin(self, waiter: Waiter) -> None:
        """Back into the old place: the slot that it was granted came to nothing."""
        raise NotImplementedError

    def leave(self, waiter: Waiter) -> None:
        """Out of the line without a slot; the waiter must be in it."""
        raise NotImplementedError

    def take(self, waiter: Waiter) -> None:
        """Out of the line with a slot; the waiter must be the first."""
        raise NotImplementedError

    def ahead_of(self, waiter: Waiter) -> int:
        """How many are certain to be granted before `waiter`, if it joined now: a lower bound."""
        raise NotImplementedError

    def waiters(self) -> list[Waiter]:
        """All waiters, in order of arrival. Walks the line."""
        raise NotImplementedError

    def shares(self) -> dict[str, object]:
        """What else there is to see of it; a few numbers, never names that clients choose."""
        return {}


class Lane:
    """First come, first served: the chain of new waiters, and the chain of those that came back.

    A waiter that comes back may have arrived before or after any other. With a chain of their own the first of both is
    one comparison, and many that come back at once walk past no waiter that only joined.
    """

    def __init__(self, line: WaitingLine) -> None:
        self.line = line
        self.length: int = 0
        self._fresh: Chain = Chain()
        self._returned: Chain = Chain()

    def first(self) -> Waiter | None:
        """The waiter that arrived first."""
        returned = self._returned.first
        fresh = self._fresh.first
        if returned is None:
            return fresh
        if fresh is None or returned.arrival < fresh.arrival:
            return returned
        return fresh

    def add(self, waiter: Waiter) -> None:
        """At the end: no waiter in the lane arrived later, but for those that came back."""
        self._fresh.append(waiter)
        waiter.lane = self
        self.length += 1

    def add_again(self, waiter: Waiter) -> None:
        """At the place that its arrival gives."""
        self._returned.insert(waiter)
        waiter.lane = self
        self.length += 1

    def remove(self, waiter: Waiter) -> None:
        chain = waiter.chain
        assert chain is not None and waiter.lane is self
        chain.remove(waiter)
        waiter.lane = None
        self.length -= 1

    def waiters(self) -> list[Waiter]:
        """All of them, in no particular order."""
        found: list[Waiter] = []
        for chain in (self._fresh, self._returned):
            waiter = chain.first
            while waiter is not None:
                found.append(waiter)
                waiter = waiter.line_next
        return found
