"""Passive health checks: what the end of a request shows about its pod. It is judged here and nowhere else.

| what happened                                   | of a pod in service        | of one on trial             |
|-------------------------------------------------|----------------------------|-----------------------------|
| the head of an answer came                      |                            | passed, at once             |
| a dial was refused                              | dead                       | dead                        |
| a dial was silent, or TLS failed                | unreached: a strike        | unreached: failed           |
| the pod closed under a request                  | a strike                   | failed                      |
| no first byte in time, and the pod had the time | a strike                   | failed                      |
| no answer in all, bytes that are no answer      | nothing                    | failed                      |
| the client left, was too slow, sent nonsense    | nothing                    | nothing                     |
| we ended it (drain, shutdown, a defect)         | nothing                    | nothing                     |

Rules
  1. A trial asks whether the pod answers. The head of the response shows it; how long the rest takes (a WebSocket or a
     stream may take hours) does not count.
  2. An end that shows "nothing" gives the trial back: the next request is the next trial.
  3. Of a pod on trial only its trials count, and dials, which are made now: requests from before its quarantine show
     only what the pod was then.
"""

from __future__ import annotations

from typing import Final, final

from activator.data_plane.throttle.interfaces import Sharing, SlotEvents
from activator.data_plane.throttle.leases import Lease
from activator.runtime.clock import Now
from activator.runtime.reasons import Reason, Verdict
from lb.table import TrackerTable
from lb.tracker import READY, RECOVERING, PodTracker

SUSPECT_S: Final = 1.0  # how long the request path may keep a pod from the picks until the state worker decides


def verdict_of(reason: Reason, on_trial: bool) -> Verdict:
    """Return what a request that failed for `reason` shows about its pod."""
    if reason.verdict is Verdict.STRUCK_ON_TRIAL:
        return Verdict.STRUCK if on_trial else Verdict.NOTHING
    return reason.verdict


@final
class PodVerdicts:
    """The verdicts on the pods of one revision: trials, strikes and suspicion.

    They take a pod out of the picks for a moment at most; the state worker decides, by these reports.
    """

    def __init__(
        self, key: str, table: TrackerTable, sharing: Sharing, events: SlotEvents, now: Now, is_once: bool
    ) -> None:
        self.is_once = is_once  # a pod takes one request in its life
        self.struck: dict[PodTracker, int] = {}  # pods with strikes, by the generation that they had
        self._key = key
        self._table = table
        self._sharing = sharing
        self._events = events
        self._now = now

    # --- requests and their pods ---

    def pod_failed(self, lease: Lease, reason: Reason) -> None:
        """Judge a request that failed at the pod, and report it where it is about the pod."""
        tracker = lease.tracker
        if self.is_once and verdict_of(reason, False) != Verdict.NOTHING:
            self._events.taken(self._key, lease.identity, False, reason.value)
        if not _is_in_service(lease):
            return
        on_trial = lease.trial and tracker.state == RECOVERING  # another trial may have passed meanwhile
        verdict = verdict_of(reason, on_trial)
        if verdict == Verdict.NOTHING or self.is_once:  # that one pod is gone all the same
            return
        if verdict == Verdict.STRUCK and on_trial:
            self._trial_ended(lease, False)
            return
        if verdict == Verdict.STRUCK and tracker.state == RECOVERING:
            return  # it is about the pod as it was before
        if verdict != Verdict.STRUCK:
            self._table.suspect(tracker, self._now() + SUSPECT_S)  # out of the picks in this very turn
            source = self._sharing.source
            if source is not None:
                source.suspected(lease)
        lease.trial = False
        self.struck[tracker] = lease.generation
        self._events.refused(self._key, lease.identity, tracker.epoch, verdict == Verdict.DEAD, reason.value)

    def trial_answered(self, lease: Lease) -> bool:
        """Judge a pod on trial by the head of an answer; return True if it has passed, and may have room now."""
        if _is_in_service(lease) and lease.tracker.state == RECOVERING:
            self._trial_ended(lease, True)
            return True
        lease.trial = False  # another one has passed or failed meanwhile
        return False

    def trial_takes_long(self, lease: Lease) -> bool:
        """Let the next request be another trial: this one may be slow itself. Return True if it kept others away."""
        if not lease.bars_trials:
            return False
        self.end_trial(lease)
        return True

    def end_trial(self, lease: Lease) -> None:
        """Allow other trials of the pod; the lease must be one that bars them."""
        lease.bars_trials = False
        self._table.end_trial(lease.tracker, lease.generation)
        source = self._sharing.source
        if source is not None:
            source.trial_over(lease)

    def served(self, lease: Lease) -> None:
        """Report a pod with strikes that has served a request."""
        if self.struck[lease.tracker] == lease.generation:
            del self.struck[lease.tracker]
            self._events.served(self._key, lease.identity, lease.tracker.epoch)

    def suspect(self, lease: Lease) -> None:
        """Suspect a pod that takes no connections, as the member reports that has this slot of it."""
        tracker = lease.tracker
        if _is_in_service(lease):
            self._table.suspect(tracker, self._now() + SUSPECT_S)
            self._events.suspected(self._key, lease.identity)

    # --- pods that come and go ---

    def pod_left(self, tracker: PodTracker) -> None:
        """Forget the strikes of a pod whose slot is free."""
        if self.struck:
            self.struck.pop(tracker, None)

    def clear(self) -> None:
        """Forget all strikes: the revision is removed."""
        self.struck.clear()

    def move(self, table: TrackerTable) -> None:
        """Judge the pods of another table, which is in place of one that broke; strikes stay with their pods."""
        struck: dict[PodTracker, int] = {}
        for old, generation in self.struck.items():
            new = table.find_identity(old.identity) if old.generation == generation else None
            if new is not None and new.address == old.address:
                struck[new] = new.generation
        self.struck = struck
        self._table = table

    # --- within ---

    def _trial_ended(self, lease: Lease, passed: bool) -> None:
        lease.trial = False
        if lease.bars_trials:
            self.end_trial(lease)
        self._events.trial_ended(self._key, lease.identity, lease.tracker.epoch, passed)


def _is_in_service(lease: Lease) -> bool:
    """True if the pod is still where the lease was granted, and requests are sent to it.

    The end of a request is no evidence about a pod that leaves, has moved, or is out of service already.
    """
    tracker = lease.tracker
    return tracker.generation == lease.generation and (tracker.state == READY or tracker.state == RECOVERING)
