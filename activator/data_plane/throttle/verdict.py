"""Passive health checks: what the end of a request shows about its pod. No other module decides this.

| event                                           | pod in service             | pod on trial                |
|-------------------------------------------------|----------------------------|-----------------------------|
| the head of a response arrived                  |                            | passed, at once             |
| a connection was refused                        | dead                       | dead                        |
| a connection timed out, or TLS failed           | unreached: a strike        | unreached: failed           |
| the pod closed during a request                 | a strike                   | failed                      |
| no first byte in time, and the pod had the time | a strike                   | failed                      |
| total timeout, or a malformed response          | nothing                    | failed                      |
| the client left, was slow or sent bad data      | nothing                    | nothing                     |
| ended by the activator (drain, shutdown, bug)   | nothing                    | nothing                     |

Rules
  1. A trial tests whether the pod responds. The head of the response is the evidence; how long the rest takes (hours,
     for a WebSocket or a stream) does not count.
  2. An end that shows "nothing" frees the trial: the next request is the next trial.
  3. For a pod on trial, only its trials and new connections count: requests that began before its quarantine show only
     its former state.
"""

from __future__ import annotations

from typing import Final, final

from activator.data_plane.throttle.interfaces import Sharing, SlotEvents
from activator.data_plane.throttle.leases import Lease
from activator.runtime.clock import Now
from activator.runtime.reasons import PodFault, Reason
from lb.table import TrackerTable
from lb.tracker import READY, RECOVERING, PodTracker

SUSPECT_S: Final = 1.0  # how long a pod may be excluded from picks until the state worker decides


def verdict_of(reason: Reason, on_trial: bool) -> PodFault:
    """Return what a request that failed for `reason` shows about its pod."""
    if reason.verdict is PodFault.STRUCK_ON_TRIAL:
        return PodFault.STRUCK if on_trial else PodFault.NOTHING
    return reason.verdict


@final
class PodVerdicts:
    """The verdicts on the pods of one revision: trials, strikes and suspicion.

    They exclude a pod from picks only briefly; the state worker decides, based on these reports.
    """

    def __init__(
        self, key: str, table: TrackerTable, sharing: Sharing, events: SlotEvents, now: Now, is_once: bool
    ) -> None:
        self.is_once = is_once  # each pod takes one request in its life
        self.struck: dict[PodTracker, int] = {}  # pods with strikes, with their generation at the time
        self._key = key
        self._table = table
        self._sharing = sharing
        self._events = events
        self._now = now

    # --- requests and their pods ---

    def pod_failed(self, lease: Lease, reason: Reason) -> None:
        """Update the health of the pod by a request that failed there; report the failure if it concerns the pod."""
        tracker = lease.tracker
        if self.is_once and verdict_of(reason, False) != PodFault.NOTHING:
            self._events.taken(self._key, lease.identity, False, reason.value)
        if not _is_in_service(lease):
            return
        on_trial = lease.trial and tracker.state == RECOVERING  # another trial may have passed in the meantime
        verdict = verdict_of(reason, on_trial)
        if verdict == PodFault.NOTHING or self.is_once:  # a single-use pod has ended anyway
            return
        if verdict == PodFault.STRUCK and on_trial:
            self._trial_ended(lease, False)
            return
        if verdict == PodFault.STRUCK and tracker.state == RECOVERING:
            return  # evidence about the pod before its quarantine
        if verdict != PodFault.STRUCK:
            self._table.suspect(tracker, self._now() + SUSPECT_S)  # excluded from picks within this turn
            source = self._sharing.source
            if source is not None:
                source.suspected(lease)
        lease.trial = False
        self.struck[tracker] = lease.generation
        self._events.refused(self._key, lease.identity, tracker.epoch, verdict == PodFault.DEAD, reason.value)

    def trial_answered(self, lease: Lease) -> bool:
        """Update a pod on trial by a response head; return True if it has passed, and may have a free slot now."""
        if _is_in_service(lease) and lease.tracker.state == RECOVERING:
            self._trial_ended(lease, True)
            return True
        lease.trial = False  # another trial has passed or failed in the meantime
        return False

    def allow_trials_if_barred(self, lease: Lease) -> bool:
        """Allow another trial, because this request may itself be slow; return True if it barred other trials."""
        if not lease.bars_trials:
            return False
        self.allow_trials(lease)
        return True

    def allow_trials(self, lease: Lease) -> None:
        """Allow other trials of the pod; the lease must be one that bars them."""
        lease.bars_trials = False
        self._table.end_trial(lease.tracker, lease.generation)
        source = self._sharing.source
        if source is not None:
            source.trial_over(lease)

    def served(self, lease: Lease) -> None:
        """Drop the strikes of a pod that has served a request, and report that."""
        if self.struck[lease.tracker] == lease.generation:
            del self.struck[lease.tracker]
            self._events.served(self._key, lease.identity, lease.tracker.epoch)

    def suspect(self, lease: Lease) -> None:
        """Suspect a pod that accepts no connections, as reported by the member that has this slot of it."""
        tracker = lease.tracker
        if _is_in_service(lease):
            self._table.suspect(tracker, self._now() + SUSPECT_S)
            self._events.suspected(self._key, lease.identity)

    # --- pods ---

    def pod_left(self, tracker: PodTracker) -> None:
        """Drop the strikes of a pod whose slot is free."""
        if self.struck:
            self.struck.pop(tracker, None)

    def clear(self) -> None:
        """Drop all strikes, because the revision was removed."""
        self.struck.clear()

    def replace_table(self, table: TrackerTable) -> None:
        """Use the pods of another table, which replaces a corrupt one; strikes stay with their pods."""
        struck: dict[PodTracker, int] = {}
        for tracker, generation in self.struck.items():
            moved = table.find_identity(tracker.identity) if tracker.generation == generation else None
            if moved is not None and moved.address == tracker.address:
                struck[moved] = moved.generation
        self.struck = struck
        self._table = table

    # --- within ---

    def _trial_ended(self, lease: Lease, passed: bool) -> None:
        lease.trial = False
        if lease.bars_trials:
            self.allow_trials(lease)
        self._events.trial_ended(self._key, lease.identity, lease.tracker.epoch, passed)


def _is_in_service(lease: Lease) -> bool:
    """Return True if the pod still has the slot of the lease, and is sent requests.

    The end of a request is no evidence about a pod that drains, has moved, or is already out of service.
    """
    tracker = lease.tracker
    return tracker.generation == lease.generation and (tracker.state == READY or tracker.state == RECOVERING)
