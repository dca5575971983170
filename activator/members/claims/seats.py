"""Who holds which index: plain data, and how it stands in a Lease.

Rules
  1. A holder is a pod with its UID: a new pod of an old name is another holder, a restarted container the same one.
  2. A Lease is one of a group's by label and annotation, never by its name alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, final

from activator.kubernetes.objects import Lease
from activator.members.claims.names import (
    ADDRESS_ANNOTATION,
    GROUP_ANNOTATION,
    GROUP_LABEL,
    ORIGIN_ANNOTATION,
    UID_ANNOTATION,
    GroupNames,
)

Json = dict[str, Any]


class Holder(NamedTuple):
    """A replica: the name and UID of its pod, and "ip:port" of its members port."""

    name: str
    uid: str
    address: str


@final
@dataclass(frozen=True, slots=True)
class Seat:
    """An index and who holds it; the last two name the Lease, in one of its versions."""

    index: int
    holder: Holder
    lease_uid: str
    resource_version: str


def is_ours(lease: Lease, names: GroupNames) -> bool:
    """Whether the Lease is one of this group."""
    metadata = lease.metadata
    labelled = metadata.labels.get(GROUP_LABEL) == names.label
    return labelled and metadata.annotations.get(GROUP_ANNOTATION) == names.group


def seat_of(lease: Lease, names: GroupNames) -> Seat | None:
    """What a Lease claims; None if it is none of this group, or incomplete."""
    index = names.index(lease.metadata.name)
    if index is None or not is_ours(lease, names):
        return None
    annotations = lease.metadata.annotations
    uid, address = annotations.get(UID_ANNOTATION, ""), annotations.get(ADDRESS_ANNOTATION, "")
    holder = Holder(lease.spec.holder_identity or "", uid, address)
    if not all(holder):
        return None
    return Seat(index, holder, lease.metadata.uid, lease.metadata.resource_version)


def lease_of(names: GroupNames, index: int, holder: Holder, origin: str) -> Json:
    """The Lease that claims `index`, as it is created."""
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": names.lease(index),
            "labels": {GROUP_LABEL: names.label},
            "annotations": {
                GROUP_ANNOTATION: names.group,
                UID_ANNOTATION: holder.uid,
                ADDRESS_ANNOTATION: holder.address,
                ORIGIN_ANNOTATION: origin,
            },
        },
        "spec": {"holderIdentity": holder.name},
    }
