"""What we find out about pods ourselves: answered probes, refused and broken connections, trials, and old age.

These are passive health checks with outlier detection: a pod is ejected into quarantine after failures in a row, and
comes back through trial requests, as behind a half-open circuit breaker.

Rules
  1. A refused connection is certain: the pod is out at once, even the last one. Silence and breakage are uncertain: out
     after so many strikes in a row, only a share of the pods at once, never the last that is ready.
  2. There is one way back: a probe is answered, then one trial request at a time.
  3. Nothing here checks the state of a pod before it acts: what comes too late is no legal transition, and the table
     refuses it (lifecycle.py).
  4. No pod is dropped for its age while a source lists it: it is asked again, unless its source itself decides whether
     it answers.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from activator.config.specs import DRAIN_TIMEOUT_S
from activator.control_plane.state.difference import put, set_pod
from activator.control_plane.state.lifecycle import ANSWERED, DEAD, EXPIRED, SERVED, STRUCK, TRIAL_FAILED, TRIAL_PASSED
from activator.control_plane.state.model import Reduction
from activator.control_plane.state.records import PodRecord, RevisionRecord
from activator.messages import PUSH, PodRefused, PodServed, PodStatus, Probed, Sweep, TrialEnded
from lb.tracker import DRAINING, NOT_READY, QUARANTINED, READY, RECOVERING

PUSH_FRESH_S: Final = 60.0  # how long a pod's report of itself overrides what others report of it
PUSH_PROVISIONAL_S: Final = 60.0  # how long a pod that only reports itself may stay
POD_STALE_AFTER_S: Final = 600.0  # a not-ready pod that no listing source asserts


def probed(revision: RevisionRecord, change: Probed, now_s: float, reduction: Reduction) -> None:
    old = revision.pods.get(change.identity)
    if old is None or (change.address and change.address != old.address):
        reduction.refused = True
        return
    if old.quarantined:
        new = replace(old, quarantined=False, recovering=True, doubted=False)
    else:
        new = replace(old, proven=True, doubted=False)
    put(revision, old, new, ANSWERED, now_s, reduction)


def pod_refused(revision: RevisionRecord, change: PodRefused, now_s: float, reduction: Reduction) -> None:
    old = revision.pods.get(change.identity)
    if old is None:
        reduction.refused = True
        return
    strikes = old.strikes + 1
    if change.dead or old.recovering or (strikes >= revision.spec.strikes and _may_eject(revision, old)):
        new = replace(old, quarantined=True, recovering=False, strikes=0, cause=_cause(old, change, strikes))
        put(revision, old, new, DEAD if change.dead else STRUCK, now_s, reduction)
        return
    put(revision, old, replace(old, strikes=strikes), STRUCK, now_s, reduction)
    if not reduction.refused:
        reduction.effects.append(set_pod(revision, old))  # only suspected: the slot is given back to the picks


def pod_served(revision: RevisionRecord, change: PodServed, now_s: float, reduction: Reduction) -> None:
    old = revision.pods.get(change.identity)
    if old is None:
        reduction.refused = True
    elif old.strikes:
        put(revision, old, replace(old, strikes=0), SERVED, now_s, reduction)


def trial_ended(revision: RevisionRecord, change: TrialEnded, now_s: float, reduction: Reduction) -> None:
    old = revision.pods.get(change.identity)
    if old is None:
        reduction.refused = True
    elif change.succeeded:
        new = replace(old, recovering=False, proven=True, strikes=0, cause="")
        put(revision, old, new, TRIAL_PASSED, now_s, reduction)
    else:
        new = replace(old, recovering=False, quarantined=True, strikes=0, cause="failed its trial")
        put(revision, old, new, TRIAL_FAILED, now_s, reduction)


def sweep(revision: RevisionRecord, change: Sweep, now_s: float, reduction: Reduction) -> None:
    """Forget reports that are too old, and pods that no source lists."""
    calm = True
    for old in revision.pods.values():
        if not old.ages():
            continue
        calm = False
        new = _grown_older(old, now_s)
        if new is not old:
            put(revision, old, new, EXPIRED, now_s, reduction)
    if calm:
        reduction.calm = revision.spec.key


def _grown_older(pod: PodRecord, now_s: float) -> PodRecord | None:
    listed = pod.is_listed()
    if PUSH in pod.claims:
        if not listed and now_s - pod.first_seen_s >= PUSH_PROVISIONAL_S:
            return None
        fresh_s = DRAIN_TIMEOUT_S if pod.claims[PUSH] is PodStatus.DRAINING else PUSH_FRESH_S
        if now_s - pod.pushed_s >= fresh_s:
            claims = {source: status for source, status in pod.claims.items() if source != PUSH}
            return replace(pod, claims=claims, pushed_s=0.0) if listed else None
    if pod.state() == NOT_READY and now_s - pod.since_s >= POD_STALE_AFTER_S:
        if not listed:
            return None
        if PUSH not in pod.claims and pod.probe:
            claims = {source: _asked_again(status) for source, status in pod.claims.items()}
            return replace(pod, claims=claims, proven=False)
    return pod


def _asked_again(status: PodStatus) -> PodStatus:
    return PodStatus.PENDING if status is PodStatus.NOT_READY else status


def _cause(pod: PodRecord, change: PodRefused, strikes: int) -> str:
    """Why it goes into quarantine, in a few words and the one of the log."""
    met = f": {change.reason}" if change.reason else ""
    if change.dead:
        return "refused a connection" + met
    if pod.recovering:
        return "failed its trial" + met
    return f"{strikes} strikes in a row" + (f", the last{met}" if met else "")


def _may_eject(revision: RevisionRecord, pod: PodRecord) -> bool:
    ready = 0
    out = 0
    known = 0
    for other in revision.pods.values():
        state = other.state()
        if state == DRAINING:
            continue
        known += 1
        if state in (QUARANTINED, RECOVERING):
            out += 1
        elif state == READY and other.identity != pod.identity and other.limit != 0:
            ready += 1
    return ready > 0 and out < max(1, int(known * revision.spec.ejection_share))
