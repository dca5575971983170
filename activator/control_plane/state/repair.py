"""Findings of the auditor, and their repair.

Each mismatch is noted by its kind, for the counters, with one line of description, for the log.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

from msgspec.structs import replace

from activator.control_plane.state.addresses import decide_holders, index_pods, rebuild_addresses
from activator.control_plane.state.difference import place, set_pod, start_probe
from activator.control_plane.state.model import Model, Reduction, Renewal
from activator.control_plane.state.records import PodRecord, RevisionRecord
from activator.control_plane.state.tally import Tally
from activator.messages import (
    DispatchQueue,
    LeasesOrphaned,
    ObservedTable,
    PlacePod,
    QueueStalled,
    RebuildPods,
    RebuildRevision,
    ReclaimLeases,
    RevisionBroken,
    SetProbes,
    SlotForgotten,
    SlotView,
    StartProbe,
    WithdrawPod,
)
from lb.tracker import DRAINING, STATE_NAMES

LOST: Final = "lost"

# In this order: the table's own invariants, its leases, requests at pods, pods missing from it, pods only in it, its
# states against the model's, its queue, suspected pods without a decision, effects that have not arrived.
MISMATCHES: Final = ("invariant", "ledger", "upstream", "missing", "surplus", "state", "queue", "suspect", LOST)

COMPARED_AT_ONCE: Final = 100  # slots of a table per comparison with the model, 0.1 ms


def revision_broken(
    model: Model, revision: RevisionRecord, change: RevisionBroken, now_s: float, reduction: Reduction
) -> None:
    """Rebuild everything that is derived from the records, even partly written ones; with many pods begin a renewal."""
    key = revision.spec.key
    if change.kind:
        reduction.mismatches.append((change.kind, change.cause))
    if len(revision.pods) > model.renewed_at_once:
        reduction.renewal = Renewal(change, tuple(revision.pods), model.renewed_at_once)
        reduction.effects.append(
            RebuildRevision(revision.spec, (), revision.failure, complete=False, retry_s=revision.retry_s)
        )
        return
    revision = replace(revision, tally=Tally.of(revision.pods.values()))
    revision = rebuild_addresses(revision, reduction, now_s)
    reduction.revisions[key] = revision
    pods = dict(revision.pods)
    for identity, step in reduction.steps.items():
        assert step.new is not None, "a renewal removes no pod"
        pods[identity] = step.new
    reduction.steps.clear()  # their effects are part of the rebuilt table
    placed, probes = _placements_and_probes(revision, list(pods.values()), reduction)
    reduction.effects.append(RebuildRevision(revision.spec, tuple(placed), revision.failure, retry_s=revision.retry_s))
    reduction.probes.append(SetProbes(key, tuple(probes)))


def rebuild_next_part(model: Model, renewal: Renewal, now_s: float) -> Reduction:
    """Rebuild the next part of a revision: all pods are counted, then addresses are settled, then pods are sent."""
    reduction = Reduction(model.epoch, now_s)
    revision = model.revisions[renewal.change.key]
    if renewal.counted < len(renewal.identities):
        _count_next_pods(revision, renewal, reduction)
    elif renewal.undecided:
        addresses = list(islice(renewal.undecided, renewal.at_once))
        reduction.undecided.extend(addresses)
        decide_holders(revision, reduction, now_s)
        reduction.steps.clear()  # their effects are sent when all addresses are settled
        for address in addresses:
            del renewal.undecided[address]
    else:
        _send_next_pods(revision, renewal, reduction)
    return reduction


def _count_next_pods(revision: RevisionRecord, renewal: Renewal, reduction: Reduction) -> None:
    until = renewal.counted + renewal.at_once
    pods = [revision.pods[identity] for identity in renewal.identities[renewal.counted : until]]
    for pod in pods:
        renewal.tally.replace(None, pod)
    index_pods(revision, pods, renewal.addresses, renewal.undecided)
    renewal.counted = until
    if until >= len(renewal.identities):
        key = revision.spec.key
        reduction.revisions[key] = replace(revision, tally=renewal.tally, addresses=renewal.addresses)


def _send_next_pods(revision: RevisionRecord, renewal: Renewal, reduction: Reduction) -> None:
    key = revision.spec.key
    until = renewal.sent + renewal.at_once
    pods = [revision.pods[identity] for identity in renewal.identities[renewal.sent : until]]
    placed, probes = _placements_and_probes(revision, pods, reduction)
    complete = until >= len(renewal.identities)
    renewal.probes.extend(probes)
    reduction.effects.append(RebuildPods(key, tuple(placed), renewal.parts, complete))
    reduction.probes.extend(probes)
    if complete:
        reduction.probes.append(SetProbes(key, tuple(renewal.probes)))  # and no others
    renewal.parts += 1
    renewal.sent = until
    renewal.is_complete = complete


def _placements_and_probes(
    revision: RevisionRecord, pods: list[PodRecord], reduction: Reduction
) -> tuple[list[PlacePod], list[StartProbe]]:
    """Return the effects that place pods, and the orders that probe pods; a pod without a slot may get one again."""
    placed = []
    probes = []
    for pod in pods:
        if pod.state() != DRAINING:
            placed.append(place(revision, pod))
            if pod.unplaced:  # if it still gets no slot, that is reported again
                reduction.pods[revision.spec.key, pod.identity] = replace(pod, unplaced=False)
        if pod.wants_probe():
            probes.append(start_probe(revision, pod))
    return placed, probes


def whole(revision: RevisionRecord) -> RebuildRevision:
    """Return the effect that builds the table of the revision in a new data plane."""
    placed = [place(revision, pod) for pod in _not_draining(revision)]
    return RebuildRevision(revision.spec, tuple(placed), revision.failure, retry_s=revision.retry_s)


def queue_stalled(revision: RevisionRecord, change: QueueStalled, now_s: float, reduction: Reduction) -> None:
    reduction.mismatches.append(("queue", "requests wait although a pod has a free slot"))
    reduction.effects.append(DispatchQueue(change.key))


def leases_orphaned(revision: RevisionRecord, change: LeasesOrphaned, now_s: float, reduction: Reduction) -> None:
    reduction.mismatches.append(("upstream", change.found))
    reduction.effects.append(ReclaimLeases(change.key))


def slot_forgotten(revision: RevisionRecord, change: SlotForgotten, now_s: float, reduction: Reduction) -> None:
    pod = revision.pods.get(change.identity)
    if pod is None or pod.state() == DRAINING:
        reduction.refused = True
        return
    reduction.mismatches.append(("suspect", f"{change.identity} is suspected without a decision"))
    reduction.effects.append(set_pod(revision, pod))


def table_seen(model: Model, revision: RevisionRecord, change: ObservedTable, reduction: Reduction) -> None:
    """Compare COMPARED_AT_ONCE slots of a table with the model; the rest is queued as a change of its own.

    A view without some of the effects that were sent is ignored: they are still under way.
    """
    key = change.key
    unconfirmed = model.unconfirmed.get(key)
    sent = model.sent.get(key, 0)
    received = change.applied if change.received is None else change.received
    if unconfirmed is not None and received >= unconfirmed.sent:
        reduction.confirmed = key
        reduction.awaits_more = sent != received
    if sent != change.applied:
        return  # the worker requests a new table if they are not confirmed in time
    compared = min(change.compared + COMPARED_AT_ONCE, len(change.slots))
    matched = change.matched
    for slot in change.slots[change.compared : compared]:
        pod = revision.pods.get(slot.identity)
        if pod is None or pod.state() == DRAINING or pod.address != slot.address:
            reduction.mismatches.append(("surplus", f"{slot.identity} at {slot.address} is not in the model"))
            reduction.effects.append(WithdrawPod(key, slot.identity, revision.spec.drain_timeout_s))
        elif not pod.unplaced:
            matched += 1
            limit, is_far = revision.limit_of(pod), revision.is_far(pod)
            if slot != SlotView(pod.identity, pod.address, pod.state(), limit, pod.weight, pod.epoch, is_far):
                difference = (
                    f"{pod.identity} is {STATE_NAMES[slot.state]} with limit {slot.limit} and weight {slot.weight}"
                )
                difference += "" if slot.is_far == is_far else f", {'far' if slot.is_far else 'near'}"
                difference += "" if slot.epoch == pod.epoch else f", as of epoch {slot.epoch}, not {pod.epoch}"
                reduction.mismatches.append(("state", difference))
                reduction.effects.append(set_pod(revision, pod))
    if compared < len(change.slots):
        reduction.again = replace(change, compared=compared, matched=matched)
    elif matched < revision.tally.known - len(revision.tally.unplaced):
        _place_missing(revision, change, reduction)


def _place_missing(revision: RevisionRecord, change: ObservedTable, reduction: Reduction) -> None:
    """Place the missing pods; it iterates over all pods, because only a bug leads here."""
    seen = {(slot.identity, slot.address) for slot in change.slots}
    for pod in _not_draining(revision):
        if not pod.unplaced and (pod.identity, pod.address) not in seen:
            reduction.mismatches.append(("missing", f"{pod.identity} has no slot"))
            reduction.effects.append(place(revision, pod))


def _not_draining(revision: RevisionRecord) -> list[PodRecord]:
    return [pod for pod in revision.pods.values() if pod.state() != DRAINING]
