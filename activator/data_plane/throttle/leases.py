"""Leases: one reserved slot of one pod each, from the grant to the release; and all open ones of a revision.

A lease captures identity, address and generation when it is granted. After an `await` the slot may belong to another
pod; code that logs, traces or releases names the pod of the lease, never the one in the slot.

The open leases, all of them and those of each pod, are in chains through the leases themselves. In a dictionary of them
those of one pod were found by a walk of all (a second, where the drains of 10,000 pods took too long at once). It also
cost a request 37 ns more (acquire and release: 93 ns, now 56).

Rules
  1. A lease is in two chains from `open` to `close`: that of its revision, and that of the slot that it was granted.
  2. A slot that is freed drops its chain: leases that are still open are late from then on, and are in the revision's
     only.
  3. A closed lease refers to no other and to no holder: a request keeps its last lease, to name the pod.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, final

from mypy_extensions import mypyc_attr

from activator.runtime.clock import Deadline
from activator.runtime.reasons import Reason
from lb.ring import NO_LEASE, LeaseNode
from lb.tracker import PodTracker


@mypyc_attr(allow_interpreted_subclasses=True)
class LeaseHolder(Deadline):
    """Whom a slot was granted to: a request (waiters.py)."""

    def is_served(self, lease: Lease) -> bool:
        """Whether the slot is still in use: the request is at the pod, or waits for a connection to it."""
        return True

    def revoked(self, reason: Reason, detail: str) -> None:
        """The slot that was granted is taken back; the lease must be released before this returns."""
        raise NotImplementedError


@final
class Lease(LeaseNode):
    """`attachment` is what the data path hangs on the pod (its connection pool), as it was when granted."""

    def __init__(self, tracker: PodTracker, granted_s: float) -> None:
        # The chains; the base is not called, since these are all that it has.
        self.is_lease = True
        self.older = NO_LEASE
        self.newer = NO_LEASE
        self.pod_older = NO_LEASE
        self.pod_newer = NO_LEASE
        self.holder: LeaseHolder = NOBODY  # while it is open
        self.tracker = tracker
        self.generation: int = tracker.generation
        self.identity: str = tracker.identity
        self.address: str = tracker.address
        self.attachment: object | None = tracker.attachment
        self.granted_s = granted_s
        self.trial: bool = False  # granted to a RECOVERING pod, and nothing is found out yet: the outcome decides
        self.bars_trials: bool = False  # and while it lasts no other trial begins
        self.exempt: bool = False  # granted by an exempting rule, if need be beyond the pod's limit
        self.released: bool = False


NOBODY: Final = LeaseHolder()


@final
class Leases:
    """The open leases of one revision."""

    def __init__(self) -> None:
        self.count: int = 0
        self._newest: LeaseNode = NO_LEASE

    def open(self, lease: Lease, holder: LeaseHolder) -> None:
        lease.holder = holder
        self.count += 1
        newest = self._newest
        if newest.is_lease:
            lease.older = newest
            newest.newer = lease
        self._newest = lease
        _join_pod(lease)

    def close(self, lease: Lease) -> None:
        """The lease must be open."""
        lease.holder = NOBODY
        self.count -= 1
        older = lease.older
        if older.is_lease:
            older.newer = lease.newer
        if lease.newer.is_lease:
            lease.newer.older = older
            lease.newer = NO_LEASE
        else:
            self._newest = older
        lease.older = NO_LEASE
        leave_pod(lease)

    def move(self, lease: Lease, tracker: PodTracker) -> None:
        """Its pod has this slot now."""
        leave_pod(lease)
        lease.tracker = tracker
        lease.generation = tracker.generation
        _join_pod(lease)

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Lease]:
        """The oldest first; all as they are now, so that they may be closed meanwhile."""
        found: list[Lease] = []
        node = self._newest
        while node.is_lease:
            assert isinstance(node, Lease)
            found.append(node)
            node = node.older
        found.reverse()
        return iter(found)


def newest_of(tracker: PodTracker) -> Lease | None:
    """Of the pod in this slot."""
    node = tracker.leases
    if not node.is_lease:
        return None
    assert isinstance(node, Lease)
    return node


def next_older(lease: Lease) -> Lease | None:
    """Of the same pod."""
    node = lease.pod_older
    if not node.is_lease:
        return None
    assert isinstance(node, Lease)
    return node


def leave_pod(lease: Lease) -> None:
    """Take the lease out of its slot's chain; harmless for one that is late."""
    older = lease.pod_older
    if older.is_lease:
        older.pod_newer = lease.pod_newer
    if lease.pod_newer.is_lease:
        lease.pod_newer.pod_older = older
        lease.pod_newer = NO_LEASE
    elif lease.tracker.leases is lease:
        lease.tracker.leases = older
    lease.pod_older = NO_LEASE


def _join_pod(lease: Lease) -> None:
    tracker = lease.tracker
    newest = tracker.leases
    if newest.is_lease:
        lease.pod_older = newest
        newest.pod_newer = lease
    tracker.leases = lease
