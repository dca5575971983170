"""The meaning of changes: pure functions from (model, change, time) to a `Reduction`.

Rules
  1. Nothing here writes the model, reads a clock or does I/O; so an exception leaves everything as it was.
  2. A handler computes the pod's new record. The effects follow from the difference between the old record and the new
     one (`difference.py`), if the table of transitions allows it (`lifecycle.py`). Before the effects are derived, each
     address that pods have come to or left is settled (`addresses.py`).
  3. Listing sources decide whether a pod exists; the pod's own report (push) decides whether it is ready, while that
     report is fresh; observations decide between READY, QUARANTINED and RECOVERING (`health.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from msgspec.structs import replace

from activator.control_plane.state import health, repair
from activator.control_plane.state.addresses import decide_holders
from activator.control_plane.state.difference import derive_effects, place, put, set_pod, start_probe
from activator.control_plane.state.lifecycle import GONE, SEEN
from activator.control_plane.state.model import Model, Reduction
from activator.control_plane.state.records import PodRecord, RevisionRecord
from activator.messages import (
    PUSH,
    Change,
    DropRevision,
    FailRevision,
    FreeSlot,
    LeasesOrphaned,
    ObservedPod,
    ObservedTable,
    PodFailedChecks,
    PodGone,
    PodRefused,
    PodServed,
    PodSetAside,
    PodsListed,
    PodStatus,
    PodUnplaced,
    Probed,
    QueueStalled,
    RevisionBroken,
    RevisionFailed,
    RevisionGone,
    RevisionRecovered,
    RevisionSet,
    SetProbes,
    SetRevision,
    SlotDrained,
    SlotForgotten,
    StopProbe,
    Sweep,
    TrialEnded,
)
from lb.tracker import DRAINING


def reduce(model: Model, change: Change, now_s: float) -> Reduction:
    """Reduce one change. An exception is a bug; the worker then sets the change aside."""
    reduction = Reduction(model.epoch, now_s)
    if type(change) is RevisionSet:
        _revision_set(model, change, reduction)
        return reduction
    revision = model.revisions.get(change.key)
    if revision is None:
        reduction.refused = True  # the revision has been removed: the change is late
        if type(change) is Probed:  # unless the order that ends its probes was lost
            reduction.probes.append(SetProbes(change.key, ()))
        elif type(change) is RevisionBroken or type(change) is ObservedTable:
            reduction.effects.append(DropRevision(change.key))
        return reduction
    if type(change) is ObservedTable:
        repair.table_seen(model, revision, change, reduction)
    elif type(change) is RevisionBroken:
        repair.revision_broken(model, revision, change, now_s, reduction)
    elif type(change) is PodsListed:
        _listed(revision, change, model.lists.get(change.key), now_s, reduction)
    else:
        _HANDLERS[type(change)](revision, change, now_s, reduction)
    if reduction.steps:
        if reduction.undecided:
            decide_holders(revision, reduction, now_s)
        derive_effects(revision, reduction)
    return reduction


# --- revisions ------------------------------------------------------------------------------------------------------


def _revision_set(model: Model, change: RevisionSet, reduction: Reduction) -> None:
    spec = change.spec
    old = model.revisions.get(spec.key)
    if old is not None and old.spec == spec:
        return
    new = RevisionRecord(spec, {}) if old is None else replace(old, spec=spec)
    reduction.revisions[spec.key] = new
    reduction.effects.append(SetRevision(spec))
    if old is None:
        return
    probes_differ = spec.probing != old.spec.probing or spec.connection.tls != old.spec.connection.tls
    for pod in new.pods.values():
        if pod.state() != DRAINING and (new.limit_of(pod) != old.limit_of(pod) or new.is_far(pod) != old.is_far(pod)):
            reduction.effects.append(set_pod(new, pod))
        if probes_differ and pod.wants_probe():
            reduction.probes.append(start_probe(new, pod))  # replaces the probe that runs


def _revision_gone(revision: RevisionRecord, change: RevisionGone, now_s: float, reduction: Reduction) -> None:
    key = revision.spec.key
    for pod in revision.pods.values():
        if pod.wants_probe():
            reduction.probes.append(StopProbe(key, pod.identity))
    reduction.revisions[key] = None
    reduction.effects.append(DropRevision(key))


def _revision_failed(revision: RevisionRecord, change: RevisionFailed, now_s: float, reduction: Reduction) -> None:
    reduction.revisions[change.key] = replace(revision, failure=change.cause, retry_s=change.retry_s)
    reduction.effects.append(FailRevision(change.key, change.cause, change.retry_s))


def _revision_recovered(
    revision: RevisionRecord, change: RevisionRecovered, now_s: float, reduction: Reduction
) -> None:
    if revision.failure:
        reduction.revisions[change.key] = replace(revision, failure="", retry_s=0.0)
        reduction.effects.append(FailRevision(change.key, ""))


# --- pods, as reported by sources -----------------------------------------------------------------------------------


def _pod_seen(revision: RevisionRecord, change: ObservedPod, now_s: float, reduction: Reduction) -> None:
    old = revision.pods.get(change.identity)
    pushed_s = now_s if change.source == PUSH else 0.0
    if old is None or old.address != change.address:
        claims = {change.source: change.status}
        new = PodRecord(
            change.identity,
            change.address,
            claims,
            change.probe,
            weight=change.weight,
            limit=change.limit,
            restarts=change.restarts,
            epoch=reduction.next_epoch(),
            since_s=now_s,
            first_seen_s=now_s,
            pushed_s=pushed_s,
            zone=change.zone,
            is_aside=old is not None and old.is_aside,
        )
    elif pushed_s > 0.0:
        new = _self_reported(old, change.status, now_s)
    else:
        if _is_unchanged(old, change):
            return
        new = _with_report(old, change)
    put(revision, old, new, SEEN, now_s, reduction)


def _is_unchanged(old: PodRecord, change: ObservedPod) -> bool:
    return (
        old.claims.get(change.source) is change.status
        and old.weight == change.weight
        and old.limit == change.limit
        and old.zone == change.zone
        and old.restarts >= change.restarts
    )


def _with_report(old: PodRecord, change: ObservedPod) -> PodRecord:
    new = replace(
        old,
        claims={**old.claims, change.source: change.status},
        weight=change.weight,
        limit=change.limit,
        zone=change.zone or ("" if old.claims.keys() <= {change.source} else old.zone),
        probe=change.probe or (old.probe and len(old.claims) > 1),  # the newest report of the only source decides
        restarts=max(old.restarts, change.restarts),
        doubted=old.doubted and not _is_declared_ready(old, change),
    )
    if 0 <= old.restarts < change.restarts:
        # Another program at the same address with the same name: observations are about the old one, except for a
        # quarantine, which ends as every quarantine does.
        return replace(new, proven=False, strikes=0, doubted=not old.quarantined and not old.recovering)
    return new


def _is_declared_ready(old: PodRecord, change: ObservedPod) -> bool:
    """Return True if its source reported another status before, and now reports it ready without a probe."""
    ready = PodStatus.READY
    return change.status is ready and not change.probe and old.claims.get(change.source) is not ready


def _self_reported(old: PodRecord, status: PodStatus, now_s: float) -> PodRecord:
    claims = old.claims if old.claims.get(PUSH) is status else {**old.claims, PUSH: status}
    has_restarted = status is PodStatus.PENDING  # it has restarted: observations of the earlier run do not count
    return replace(old, claims=claims, pushed_s=now_s, proven=old.proven and not has_restarted)


def _pod_gone(revision: RevisionRecord, change: PodGone, now_s: float, reduction: Reduction) -> None:
    old = revision.pods.get(change.identity)
    if old is None or change.source not in old.claims:
        return
    claims = {source: status for source, status in old.claims.items() if source != change.source}
    new = replace(old, claims=claims)
    if change.source == PUSH:
        new = replace(new, pushed_s=0.0)
    # No source lists it any more: its own report alone does not keep it.
    put(revision, old, new if new.is_listed() else None, GONE, now_s, reduction)


def _listed(
    revision: RevisionRecord, change: PodsListed, last: PodsListed | None, now_s: float, reduction: Reduction
) -> None:
    """Apply a list. `last`: the former list, if it still describes the pods exactly; None otherwise."""
    changed = None if last is None or last.source != change.source else _changed_reports(last.pods, change.pods)
    if changed is not None:
        for seen in changed:
            _pod_seen(revision, seen, now_s, reduction)
        is_remembered = True
    else:
        listed = {pod.identity for pod in change.pods}
        for seen in change.pods:
            _pod_seen(revision, seen, now_s, reduction)
        for pod in revision.pods.values():
            if change.source in pod.claims and pod.identity not in listed:
                _pod_gone(revision, PodGone(change.key, change.source, pod.identity), now_s, reduction)
        is_remembered = len(listed) == len(change.pods)
    if is_remembered and not reduction.refused:
        reduction.listed = change


def _changed_reports(before: tuple[ObservedPod, ...], after: tuple[ObservedPod, ...]) -> list[ObservedPod] | None:
    """Return the reports that differ; None if they are not about the same pods in the same order.

    Identical objects are recognized at once, equal ones by one comparison.
    """
    if len(before) != len(after):
        return None
    changed: list[ObservedPod] = []
    for old, new in zip(before, after):
        if old is not new and old != new:
            if old.identity != new.identity:
                return None
            changed.append(new)
    return changed


def _pod_set_aside(revision: RevisionRecord, change: PodSetAside, now_s: float, reduction: Reduction) -> None:
    old = revision.pods.get(change.identity)
    if old is None:
        reduction.refused = True
    elif old.is_aside != change.is_aside:
        # Its program may have been restarted while it was set aside; a quarantine ends as every quarantine does.
        doubted = not old.quarantined and not old.recovering
        put(revision, old, replace(old, is_aside=change.is_aside, doubted=doubted), SEEN, now_s, reduction)


# --- slots ----------------------------------------------------------------------------------------------------------


def _slot_drained(revision: RevisionRecord, change: SlotDrained, now_s: float, reduction: Reduction) -> None:
    key = change.key
    reduction.effects.append(FreeSlot(key, change.slot, change.generation))
    for identity in revision.tally.unplaced:  # only the first one gets the slot
        pod = revision.pods[identity]
        reduction.pods[(key, identity)] = replace(pod, unplaced=False)
        reduction.effects.append(place(revision, pod))
        return


def _pod_unplaced(revision: RevisionRecord, change: PodUnplaced, now_s: float, reduction: Reduction) -> None:
    pod = revision.pods.get(change.identity)
    if pod is not None:
        reduction.pods[(change.key, pod.identity)] = replace(pod, unplaced=True)


_HANDLERS: Final[dict[type, Callable[[RevisionRecord, Any, float, Reduction], None]]] = {
    ObservedPod: _pod_seen,
    PodGone: _pod_gone,
    PodSetAside: _pod_set_aside,
    Probed: health.probed,
    PodFailedChecks: health.pod_failed_checks,
    PodRefused: health.pod_refused,
    PodServed: health.pod_served,
    TrialEnded: health.trial_ended,
    Sweep: health.sweep,
    SlotDrained: _slot_drained,
    PodUnplaced: _pod_unplaced,
    QueueStalled: repair.queue_stalled,
    LeasesOrphaned: repair.leases_orphaned,
    SlotForgotten: repair.slot_forgotten,
    RevisionGone: _revision_gone,
    RevisionFailed: _revision_failed,
    RevisionRecovered: _revision_recovered,
}
