"""The holders of indexes: plain data, and its form in a Lease.

Rules
  1. A holder is a pod with its UID: a new pod of an old name is another holder, a restarted container the same one.
  2. A Lease belongs to a group by label and annotation, never by its name alone.
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
    """An index and its holder, with the UID and the version of the Lease."""

    index: int
    holder: Holder
    lease_uid: str
    resource_version: str


def is_ours(lease: Lease, names: GroupNames) -> bool:
    """Return True if the Lease belongs to this group."""
    metadata = lease.metadata
    labelled = metadata.labels.get(GROUP_LABEL) == names.label
    return labelled and metadata.annotations.get(GROUP_ANNOTATION) == names.group


def seat_of(lease: Lease, names: GroupNames) -> Seat | None:
    """Return the seat that a Lease claims; None if the Lease is not of this group, or incomplete."""
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
    """Return the body of a new Lease that claims `index`. `origin`: namespace/Deployment of the installation."""
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
