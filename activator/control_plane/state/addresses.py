"""One pod per address: if two identities have the same ip:port, the newer one keeps it and the older one drains.

They may be one process with two names (a list has the address, and the pod reports itself under another name), or an IP
address that was assigned to another pod before the former one was removed from the list. If both were ready, they would
get twice the limit.

Rules
  1. The newest pod at an address has it, ready or not, unless it is terminating. It keeps the address as long as it is
     there; the others there are *ousted*: they drain, whatever their sources report.
  2. When the pod that has an address is removed, moves or drains, the previous one gets it back. It is probed before it
     gets requests.
  3. An address belongs to one pod within a revision. Two revisions may have the same address: each has its own limit.

Requests that are still in flight at the older pod count against the limit of the newer one (lb/addresses.py).
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from activator.control_plane.state.address_index import AddressIndex
from activator.control_plane.state.difference import put
from activator.control_plane.state.lifecycle import OUSTED, RETURNED
from activator.control_plane.state.model import Reduction
from activator.control_plane.state.records import PodRecord, RevisionRecord


def decide_holders(revision: RevisionRecord, reduction: Reduction, now_s: float) -> None:
    """Decide which pod has each address that needs a decision after the reduction."""
    departed: set[tuple[str, str]] = set()
    arrived: dict[str, list[str]] = {}
    for identity, step in reduction.steps.items():
        old, new = step.old, step.new
        if old is not None and (new is None or new.address != old.address):
            departed.add((old.address, identity))
        if new is not None and (old is None or new.address != old.address):
            arrived.setdefault(new.address, []).append(identity)
    for address in list(dict.fromkeys(reduction.undecided)):
        present = [identity for identity in revision.addresses.at(address) if (address, identity) not in departed]
        present.extend(arrived.get(address, []))
        pods = [_record(revision, reduction, identity) for identity in present]
        if len(pods) > 1 or (pods and pods[0].ousted_by):
            _decide_holder(revision, reduction, address, pods, now_s)


def rebuild_addresses(revision: RevisionRecord, reduction: Reduction, now_s: float) -> RevisionRecord:
    """Rebuild the index of a revision's addresses, and decide which pod has each one; return the new revision."""
    index = AddressIndex()
    shared: dict[str, None] = {}
    index_pods(revision, revision.pods.values(), index, shared)
    revision = replace(revision, addresses=index)
    reduction.undecided.extend(shared)
    decide_holders(revision, reduction, now_s)
    return revision


def index_pods(
    revision: RevisionRecord, pods: Iterable[PodRecord], index: AddressIndex, shared: dict[str, None]
) -> None:
    """Add these pods of the revision to `index`; add to `shared` the addresses for which a holder must be chosen.

    The order of arrival in the present index is kept.
    """
    for pod in pods:
        address = pod.address
        if index.is_free(address):
            for identity in revision.addresses.at(address):
                known = revision.pods.get(identity)
                if known is not None and known.address == address:
                    index.add(identity, address)
        index.add(pod.identity, address)
        if pod.ousted_by or index.is_shared(address):
            shared[address] = None


def _decide_holder(
    revision: RevisionRecord, reduction: Reduction, address: str, pods: list[PodRecord], now_s: float
) -> None:
    """Decide which pod has the address; the others drain. `pods`: all pods at it, in order of arrival."""
    holder = ""
    for pod in pods:
        if pod.contends():
            holder = pod.identity
    for pod in pods:
        if not pod.contends() or pod.identity == holder:
            if pod.ousted_by:  # the observations may be about the other pod
                doubted = not pod.quarantined and not pod.recovering
                put(revision, pod, replace(pod, ousted_by="", doubted=doubted), RETURNED, now_s, reduction)
        elif pod.ousted_by != holder:
            put(revision, pod, replace(pod, ousted_by=holder), OUSTED, now_s, reduction)
            reduction.ousted.append((address, pod.identity, holder))


def _record(revision: RevisionRecord, reduction: Reduction, identity: str) -> PodRecord:
    """Return the record of a pod after the reduction."""
    step = reduction.steps.get(identity)
    pod = revision.pods[identity] if step is None else step.new
    assert pod is not None, f"{identity} is gone"
    return pod
