"""What a change means: pure functions from (model, change, time) to a `Reduction`.

Rules
  1. Nothing here writes the model, reads a clock or talks to anyone; so an exception leaves everything as it was.
  2. A handler works out the pod's new record; what has to be *done* follows from the difference between the old record
     and the new one, in `_difference`, and nowhere else.
  3. Sources decide whether a pod exists; what we found out ourselves (a refused connection, an answered probe) decides
     between READY, QUARANTINED and RECOVERING.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from activator.config import DRAIN_TIMEOUT_S
from activator.state.messages import (
    Change,
    DropRevision,
    FailRevision,
    FreeSlot,
    Listed,
    PlacePod,
    PodGone,
    PodRefused,
    PodSeen,
    PodUnplaced,
    Probed,
    RevisionFailed,
    RevisionGone,
    RevisionRecovered,
    RevisionSet,
    SetPod,
    SetRevision,
    SlotDrained,
    StartProbe,
    StopProbe,
    TrialEnded,
    WithdrawPod,
)
from activator.state.model import Model, PodRecord, Reduction, RevisionRecord
from lb.tracker import DRAINING, READY, RECOVERING

STRIKES_MAX: Final = 3  # unanswered connections in a row until a pod is put into quarantine


def key_of(change: Change) -> str:
    """The revision that a change is about."""
    return change.spec.key if isinstance(change, RevisionSet) else change.key


def reduce(model: Model, change: Change, now_s: float) -> Reduction:
    """Raises whatever a defect raises; the worker sets the change aside."""
    reduction = Reduction()
    if isinstance(change, RevisionSet):
        _revision_set(model, change, reduction)
        return reduction
    revision = model.revisions.get(change.key)
    if revision is None:
        reduction.refused = True  # the revision has gone meanwhile; what is said of it comes too late
        return reduction
    if isinstance(change, PodSeen):
        _pod_seen(revision, change, now_s, reduction)
    elif isinstance(change, PodGone):
        _pod_gone(revision, change, now_s, reduction)
    elif isinstance(change, Listed):
        _listed(revision, change, now_s, reduction)
    elif isinstance(change, Probed):
        _probed(revision, change, now_s, reduction)
    elif isinstance(change, PodRefused):
        _pod_refused(revision, change, now_s, reduction)
    elif isinstance(change, TrialEnded):
        _trial_ended(revision, change, now_s, reduction)
    elif isinstance(change, SlotDrained):
        _slot_drained(revision, change, reduction)
    elif isinstance(change, PodUnplaced):
        _pod_unplaced(revision, change, reduction)
    elif isinstance(change, RevisionGone):
        _revision_gone(revision, reduction)
    elif isinstance(change, RevisionFailed):
        reduction.revisions[change.key] = replace(revision, failure=change.cause)
        reduction.effects.append(FailRevision(change.key, change.cause))
    else:
        _revision_recovered(revision, change, reduction)
    return reduction


# --- revisions ------------------------------------------------------------------------------------------------------


def _revision_set(model: Model, change: RevisionSet, reduction: Reduction) -> None:
    spec = change.spec
    old = model.revisions.get(spec.key)
    if old is not None and old.spec == spec:
        return
    new = RevisionRecord(spec, {} if old is None else old.pods, "" if old is None else old.failure)
    reduction.revisions[spec.key] = new
    reduction.effects.append(SetRevision(spec))
    if old is None:
        return
    for pod in new.pods.values():
        if pod.state() != DRAINING and new.limit_of(pod) != old.limit_of(pod):
            reduction.effects.append(_set(new, pod))


def _revision_gone(revision: RevisionRecord, reduction: Reduction) -> None:
    key = revision.spec.key
    for pod in revision.pods.values():
        if pod.wants_probe():
            reduction.probes.append(StopProbe(key, pod.identity))
    reduction.revisions[key] = None
    reduction.effects.append(DropRevision(key))


def _revision_recovered(revision: RevisionRecord, change: RevisionRecovered, reduction: Reduction) -> None:
    if revision.failure:
        reduction.revisions[change.key] = replace(revision, failure="")
        reduction.effects.append(FailRevision(change.key, ""))


# --- pods, as sources see them --------------------------------------------------------------------------------------


def _pod_seen(revision: RevisionRecord, change: PodSeen, now_s: float, reduction: Reduction) -> None:
    old = revision.pods.get(change.identity)
    if old is None or old.address != change.address:
        new = PodRecord(
            change.identity, change.address, {change.source: change.status}, change.probe, weight=change.weight
        )
    else:
        if old.claims.get(change.source) is change.status and old.weight == change.weight:
            return
        new = replace(old, claims={**old.claims, change.source: change.status}, weight=change.weight)
    _put(revision, old, new, now_s, reduction)


def _pod_gone(revision: RevisionRecord, change: PodGone, now_s: float, reduction: Reduction) -> None:
    old = revision.pods.get(change.identity)
    if old is None or change.source not in old.claims:
        return
    claims = {source: status for source, status in old.claims.items() if source != change.source}
    _put(revision, old, replace(old, claims=claims) if claims else None, now_s, reduction)


def _listed(revision: RevisionRecord, change: Listed, now_s: float, reduction: Reduction) -> None:
    listed = {pod.identity for pod in change.pods}
    for seen in change.pods:
        _pod_seen(revision, seen, now_s, reduction)
    for pod in revision.pods.values():
        if change.source in pod.claims and pod.identity not in listed:
            _pod_gone(revision, PodGone(change.key, change.source, pod.identity), now_s, reduction)


# --- pods, as we find them ------------------------------------------------------------------------------------------


def _probed(revision: RevisionRecord, change: Probed, now_s: float, reduction: Reduction) -> None:
    old = revision.pods.get(change.identity)
    if old is None or not old.wants_probe():
        reduction.refused = True
        return
    if old.quarantined:
        new = replace(old, quarantined=False, recovering=True)
    else:
        new = replace(old, proven=True)
    _put(revision, old, new, now_s, reduction)


def _pod_refused(revision: RevisionRecord, change: PodRefused, now_s: float, reduction: Reduction) -> None:
    old = revision.pods.get(change.identity)
    if old is None or old.state() not in (READY, RECOVERING):
        reduction.refused = True
        return
    strikes = old.strikes + 1
    if change.dead or old.recovering or (strikes >= STRIKES_MAX and _others_ready(revision, old)):
        new = replace(old, quarantined=True, recovering=False, strikes=0)
        _put(revision, old, new, now_s, reduction)
        return
    # Only suspected: the slot is given back to the picks.
    reduction.pods[(change.key, old.identity)] = replace(old, strikes=strikes)
    reduction.effects.append(_set(revision, old))


def _trial_ended(revision: RevisionRecord, change: TrialEnded, now_s: float, reduction: Reduction) -> None:
    old = revision.pods.get(change.identity)
    if old is None or not old.recovering:
        reduction.refused = True
        return
    _put(revision, old, replace(old, recovering=False, quarantined=not change.succeeded, strikes=0), now_s, reduction)


def _others_ready(revision: RevisionRecord, pod: PodRecord) -> bool:
    return any(other.state() == READY for other in revision.pods.values() if other.identity != pod.identity)


# --- slots ----------------------------------------------------------------------------------------------------------


def _slot_drained(revision: RevisionRecord, change: SlotDrained, reduction: Reduction) -> None:
    key = change.key
    reduction.effects.append(FreeSlot(key, change.slot, change.generation))
    for pod in revision.pods.values():
        if pod.unplaced and pod.state() != DRAINING:
            reduction.pods[(key, pod.identity)] = replace(pod, unplaced=False)
            reduction.effects.append(_place(revision, pod))
            return


def _pod_unplaced(revision: RevisionRecord, change: PodUnplaced, reduction: Reduction) -> None:
    pod = revision.pods.get(change.identity)
    if pod is not None:
        reduction.pods[(change.key, pod.identity)] = replace(pod, unplaced=True)


# --- from records to effects ----------------------------------------------------------------------------------------


def _put(
    revision: RevisionRecord, old: PodRecord | None, new: PodRecord | None, now_s: float, reduction: Reduction
) -> None:
    identity = new.identity if new is not None else old.identity if old is not None else ""
    if new is not None and (old is None or old.state() != new.state()):
        new = replace(new, since_s=now_s)
    reduction.pods[(revision.spec.key, identity)] = new
    _difference(revision, identity, old, new, reduction)


def _difference(
    revision: RevisionRecord, identity: str, old: PodRecord | None, new: PodRecord | None, reduction: Reduction
) -> None:
    key = revision.spec.key
    had = old is not None and old.state() != DRAINING
    has = new is not None and new.state() != DRAINING
    moved = old is not None and new is not None and old.address != new.address
    if had and (not has or moved):
        reduction.effects.append(WithdrawPod(key, identity, DRAIN_TIMEOUT_S))
    if has and new is not None and (not had or moved):
        reduction.effects.append(_place(revision, new))
    elif has and had and new is not None and old is not None and not new.unplaced:
        effect = _set(revision, new)
        if effect != _set(revision, old):
            reduction.effects.append(effect)
    probed = old is not None and old.wants_probe()
    if probed and (new is None or moved or not new.wants_probe()):
        reduction.probes.append(StopProbe(key, identity))
        probed = False
    if new is not None and new.wants_probe() and not probed:
        reduction.probes.append(StartProbe(key, identity, new.address))


def _place(revision: RevisionRecord, pod: PodRecord) -> PlacePod:
    return PlacePod(revision.spec.key, pod.identity, pod.address, pod.state(), revision.limit_of(pod), pod.weight)


def _set(revision: RevisionRecord, pod: PodRecord) -> SetPod:
    return SetPod(revision.spec.key, pod.identity, pod.state(), revision.limit_of(pod), pod.weight)
