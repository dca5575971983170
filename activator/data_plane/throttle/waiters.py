"""Waiting requests, the linked lists and heaps that contain them (intrusive, by arrival), and the queue interface.

Rules
  1. A waiter is in at most one list or heap, and ends in exactly one way: granted, refused, or removed by its owner.
  2. `arrival` orders both. Every request gets a number when it first asks for a slot, whether it must wait or not. A
     request that is retried at another pod keeps its number and thereby its position.
  3. A waiter refers to its sub-queue, and the sub-queue to its queue, so that it can be removed without arguments.
  4. A queue only determines the first waiter: it does not grant, refuse or time out. `first` returns the same waiter
     until one joins or leaves; the throttler then takes that waiter and no other.
  5. The cost of a step does not depend on the number of waiters: O(1), or O(levels) with priorities. For waiters that
     rejoined it is O(log n), where n is their number; `insert` also takes a walk over the keys that wait.
"""

from __future__ import annotations

from mypy_extensions import i64, mypyc_attr

from activator.codec.message import RequestHead
from activator.data_plane.throttle.leases import Lease, LeaseHolder
from activator.data_plane.users import User
from activator.runtime.clock import NEVER
from activator.runtime.reasons import Reason


@mypyc_attr(allow_interpreted_subclasses=True)
class Waiter(LeaseHolder):
    """A request that may have to wait. Its methods are plain, not futures, so that no grant is lost between turns."""

    def __init__(self) -> None:
        super().__init__()
        self.pick_key: i64 = 0  # the key of the request for the policy; 0: none
        self.arrival: int = 0  # 0: has not asked for a slot yet
        self.arrival_at_owner: int = 0  # its arrival number at the member that owns the revision; 0: unknown
        self.user: User | None = None  # None if no keys are required
        self.is_remote: bool = False  # it waits at another member
        self.is_retry: bool = False  # a pod has failed the request
        self.never_waits: bool = False  # the request is rejected if no slot is free
        self.asked_s: float = 0.0  # when it asked for a slot, monotonic seconds; ascends with `arrival`
        # The inputs of the discipline; set by the queue when the request must wait.
        self.is_classified: bool = False
        self.exempt: bool = False  # a rule exempts it from the limits of the pods
        self.level: int = 0  # priority: higher levels go first
        self.share: bytes = b""  # fair: the key whose share is charged
        self.charge: int = 1  # fair: the amount charged
        self.own_timeout_s: float = NEVER  # how long the request asks to wait, in seconds from its arrival
        self.own_deadline_s: float = NEVER  # seconds from its arrival after which the response is of no use
        # Set by the list or heap, and by the sub-queue.
        self.is_queued: bool = False
        self.chain: Chain | None = None
        self.heap_index: int = 0  # the index in its heap
        self.sub_queue: SubQueue | None = None
        self.chain_next: Waiter | None = None
        self.chain_prev: Waiter | None = None
        self.avoided: Lease | None = None  # a lease of the pod that has failed the request; other pods are preferred

    def request(self) -> RequestHead | None:
        """Return the head for disciplines, rules and timeouts to inspect; None if there is none."""
        return None

    def granted(self, lease: Lease) -> None:
        """Use the reserved slot; the waiter must ensure that the lease is released exactly once."""
        raise NotImplementedError

    def refused(self, reason: Reason, detail: str) -> None:
        """End the request: its wait has ended without a slot."""
        raise NotImplementedError


class Chain:
    """A doubly linked list of waiters."""

    def __init__(self) -> None:
        self.first: Waiter | None = None
        self.last: Waiter | None = None

    def append(self, waiter: Waiter) -> None:
        """Append a waiter; no waiter in the list may have arrived later."""
        assert not waiter.is_queued
        last = self.last
        waiter.chain_prev = last
        if last is None:
            self.first = waiter
        else:
            last.chain_next = waiter
        self.last = waiter
        waiter.chain = self
        waiter.is_queued = True

    def remove(self, waiter: Waiter) -> None:
        """Remove a waiter, which must be in this list."""
        assert waiter.chain is self
        before = waiter.chain_prev
        after = waiter.chain_next
        if before is None:
            self.first = after
        else:
            before.chain_next = after
        if after is None:
            self.last = before
        else:
            after.chain_prev = before
        waiter.chain_next = None
        waiter.chain_prev = None
        waiter.chain = None
        waiter.is_queued = False


class Heap:
    """A binary heap of waiters by arrival. Each waiter stores its index, so that any of them can be removed.

    Used for waiters that rejoin in any order. With a list, the search for the position took 44 us when 20,000 waiters
    rejoined in random order.
    """

    def __init__(self) -> None:
        self.waiters: list[Waiter] = []

    def first(self) -> Waiter | None:
        """Return the waiter that arrived first; None if the heap is empty."""
        return self.waiters[0] if self.waiters else None

    def add(self, waiter: Waiter) -> None:
        """Insert a waiter at the position given by its arrival."""
        assert not waiter.is_queued
        waiter.is_queued = True
        self.waiters.append(waiter)
        self._rise(waiter, len(self.waiters) - 1)

    def remove(self, waiter: Waiter) -> None:
        """Remove a waiter, which must be in this heap."""
        waiters = self.waiters
        index = waiter.heap_index
        assert waiters[index] is waiter
        waiter.is_queued = False
        last = waiters.pop()
        if last is waiter:
            return
        if last.arrival < waiter.arrival:
            self._rise(last, index)
        else:
            self._sink(last, index)

    def _rise(self, waiter: Waiter, index: int) -> None:
        """Put the waiter at `index` or above it, and move the ancestors that arrived later down."""
        waiters = self.waiters
        while index > 0:
            parent = waiters[(index - 1) // 2]
            if parent.arrival < waiter.arrival:
                break
            waiters[index] = parent
            parent.heap_index, index = index, (index - 1) // 2
        waiters[index] = waiter
        waiter.heap_index = index

    def _sink(self, waiter: Waiter, index: int) -> None:
        """Put the waiter at `index` or below it, and move the descendants that arrived earlier up."""
        waiters = self.waiters
        while 2 * index + 1 < len(waiters):
            child = 2 * index + 1
            child_waiter = waiters[child]
            if child + 1 < len(waiters) and waiters[child + 1].arrival < child_waiter.arrival:
                child += 1
                child_waiter = waiters[child]
            if waiter.arrival < child_waiter.arrival:
                break
            waiters[index] = child_waiter
            child_waiter.heap_index, index = index, child
        waiters[index] = waiter
        waiter.heap_index = index


class WaiterQueue:
    """The order of waiters, by discipline. `length` is the number of all waiters."""

    def __init__(self) -> None:
        self.length: int = 0

    def first(self) -> Waiter | None:
        """Return the waiter that is granted the next slot; None if no request waits."""
        raise NotImplementedError

    def join(self, waiter: Waiter) -> None:
        """Add a waiter that arrived after all others."""
        raise NotImplementedError

    def rejoin(self, waiter: Waiter) -> None:
        """Add a waiter at its former position, because the slot that it was granted was not used."""
        raise NotImplementedError

    def insert(self, waiter: Waiter) -> None:
        """Add a waiter at the position given by its arrival; this queue has not granted it a slot."""
        raise NotImplementedError

    def leave(self, waiter: Waiter) -> None:
        """Remove a waiter without a slot; it must be in this queue."""
        raise NotImplementedError

    def take(self, waiter: Waiter) -> None:
        """Remove the first waiter, which gets a slot."""
        raise NotImplementedError

    def ahead_of(self, waiter: Waiter) -> int:
        """Return a lower bound of the number of waiters that would be granted before `waiter` if it joined now."""
        raise NotImplementedError

    def by_arrival(self) -> list[Waiter]:
        """Return all waiters in order of arrival; walks the queue."""
        raise NotImplementedError

    def weigh_users(self, weights: dict[bytes, int]) -> None:
        """Apply the weights of users to waiting requests and later ones."""

    def shares(self) -> dict[str, object]:
        """Return further figures for display: a few numbers, and no names that clients choose."""
        return {}


class SubQueue:
    """The waiters of a queue with one rank, in order of arrival: a list of new ones, and a heap of those that rejoined.

    A waiter that rejoins may have arrived before or after any other.
    """

    def __init__(self, queue: WaiterQueue) -> None:
        self.queue = queue
        self.length: int = 0
        self._new: Chain = Chain()
        self._rejoined: Heap = Heap()

    def first(self) -> Waiter | None:
        """Return the waiter that arrived first; None if there is none."""
        rejoined = self._rejoined.first()
        new = self._new.first
        if rejoined is None:
            return new
        if new is None or rejoined.arrival < new.arrival:
            return rejoined
        return new

    def add(self, waiter: Waiter) -> None:
        """Append a waiter that arrived after all others, except for those that rejoined."""
        self._new.append(waiter)
        waiter.sub_queue = self
        self.length += 1

    def add_again(self, waiter: Waiter) -> None:
        """Insert a waiter at the position given by its arrival."""
        self._rejoined.add(waiter)
        waiter.sub_queue = self
        self.length += 1

    def remove(self, waiter: Waiter) -> None:
        assert waiter.sub_queue is self
        chain = waiter.chain
        if chain is None:
            self._rejoined.remove(waiter)
        else:
            chain.remove(waiter)
        waiter.sub_queue = None
        self.length -= 1

    def waiters(self) -> list[Waiter]:
        """Return all waiters, in no particular order."""
        waiters = list(self._rejoined.waiters)
        waiter = self._new.first
        while waiter is not None:
            waiters.append(waiter)
            waiter = waiter.chain_next
        return waiters
