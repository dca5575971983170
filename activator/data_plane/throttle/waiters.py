"""Waiting requests, the chains and heaps they stand in (intrusive, by arrival), and the interface of a line.

Rules
  1. A waiter stands in at most one chain or heap, and ends in exactly one way: granted, refused, or taken out by its
     owner.
  2. `arrival` orders both. Every request is numbered when it first asks for a slot, whether it must wait or not; one
     that is tried again on another pod keeps its number, and so its place.
  3. A waiter knows its lane, a lane its line: code that takes a waiter out needs to know neither.
  4. A line says which waiter is first and nothing else: it grants, refuses and times none. Its `first` names the same
     waiter until one joins or leaves; the throttler then takes that waiter and no other.
  5. Each step of a line costs the same however many wait: O(1), or O(levels) where there are levels; for those that
     come back O(log n), n of those that came back.
"""

from __future__ import annotations

from mypy_extensions import i64, mypyc_attr

from activator.codec.message import RequestHead
from activator.data_plane.throttle.leases import Lease, LeaseHolder
from activator.runtime.clock import NEVER
from activator.runtime.reasons import Reason


@mypyc_attr(allow_interpreted_subclasses=True)
class Waiter(LeaseHolder):
    """A request that may have to wait. Plain methods, never a future: a grant cannot be lost between two turns."""

    def __init__(self) -> None:
        super().__init__()
        self.pick_key: i64 = 0  # what the policy may know the request by; 0: nothing
        self.arrival: int = 0  # 0: has not asked for a slot yet
        self.line_number: int = 0  # its arrival at the owner, where another member owns the revision; 0: not known
        self.is_remote: bool = False  # it waits at another member
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
        self.heap_place: int = 0  # while it stands in a heap
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

    def refused(self, reason: Reason, detail: str) -> None:
        """The wait is over without a slot."""
        raise NotImplementedError


class Chain:
    """A doubly linked list of waiters."""

    def __init__(self) -> None:
        self.first: Waiter | None = None
        self.last: Waiter | None = None

    def append(self, waiter: Waiter) -> None:
        """To the end: no waiter in the chain arrived later."""
        assert not waiter.in_line
        last = self.last
        waiter.line_prev = last
        if last is None:
            self.first = waiter
        else:
            last.line_next = waiter
        self.last = waiter
        waiter.chain = self
        waiter.in_line = True

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


class Heap:
    """A binary heap of waiters, the first to arrive on top; each knows its place, so that any can be taken out.

    For those that join in any order: in a chain the place of each was searched for (44 us, where 20,000 came back in
    random order).
    """

    def __init__(self) -> None:
        self.waiters: list[Waiter] = []

    def first(self) -> Waiter | None:
        """The waiter that arrived first."""
        return self.waiters[0] if self.waiters else None

    def add(self, waiter: Waiter) -> None:
        """To the place that its arrival gives."""
        assert not waiter.in_line
        waiter.in_line = True
        self.waiters.append(waiter)
        self._rise(waiter, len(self.waiters) - 1)

    def remove(self, waiter: Waiter) -> None:
        """Out; the waiter must be in this heap."""
        waiters = self.waiters
        place = waiter.heap_place
        assert waiters[place] is waiter
        waiter.in_line = False
        last = waiters.pop()
        if last is waiter:
            return
        if last.arrival < waiter.arrival:
            self._rise(last, place)
        else:
            self._sink(last, place)

    def _rise(self, waiter: Waiter, place: int) -> None:
        waiters = self.waiters
        while place > 0:
            above = waiters[(place - 1) // 2]
            if above.arrival < waiter.arrival:
                break
            waiters[place] = above
            above.heap_place, place = place, (place - 1) // 2
        waiters[place] = waiter
        waiter.heap_place = place

    def _sink(self, waiter: Waiter, place: int) -> None:
        waiters = self.waiters
        while 2 * place + 1 < len(waiters):
            child = 2 * place + 1
            below = waiters[child]
            if child + 1 < len(waiters) and waiters[child + 1].arrival < below.arrival:
                child += 1
                below = waiters[child]
            if waiter.arrival < below.arrival:
                break
            waiters[place] = below
            below.heap_place, place = place, child
        waiters[place] = waiter
        waiter.heap_place = place


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
    """First come, first served: the chain of new waiters, and the heap of those that came back.

    A waiter that comes back may have arrived before or after any other.
    """

    def __init__(self, line: WaitingLine) -> None:
        self.line = line
        self.length: int = 0
        self._fresh: Chain = Chain()
        self._returned: Heap = Heap()

    def first(self) -> Waiter | None:
        """The waiter that arrived first."""
        returned = self._returned.first()
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
        self._returned.add(waiter)
        waiter.lane = self
        self.length += 1

    def remove(self, waiter: Waiter) -> None:
        assert waiter.lane is self
        chain = waiter.chain
        if chain is None:
            self._returned.remove(waiter)
        else:
            chain.remove(waiter)
        waiter.lane = None
        self.length -= 1

    def waiters(self) -> list[Waiter]:
        """All of them, in no particular order."""
        found = list(self._returned.waiters)
        waiter = self._fresh.first
        while waiter is not None:
            found.append(waiter)
            waiter = waiter.line_next
        return found
