"""The replacement of a table that has violated an invariant.

Rules
  1. Only the slots of the old table are trusted, and of these only names, attachments and suspicions.
  2. Requests in flight are recounted from the open leases of the throttler. Each lease moves to the slot of the same
     pod in the new table, where its release is counted once. A pod that is not in the model but has leases gets a slot
     to drain in.
  3. The new table continues from the highest generation of the old one, so that late messages about old slots cannot
     affect new ones.
  4. The pods of a large revision arrive in parts, each in a turn of the loop. Until the last part the old table is
     used, or the revision is distrusted and its requests are rejected. No effect changes the old table before that.
  5. `finish` takes one turn, because the limits must hold for the requests in flight at each moment: 0.1 us per slot
     and 0.15 us per request. It counts all of them in the new table before it moves the first.
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
    """The remains of the old table, for `RevisionTables` to clean up."""

    def __init__(self, table: TrackerTable) -> None:
        self.table = table
        self.draining: list[PodTracker] = []  # in the old table
        self.attachments: list[object] = []  # pools of pods that were removed or have a new one; not of draining slots
        self.suspected: list[tuple[PodTracker, float]] = []  # new slots, and until when each is suspected
        self.leaving: list[PodTracker] = []  # new slots of removed pods, for their leases
        self.gone: list[str] = []  # identities of removed pods without leases


def highest_generation(table: TrackerTable) -> int:
    """Return a generation above that of every slot, even if the counter of the table is wrong."""
    generation = int(table.generation)
    for tracker in table.slots:
        generation = max(generation, int(tracker.generation) + 1)
    return generation


class Rebuild:
    """The new table of one revision while it is built."""

    def __init__(
        self, throttler: RevisionThrottler, table: TrackerTable, spec: RevisionSpec, failure: str, retry_s: float
    ) -> None:
        self.throttler = throttler
        self.table = table
        self.spec = spec
        self.failure = failure  # why the revision cannot start, to be set with the new table
        self.retry_s = retry_s  # when the next start may be tried; 0: unknown
        self.parts: int = 0  # number of parts received
        self.placed: list[PodTracker] = []  # slots of pods that are not in the old table
        self.progressed: bool = True  # a part has arrived since the last check of the auditor
        self._old = throttler.table
        # By the index of an old slot: the new slot of its pod, if found; `_new_slot_of` compares the names again.
        self._new_slots: list[PodTracker | None] = [None] * len(self._old.slots)

    def make_slots(self, count: int) -> None:
        """Make slots for `count` more pods, with each part instead of all at once."""
        slots = self.table.used + count
        scale = self.spec.balancing.max_scale
        self.table.set_max_scale(min(slots, scale) if is_known(scale, SLOTS_MAX) else slots)

    def place(self, pod: PlacePod) -> PodTracker | None:
        """Give a pod a slot of the new table, with its attachment from the old one; return None if all are taken."""
        tracker = self.table.add(pod.identity, pod.address, pod.limit, pod.state)
        if tracker is None:
            return None
        self.table.set_weight(tracker, pod.weight)
        self.table.set_far(tracker, pod.is_far)
        tracker.epoch = pod.epoch
        old = self._old.find_identity(pod.identity)
        if old is not None and old.address == pod.address and 0 <= old.slot < len(self._new_slots):
            self._new_slots[old.slot] = tracker
            if old.state != DRAINING:
                tracker.attachment = old.attachment
        return tracker

    def finish(self) -> Removal:
        """Switch the throttler to the new table, in which every open lease is counted."""
        throttler = self.throttler
        self.table.set_max_scale(self.spec.balancing.max_scale)
        removal = Removal(self._old)
        leases: list[Lease] = []
        new_slots: list[PodTracker] = []
        for lease in throttler.leases:
            if lease.tracker.generation != lease.generation:
                continue  # the slot was taken back earlier: the release of the lease is late in any case
            new_slot = self._new_slot_of(lease.tracker, lease.identity, lease.address)
            if new_slot is None:
                new_slot = self.table.add_leaving(lease.identity, lease.address)
                if new_slot is None:
                    continue
                removal.leaving.append(new_slot)
            self.table.reserve(new_slot)
            if lease.bars_trials:
                self.table.begin_trial(new_slot)
            leases.append(lease)
            new_slots.append(new_slot)
        self._collect_removed(removal)
        throttler.replace_table(self.table, leases, new_slots)
        self._old.abandon()  # last: releasing the old slots earlier would lose them after a failure in between
        return removal

    def _collect_removed(self, removal: Removal) -> None:
        """Collect in `removal` the pools, suspicions and draining slots of the old table, and its removed pods."""
        for tracker in self._old.slots:
            if tracker.state == EMPTY:
                continue
            new_slot = self._new_slot_of(tracker, tracker.identity, tracker.address)
            if tracker.state == DRAINING:
                removal.draining.append(tracker)
            elif tracker.attachment is not None and (new_slot is None or new_slot.attachment is not tracker.attachment):
                removal.attachments.append(tracker.attachment)
            if new_slot is None:
                removal.gone.append(tracker.identity)
            elif tracker.suspect_until_s > 0.0 and new_slot.state != DRAINING:
                removal.suspected.append((new_slot, tracker.suspect_until_s))

    def _new_slot_of(self, tracker: PodTracker, identity: str, address: str) -> PodTracker | None:
        """Return the new slot of the pod that the old slot is, or was, for; None if there is none."""
        slot = tracker.slot
        new_slot = self._new_slots[slot] if 0 <= slot < len(self._new_slots) else None
        if new_slot is not None and new_slot.identity == identity and new_slot.address == address:
            return new_slot
        return self.table.find_pod(identity, address)
