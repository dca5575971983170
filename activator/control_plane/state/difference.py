"""From a pod's old record and its new one to what has to be done; here and nowhere else.

A transition that the table of `lifecycle.py` does not have is refused: the record stays as it was.
"""

from __future__ import annotations

from msgspec.structs import replace

from activator.control_plane.state.lifecycle import is_legal
from activator.control_plane.state.model import Reduction
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
    """Write `new` in place of `old` (None: no pod), with all that follows from it, because of `event`."""
    before = EMPTY if old is None else old.state()
    after = EMPTY if new is None else new.state()
    moved = old is not None and new is not None and old.address != new.address
    if not is_legal(EMPTY if moved else before, event, after):
        reduction.illegal.append((before, event, after))
        reduction.refused = True
        return
    identity = new.identity if new is not None else old.identity if old is not None else ""
    if new is not None and before != after and new.since_s != now_s:
        new = replace(new, since_s=now_s)
    reduction.pods[(revision.spec.key, identity)] = new
    _effects(revision, identity, old, new, before, after, moved, reduction)
    _probes(revision, identity, old, new, moved, reduction)


def _effects(
    revision: RevisionRecord,
    identity: str,
    old: PodRecord | None,
    new: PodRecord | None,
    before: int,
    after: int,
    moved: bool,
    reduction: Reduction,
) -> None:
    had = before != EMPTY and before != DRAINING
    has = after != EMPTY and after != DRAINING
    if had and (not has or moved):
        reduction.effects.append(WithdrawPod(revision.spec.key, identity, revision.spec.drain_timeout_s))
    if new is None or not has:
        return
    if not had or moved:
        limit = revision.limit_of(new)
        reduction.effects.append(PlacePod(revision.spec.key, identity, new.address, after, limit, new.weight))
    elif old is not None and not new.unplaced and (before != after or _is_set_otherwise(old, new)):
        limit = revision.limit_of(new)
        reduction.effects.append(SetPod(revision.spec.key, identity, after, limit, new.weight))


def _is_set_otherwise(old: PodRecord, new: PodRecord) -> bool:
    return old.weight != new.weight or old.limit != new.limit


def _probes(
    revision: RevisionRecord,
    identity: str,
    old: PodRecord | None,
    new: PodRecord | None,
    moved: bool,
    reduction: Reduction,
) -> None:
    probed = old is not None and old.wants_probe()
    wanted = new is not None and new.wants_probe()
    if probed and (moved or not wanted):
        reduction.probes.append(StopProbe(revision.spec.key, identity))
        probed = False
    if new is not None and wanted and not probed:
        reduction.probes.append(start_probe(revision, new))


def start_probe(revision: RevisionRecord, pod: PodRecord) -> StartProbe:
    """The order to ask the pod as its revision says."""
    return StartProbe(revision.spec.key, pod.identity, pod.address, revision.spec.probe, revision.spec.tls)


def place(revision: RevisionRecord, pod: PodRecord) -> PlacePod:
    """The effect that gives the pod a slot."""
    return PlacePod(revision.spec.key, pod.identity, pod.address, pod.state(), revision.limit_of(pod), pod.weight)


def set_pod(revision: RevisionRecord, pod: PodRecord) -> SetPod:
    """The effect that makes its slot be what the record says."""
    return SetPod(revision.spec.key, pod.identity, pod.state(), revision.limit_of(pod), pod.weight)
