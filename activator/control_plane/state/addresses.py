"""One pod for each address: where two names stand at one ip:port, the newer one has it and the older one drains.

It may be the same process under two names (a list has the address, and the pod reports itself with another name), or an
IP that was given to another pod before its former one was taken from the list. Both ready, they would get twice the
limit.

Rules
  1. The pod that came to an address last has it, ready or not, unless it is about to go. It keeps the address as long
     as it is there; the others there are *ousted*: they drain, whatever their sources say.
  2. When the pod that has an address leaves it, moves away or drains, the one that came before it has it again. It is
     asked first whether it answers.
  3. An address belongs to one pod within a revision. Two revisions may name the same address: each has its own limit.

What is still in flight at the older one counts for the limit of the newer one (lb/addresses.py).
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from activator.control_plane.state.address_index import AddressIndex
from activator.control_plane.state.difference import put
from activator.control_plane.state.lifecycle import OUSTED, RETURNED
from activator.control_plane.state.model import Reduction
from activator.control_plane.state.records import PodRecord, RevisionRecord


def settle_addresses(revision: RevisionRecord, reduction: Reduction, now_s: float) -> None:
    """Decide who has the addresses that the reduction has touched."""
    left: set[tuple[str, str]] = set()
    arrived: dict[str, list[str]] = {}
    for identity, step in reduction.steps.items():
        old, new = step.old, step.new
        if old is not None and (new is None or new.address != old.address):
            left.add((old.address, identity))
        if new is not None and (old is None or new.address != old.address):
            arrived.setdefault(new.address, []).append(identity)
    for address in list(dict.fromkeys(reduction.touched)):
        here = [identity for identity in revision.addresses.at(address) if (address, identity) not in left]
        here.extend(arrived.get(address, []))
        pods = [_record(revision, reduction, identity) for identity in here]
        if len(pods) > 1 or (pods and pods[0].ousted_by):
            _settle(revision, reduction, address, pods, now_s)


def settle_all(revision: RevisionRecord, reduction: Reduction, now_s: float) -> RevisionRecord:
    """Count anew which pods are where, and decide about each address; the revision with that."""
    index = AddressIndex()
    shared: dict[str, None] = {}
    count_anew(revision, revision.pods.values(), index, shared)
    revision = replace(revision, addresses=index)
    reduction.touched.extend(shared)
    settle_addresses(revision, reduction, now_s)
    return revision


def count_anew(
    revision: RevisionRecord, pods: Iterable[PodRecord], index: AddressIndex, shared: dict[str, None]
) -> None:
    """Note in `index` where these pods of the revision are; `shared`: addresses about which something is to be decided.

    Who was there before stays before the others.
    """
    for pod in pods:
        address = pod.address
        if index.is_free(address):
            for identity in revision.addresses.at(address):
                known = revision.pods.get(identity)
                if known is not None and known.address == address:
                    index.arrived(identity, address)
        index.arrived(pod.identity, address)
        if pod.ousted_by or index.is_shared(address):
            shared[address] = None


def _settle(revision: RevisionRecord, reduction: Reduction, address: str, pods: list[PodRecord], now_s: float) -> None:
    """`pods`: all that are at the address, in order of arrival."""
    holder = ""
    for pod in pods:
        if pod.contends():
            holder = pod.identity
    for pod in pods:
        if not pod.contends() or pod.identity == holder:
            if pod.ousted_by:  # what was found out of it was perhaps found out of the other
                doubted = not pod.quarantined and not pod.recovering
                put(revision, pod, replace(pod, ousted_by="", doubted=doubted), RETURNED, now_s, reduction)
        elif pod.ousted_by != holder:
            put(revision, pod, replace(pod, ousted_by=holder), OUSTED, now_s, reduction)
            reduction.ousted.append((address, pod.identity, holder))


def _record(revision: RevisionRecord, reduction: Reduction, identity: str) -> PodRecord:
    """As it will be."""
    step = reduction.steps.get(identity)
    pod = revision.pods[identity] if step is None else step.new
    assert pod is not None, f"{identity} is gone"
    return pod
