"""A table made anew in place of one that broke an invariant.

Rules
  1. Nothing of the old table is trusted but its slots, and of these only names, attachments and suspicions.
  2. What is in flight is counted anew from the open leases, which the throttler keeps; each lease moves to the slot of
     the same pod in the new table, so its release is counted there, once. A pod that is no longer in the model but has
     leases gets a slot to drain in.
  3. The new table goes on from the highest generation of the old one, so nothing that is still under way about a slot
     of the old table can hit one of the new.
  4. The pods of a large revision come in parts, each in a turn of the loop. Until the last has come the old table is in
     use, or the revision is distrusted and its requests are rejected. No effect changes the old table meanwhile.
  5. `finish` is one turn, since the requests in flight must count for the limits at each moment: 0.1 us a slot and
     0.15 us a request. It counts all of them in the new table before it moves the first.
"""

from __future__ import annotations

from activator.config.specs import RevisionSpec
from activator.data_plane.throttle.leases import Lease
from activator.data_plane.throttle.revision import RevisionThrottler
from activator.messages import PlacePod
from lb.sizing import SLOTS_MAX, is_known
from lb.table import TrackerTable
from lb.tracker import DRAINING, EMPTY, PodTracker


class Removal:
    """What is left of the old table, for `RevisionTables` to deal with."""

    def __init__(self, table: TrackerTable) -> None:
        self.table = table
        self.draining: list[PodTracker] = []  # of the old slots
        self.attachments: list[object] = []  # of pods that have another one now, or are no more; not of draining slots
        self.suspected: list[tuple[PodTracker, float]] = []  # new slots, and until when
        self.leaving: list[PodTracker] = []  # new slots of pods that are no more, for their leases
        self.gone: list[str] = []  # identities of pods that are no more and have no leases either


def highest_generation(table: TrackerTable) -> int:
    """Of any slot, even where the table has lost count."""
    generation = int(table.generation)
    for tracker in table.slots:
        generation = max(generation, int(tracker.generation) + 1)
    return generation


class Rebuild:
    """The new table of one revision, before it is in use."""

    def __init__(
        self, throttler: RevisionThrottler, table: TrackerTable, spec: RevisionSpec, failure: str, retry_s: float
    ) -> None:
        self.throttler = throttler
        self.table = table
        self.spec = spec
        self.failure = failure  # why the revision cannot start, once the table is in use
        self.retry_s = retry_s  # when the next start may be tried; 0: not known
        self.parts: int = 0  # that have come
        self.placed: list[PodTracker] = []  # slots of pods that the old table does not have
        self.progressed: bool = True  # something of it has come since the auditor looked last
        self._old = throttler.table
        # New slots by the old ones of the same pods, where these are easily found; their names are compared again.
        self._homes: list[PodTracker | None] = [None] * len(self._old.slots)

    def make_slots(self, count: int) -> None:
        """For so many more pods: slots are made with each part, not all at once with the first."""
        wanted = self.table.used + count
        scale = self.spec.max_scale
        self.table.set_max_scale(min(wanted, scale) if is_known(scale, SLOTS_MAX) else wanted)

    def place(self, pod: PlacePod) -> PodTracker | None:
        """The new slot, with the attachment that the pod has in the old one; None: every slot is held."""
        tracker = self.table.add(pod.identity, pod.address, pod.limit, pod.state)
        if tracker is None:
            return None
        self.table.set_weight(tracker, pod.weight)
        tracker.epoch = pod.epoch
        before = self._old.find_identity(pod.identity)
        if before is not None and before.address == pod.address and 0 <= before.slot < len(self._homes):
            self._homes[before.slot] = tracker
            if before.state != DRAINING:
                tracker.attachment = before.attachment
        return tracker

    def finish(self) -> Removal:
        """Give the throttler the new table, with every open lease counted."""
        throttler = self.throttler
        self.table.set_max_scale(self.spec.max_scale)
        removal = Removal(self._old)
        leases: list[Lease] = []
        homes: list[PodTracker] = []
        for lease in throttler.leases:
            if lease.tracker.generation != lease.generation:
                continue  # its slot was taken from it before: its release is late, as it would have been
            home = self._home_of(lease.tracker, lease.identity, lease.address)
            if home is None:
                home = self.table.add_leaving(lease.identity, lease.address)
                if home is None:
                    continue
                removal.leaving.append(home)
            self.table.reserve(home)
            if lease.bars_trials:
                self.table.begin_trial(home)
            leases.append(lease)
            homes.append(home)
        self._look_back(removal)
        throttler.move(self.table, leases, homes)
        self._old.abandon()  # last: if the leases' slots were given up before, a failure in between would lose them
        return removal

    def _look_back(self, removal: Removal) -> None:
        for tracker in self._old.slots:
            if tracker.state == EMPTY:
                continue
            home = self._home_of(tracker, tracker.identity, tracker.address)
            if tracker.state == DRAINING:
                removal.draining.append(tracker)
            elif tracker.attachment is not None and (home is None or home.attachment is not tracker.attachment):
                removal.attachments.append(tracker.attachment)
            if home is None:
                removal.gone.append(tracker.identity)
            elif tracker.suspect_until_s > 0.0 and home.state != DRAINING:
                removal.suspected.append((home, tracker.suspect_until_s))

    def _home_of(self, tracker: PodTracker, identity: str, address: str) -> PodTracker | None:
        """The new slot of the pod that this one is, or was, for."""
        slot = tracker.slot
        home = self._homes[slot] if 0 <= slot < len(self._homes) else None
        if home is not None and home.identity == identity and home.address == address:
            return home
        return self.table.find_pod(identity, address)
