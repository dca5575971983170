"""The effects of a change: derived from a pod's old record and its new one, and only here.

A transition that is not in the table of `lifecycle.py` is a bug of the caller: it is refused and counted, and the
record does not change. A pod gets a new epoch with each state and each slot.
"""

from __future__ import annotations

from msgspec.structs import replace

from activator.control_plane.state.lifecycle import is_legal
from activator.control_plane.state.model import Reduction, Step
from activator.control_plane.state.records import PodRecord, RevisionRecord
from activator.messages import PlacePod, SetPod, StartProbe, StopProbe, WithdrawPod
from lb.tracker import DRAINING, EMPTY


def put(
    revision: RevisionRecord,
    old: PodRecord | None,
    new: PodRecord | None,
    event: str,
    now_s: float,
    reduction: Reduction,
) -> None:
    """Write `new` in place of `old` (None: no pod), because of `event`; the effects follow in `derive_effects`."""
    before = EMPTY if old is None else old.state()
    after = EMPTY if new is None else new.state()
    moved = old is not None and new is not None and old.address != new.address
    if not is_legal(EMPTY if moved else before, event, after):
        reduction.illegal.append((before, event, after))
        reduction.refused = True
        return
    identity = new.identity if new is not None else old.identity if old is not None else ""
    if new is not None and old is not None and not moved and before != after:
        # Strikes are counted in a row: they do not outlast the pod's stay in the table.
        strikes = 0 if after == DRAINING else new.strikes
        new = replace(new, since_s=now_s, strikes=strikes, epoch=reduction.next_epoch())
    reduction.pods[(revision.spec.key, identity)] = new
    step = reduction.steps.get(identity)
    if step is None:
        reduction.steps[identity] = Step(old, new, before, after)
    else:
        step.new = new
        step.after = after
    if moved or _is_in_table(before) != _is_in_table(after):
        _note_undecided(revision, old, new, reduction)


def _note_undecided(
    revision: RevisionRecord, old: PodRecord | None, new: PodRecord | None, reduction: Reduction
) -> None:
    """Note the pod's old and new address if another pod is there, so that their holders are decided again."""
    if old is not None and revision.addresses.is_shared(old.address):
        reduction.undecided.append(old.address)
    if new is None or (old is not None and old.address == new.address):
        return
    if revision.addresses.is_free(new.address) and new.address not in reduction.arrivals:
        reduction.arrivals.add(new.address)
    else:
        reduction.undecided.append(new.address)


def derive_effects(revision: RevisionRecord, reduction: Reduction) -> None:
    """Add the effects of all steps; pods are withdrawn first, so that their slots and addresses are free."""
    for identity, step in reduction.steps.items():
        _withdraw(revision, identity, step, reduction)
    for identity, step in reduction.steps.items():
        _place_or_set(revision, identity, step, reduction)
        _add_probe_orders(revision, identity, step, reduction)


def _is_in_table(state: int) -> bool:
    return state != EMPTY and state != DRAINING


def _withdraw(revision: RevisionRecord, identity: str, step: Step, reduction: Reduction) -> None:
    if _is_in_table(step.before) and (not _is_in_table(step.after) or _has_moved(step)):
        reduction.effects.append(WithdrawPod(revision.spec.key, identity, revision.spec.drain_timeout_s))


def _place_or_set(revision: RevisionRecord, identity: str, step: Step, reduction: Reduction) -> None:
    old, new, after = step.old, step.new, step.after
    if new is None or not _is_in_table(after):
        return
    key = revision.spec.key
    limit = revision.limit_of(new)
    if not _is_in_table(step.before) or _has_moved(step):
        is_far = revision.is_far(new)
        reduction.effects.append(PlacePod(key, identity, new.address, after, limit, new.weight, new.epoch, is_far))
    elif old is not None and not new.unplaced and (old.epoch != new.epoch or _needs_slot_update(revision, old, new)):
        reduction.effects.append(SetPod(key, identity, after, limit, new.weight, new.epoch, revision.is_far(new)))


def _has_moved(step: Step) -> bool:
    return step.old is not None and step.new is not None and step.old.address != step.new.address


def _needs_slot_update(revision: RevisionRecord, old: PodRecord, new: PodRecord) -> bool:
    is_moved = old.zone != new.zone and revision.is_far(old) != revision.is_far(new)
    return is_moved or old.weight != new.weight or old.limit != new.limit


def _add_probe_orders(revision: RevisionRecord, identity: str, step: Step, reduction: Reduction) -> None:
    old, new = step.old, step.new
    probed = old is not None and old.wants_probe()
    wanted = new is not None and new.wants_probe()
    if probed and (not wanted or _has_moved(step)):
        reduction.probes.append(StopProbe(revision.spec.key, identity))
        probed = False
    if new is not None and wanted and not probed:
        reduction.probes.append(start_probe(revision, new))


def start_probe(revision: RevisionRecord, pod: PodRecord) -> StartProbe:
    """Return the order to probe the pod as its revision configures it."""
    spec = revision.spec
    probe, checks, tls = spec.probing.probe, spec.probing.checks, spec.connection.tls
    if checks is None or not pod.quarantined:
        return StartProbe(spec.key, pod.identity, pod.address, probe, tls)
    return StartProbe(spec.key, pod.identity, pod.address, probe, tls, checks.rise, checks.interval_s)


def place(revision: RevisionRecord, pod: PodRecord) -> PlacePod:
    """Return the effect that gives the pod a slot."""
    limit, is_far = revision.limit_of(pod), revision.is_far(pod)
    return PlacePod(revision.spec.key, pod.identity, pod.address, pod.state(), limit, pod.weight, pod.epoch, is_far)


def set_pod(revision: RevisionRecord, pod: PodRecord) -> SetPod:
    """Return the effect that updates the pod's slot from its record."""
    limit, is_far = revision.limit_of(pod), revision.is_far(pod)
    return SetPod(revision.spec.key, pod.identity, pod.state(), limit, pod.weight, pod.epoch, is_far)
