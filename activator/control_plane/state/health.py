"""Observations of pods: answered probes, refused and broken connections, trials, and old age.

These are passive health checks with outlier detection: a pod is ejected into quarantine after failures in a row, and
comes back through trial requests, as behind a half-open circuit breaker.

Rules
  1. A refused connection is certain: the pod is ejected at once, even the last one. Timeouts and broken connections are
     uncertain: the pod is ejected after several strikes in a row, as long as only a share of the pods is out, and never
     if it is the last ready one. A pod that fails its revision's health checks (sources/health_checks.py) is ejected,
     too, even the last one.
  2. There is one way back: an answered probe (with health checks, `rise` in a row), then one trial request at a time.
  3. Late reports are stale: a report about a pod that was removed, or has changed its state or slot since (its epoch
     differs), and an answer to a probe that is no longer wanted. They are counted and have no effect.
  4. A pod is not dropped for its age while a source lists it: it is probed again, unless its source decides whether it
     answers.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from activator.config.specs import DRAIN_TIMEOUT_S
from activator.control_plane.state.difference import put, set_pod, start_probe
from activator.control_plane.state.lifecycle import ANSWERED, DEAD, EXPIRED, SERVED, STRUCK, TRIAL_FAILED, TRIAL_PASSED
from activator.control_plane.state.model import Reduction
from activator.control_plane.state.records import PodRecord, RevisionRecord
from activator.messages import (
    PUSH,
    PodFailedChecks,
    PodRefused,
    PodServed,
    PodStatus,
    Probed,
    StopProbe,
    Sweep,
    TrialEnded,
)
from lb.tracker import NOT_READY, READY

PUSH_FRESH_S: Final = 60.0  # how long a pod's own report overrides the reports of other sources
PUSH_PROVISIONAL_S: Final = 60.0  # how long a pod that only reports itself may stay


def probed(revision: RevisionRecord, change: Probed, now_s: float, reduction: Reduction) -> None:
    """Apply an answered probe: the pod is proven or, from quarantine, gets trial requests."""
    old = revision.pods.get(change.identity)
    if old is None or not old.wants_probe():
        reduction.stale = True
        reduction.probes.append(StopProbe(change.key, change.identity))  # in case such an order was lost
        return
    if change.address and change.address != old.address:
        reduction.stale = True
        reduction.probes.append(start_probe(revision, old))
        return
    if old.quarantined:
        new = replace(old, quarantined=False, recovering=True, doubted=False)
    else:
        new = replace(old, proven=True, doubted=False)
    put(revision, old, new, ANSWERED, now_s, reduction)


def pod_refused(revision: RevisionRecord, change: PodRefused, now_s: float, reduction: Reduction) -> None:
    """Count a strike; eject the pod if the failure is certain, it was on trial, or it has too many strikes."""
    old = _reported(revision, change.identity, change.epoch, reduction)
    if old is None:
        return
    health = revision.spec.health
    strikes = old.strikes + 1
    if (
        change.dead
        or old.recovering
        or (strikes >= health.strikes and revision.tally.may_eject(old, health.ejection_share))
    ):
        new = replace(old, quarantined=True, recovering=False, strikes=0, cause=_cause(old, change, strikes))
        put(revision, old, new, DEAD if change.dead else STRUCK, now_s, reduction)
        return
    put(revision, old, replace(old, strikes=strikes), STRUCK, now_s, reduction)
    if not reduction.refused:
        reduction.effects.append(set_pod(revision, old))  # only suspected: the slot may be picked again


def pod_failed_checks(revision: RevisionRecord, change: PodFailedChecks, now_s: float, reduction: Reduction) -> None:
    """Eject a ready pod that has failed its health checks."""
    old = _reported(revision, change.identity, change.epoch, reduction)
    if old is None:
        return
    if old.state() != READY:
        reduction.stale = True
        return
    put(revision, old, replace(old, quarantined=True, strikes=0, cause=change.cause), DEAD, now_s, reduction)


def pod_served(revision: RevisionRecord, change: PodServed, now_s: float, reduction: Reduction) -> None:
    """Reset the strikes: the pod has answered a request."""
    old = _reported(revision, change.identity, change.epoch, reduction)
    if old is not None and old.strikes:
        put(revision, old, replace(old, strikes=0), SERVED, now_s, reduction)


def trial_ended(revision: RevisionRecord, change: TrialEnded, now_s: float, reduction: Reduction) -> None:
    """End the trial: the pod is ready again, or goes back to quarantine."""
    old = _reported(revision, change.identity, change.epoch, reduction)
    if old is None:
        return
    if change.succeeded:
        new = replace(old, recovering=False, proven=True, strikes=0, cause="")
        put(revision, old, new, TRIAL_PASSED, now_s, reduction)
    else:
        new = replace(old, recovering=False, quarantined=True, strikes=0, cause="failed its trial")
        put(revision, old, new, TRIAL_FAILED, now_s, reduction)


def sweep(revision: RevisionRecord, change: Sweep, now_s: float, reduction: Reduction) -> None:
    """Remove expired reports, and pods that have none left and that no source lists."""
    calm = True
    for old in revision.pods.values():
        if not old.ages():
            continue
        calm = False
        new = _without_expired_reports(old, revision.spec.health.stale_after_s, now_s)
        if new is not old:
            put(revision, old, new, EXPIRED, now_s, reduction)
    if calm:
        reduction.calm = revision.spec.key


def _reported(revision: RevisionRecord, identity: str, epoch: int, reduction: Reduction) -> PodRecord | None:
    """Return the pod that a report is about; None if the report is stale."""
    pod = revision.pods.get(identity)
    if pod is None or pod.epoch != epoch:
        reduction.stale = True
        return None
    return pod


def _without_expired_reports(pod: PodRecord, stale_after_s: float, now_s: float) -> PodRecord | None:
    """Return the pod without expired reports, to be probed again if need be; None if no source lists or reports it."""
    listed = pod.is_listed()
    if PUSH in pod.claims:
        if not listed and now_s - pod.first_seen_s >= PUSH_PROVISIONAL_S:
            return None
        fresh_s = DRAIN_TIMEOUT_S if pod.claims[PUSH] is PodStatus.DRAINING else PUSH_FRESH_S
        if now_s - pod.pushed_s >= fresh_s:
            claims = {source: status for source, status in pod.claims.items() if source != PUSH}
            return replace(pod, claims=claims, pushed_s=0.0) if listed else None
    if 0.0 < stale_after_s <= now_s - pod.since_s and pod.state() == NOT_READY:
        if not listed:
            return None
        if PUSH not in pod.claims and pod.probe:
            claims = {source: _to_be_probed(status) for source, status in pod.claims.items()}
            return replace(pod, claims=claims, proven=False)
    return pod


def _to_be_probed(status: PodStatus) -> PodStatus:
    return PodStatus.PENDING if status is PodStatus.NOT_READY else status


def _cause(pod: PodRecord, change: PodRefused, strikes: int) -> str:
    """Return why the pod is quarantined, in a few words and the reason of the log."""
    detail = f": {change.reason}" if change.reason else ""
    if change.dead:
        return "refused a connection" + detail
    if pod.recovering:
        return "failed its trial" + detail
    return f"{strikes} strikes in a row" + (f", the last{detail}" if detail else "")
