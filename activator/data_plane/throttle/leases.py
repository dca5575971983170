"""Leases: one reserved slot of one pod each, from the grant to the release; and all open leases of a revision.

A lease keeps the identity, address and generation of its grant. After an `await` the slot may belong to another pod, so
code that logs, traces or releases names the pod of the lease, never the pod in the slot.

The leases themselves are the nodes of two linked lists: the open leases of the revision, and those of each slot. With a
dictionary, finding the leases of one pod meant a walk over all of them (1 s for drains of 10,000 pods at once), and
acquire and release took 93 ns instead of 56 ns.

Rules
  1. From `open` to `close` a lease is in two lists: that of its revision, and that of the slot that it was granted.
  2. A slot that is freed drops its list. Leases that are still open are late from then on, and only in the revision's
     list.
  3. A closed lease refers to no other lease and to no holder, because a request keeps its last lease to name the pod.
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
    """The holder of a granted slot: a request (waiters.py)."""

    def is_served(self, lease: Lease) -> bool:
        """Return True if the slot is still in use: the request is at the pod, or waits for a connection to it."""
        return True

    def revoked(self, reason: Reason, detail: str) -> None:
        """Give up the slot, which is revoked; the lease must be released before this returns."""
        raise NotImplementedError


@final
class Lease(LeaseNode):
    """One reserved slot. `attachment`: the pod's connection pool at the time of the grant."""

    def __init__(self, tracker: PodTracker, granted_s: float) -> None:
        # The links of both lists. super().__init__ is not called, because it would only set these.
        self.is_lease = True
        self.older = NO_LEASE
        self.newer = NO_LEASE
        self.pod_older = NO_LEASE
        self.pod_newer = NO_LEASE
        self.holder: LeaseHolder = NO_HOLDER  # set while the lease is open
        self.tracker = tracker
        self.generation: int = tracker.generation
        self.identity: str = tracker.identity
        self.address: str = tracker.address
        self.attachment: object | None = tracker.attachment
        self.granted_s = granted_s
        self.trial: bool = False  # granted to a RECOVERING pod, and the outcome of the trial is open
        self.bars_trials: bool = False  # no other trial of the pod may begin
        self.exempt: bool = False  # granted by an exempting rule, possibly above the pod's limit
        self.released: bool = False


NO_HOLDER: Final = LeaseHolder()


@final
class Leases:
    """The open leases of one revision."""

    def __init__(self) -> None:
        self.count: int = 0
        self._newest: LeaseNode = NO_LEASE

    def open(self, lease: Lease, holder: LeaseHolder) -> None:
        """Add a new lease, which `holder` uses."""
        lease.holder = holder
        self.count += 1
        newest = self._newest
        if newest.is_lease:
            lease.older = newest
            newest.newer = lease
        self._newest = lease
        _join_pod(lease)

    def close(self, lease: Lease) -> None:
        """Remove an open lease."""
        lease.holder = NO_HOLDER
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
        """Move a lease to the new slot of its pod."""
        leave_pod(lease)
        lease.tracker = tracker
        lease.generation = tracker.generation
        _join_pod(lease)

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Lease]:
        """Iterate over a copy of the open leases, the oldest first; leases may be closed during the iteration."""
        leases: list[Lease] = []
        node = self._newest
        while node.is_lease:
            assert isinstance(node, Lease)
            leases.append(node)
            node = node.older
        leases.reverse()
        return iter(leases)


def newest_of(tracker: PodTracker) -> Lease | None:
    """Return the newest open lease of the pod in this slot; None if there is none."""
    node = tracker.leases
    if not node.is_lease:
        return None
    assert isinstance(node, Lease)
    return node


def next_older(lease: Lease) -> Lease | None:
    """Return the next older open lease of the same pod; None if there is none."""
    node = lease.pod_older
    if not node.is_lease:
        return None
    assert isinstance(node, Lease)
    return node


def leave_pod(lease: Lease) -> None:
    """Remove the lease from the list of its slot; no effect if it is late."""
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
    """Add the lease to the list of its slot."""
    tracker = lease.tracker
    newest = tracker.leases
    if newest.is_lease:
        lease.pod_older = newest
        newest.pod_newer = lease
    tracker.leases = lease
