"""A table made anew in place of one that broke an invariant.

Rules
  1. Nothing of the old table is trusted but its slots, and of these only names and attachments.
  2. What is in flight is counted anew from the open leases, which the throttler keeps; each lease moves to the slot of
     the same pod in the new table, so its release is counted there, once. A pod that is no longer in the model but has
     leases gets a slot to drain in.
  3. The new table goes on from the highest generation of the old one, so nothing that is still under way about a slot
     of the old table can hit one of the new.
"""

from __future__ import annotations

from activator.data_plane.throttle.lease import Lease
from activator.data_plane.throttle.revision import RevisionThrottler
from activator.messages import PlacePod
from lb.table import TrackerTable
from lb.tracker import DRAINING, EMPTY, PodTracker

Name = tuple[str, str]  # identity, address


class Removal:
    """What is left of the old table, for `RevisionTables` to deal with."""

    def __init__(self) -> None:
        self.abandoned: list[PodTracker] = []  # the old slots that held a pod
        self.attachments: dict[Name, object] = {}  # of those that were not draining
        self.leaving: list[PodTracker] = []  # new slots of pods that are no more, for their leases
        self.gone: list[str] = []  # identities of pods that are no more and have no leases either


def highest_generation(table: TrackerTable) -> int:
    """Of any slot, even where the table has lost count."""
    generation = int(table.generation)
    for tracker in table.slots:
        generation = max(generation, int(tracker.generation) + 1)
    return generation


def replace_table(throttler: RevisionThrottler, table: TrackerTable, pods: tuple[PlacePod, ...]) -> Removal:
    """Give the throttler `table`, with `pods` in it and every open lease counted."""
    removal = Removal()
    old = throttler.table
    held: list[Name] = []
    for tracker in old.slots:
        if tracker.state != EMPTY:
            removal.abandoned.append(tracker)
            held.append((tracker.identity, tracker.address))
            if tracker.attachment is not None and tracker.state != DRAINING:
                removal.attachments[tracker.identity, tracker.address] = tracker.attachment
    homes = _place_leaving(throttler, table, pods, removal)
    _place(table, pods, homes)
    throttler.move(table, _moves(throttler, homes))
    old.abandon()  # last: if the leases' slots were given up before, a failure in between would lose them
    for name in held:
        if name not in homes:
            removal.gone.append(name[0])
    return removal


def _place_leaving(
    throttler: RevisionThrottler, table: TrackerTable, pods: tuple[PlacePod, ...], removal: Removal
) -> dict[Name, PodTracker]:
    """Slots for what is in flight at pods that are no more; first, since of one name the newest slot is the pod's."""
    staying = {(pod.identity, pod.address) for pod in pods}
    homes: dict[Name, PodTracker] = {}
    for lease in throttler.leases:
        name = (lease.identity, lease.address)
        if not _is_counted(lease) or name in staying or name in homes:
            continue
        home = table.add_leaving(lease.identity, lease.address)
        if home is not None:
            homes[name] = home
            removal.leaving.append(home)
    return homes


def _place(table: TrackerTable, pods: tuple[PlacePod, ...], homes: dict[Name, PodTracker]) -> None:
    for pod in pods:
        tracker = table.add(pod.identity, pod.address, pod.limit, pod.state)
        if tracker is not None:
            table.set_weight(tracker, pod.weight)
            tracker.epoch = pod.epoch
            homes[pod.identity, pod.address] = tracker


def _moves(throttler: RevisionThrottler, homes: dict[Name, PodTracker]) -> dict[Lease, PodTracker]:
    moves: dict[Lease, PodTracker] = {}
    for lease in throttler.leases:
        home = homes.get((lease.identity, lease.address))
        if home is not None and _is_counted(lease):
            moves[lease] = home
    return moves


def _is_counted(lease: Lease) -> bool:
    """Else its slot was taken from it before: its release is late, as it would have been."""
    return lease.tracker.generation == lease.generation
