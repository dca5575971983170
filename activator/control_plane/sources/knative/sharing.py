"""Which pods of a revision are this activator's, where several stand in front of it (`sharing: knative`).

Rules
  1. Activators know of each other by the revision's public endpoints: the ready addresses there, sorted as strings;
     this one's index is its place among them. While it is not among them, what was known stays in force.
  2. Pods are sorted as strings too. Each activator takes as many whole pods as all can take alike; of those left over,
     the first go to the first activators, one each. Where there are more activators than pods, pods are shared.
  3. Without a limit (container_concurrency 0), with one activator, or while the index is unknown, every pod is ours.

Source: knative.dev/serving pkg/activator/net/throttler.go, assignSlice, inferIndex, pickIndices (v1.23).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

UNKNOWN: Final = -1


def infer_index(addresses: Sequence[str], own_ip: str) -> int:
    """The place of `own_ip` among the sorted addresses (`ip` or `ip:port`), or UNKNOWN."""
    ips = sorted(addresses)
    for place, address in enumerate(ips):
        if address == own_ip or _ip_of(address) == own_ip:
            return place
    return UNKNOWN


def pick_indices(pods: int, index: int, activators: int) -> tuple[int, int, int]:
    """(first, end, left over) of the pods that activator `index` takes."""
    if activators > pods:
        first = index % pods
        return first, first + 1, 0
    each = pods // activators
    first = index * each
    return first, first + each, pods % activators


def assign_slice(addresses: Sequence[str], index: int, activators: int) -> list[str]:
    """The addresses of the pods that are activator `index`'s; `addresses` in any order."""
    pods = sorted(addresses)
    if index == UNKNOWN or activators <= 1 or len(pods) <= 1:
        return pods
    first, end, remnants = pick_indices(len(pods), index, activators)
    mine = pods[first:end]
    if index < remnants:
        mine.append(pods[len(pods) - remnants + index])
    return mine


def share_of(backends: int, container_concurrency: int, activators: int) -> int:
    """The capacity of this activator where pods are not addressed one by one (a ClusterIP); 0: none, none at all.

    At least one request, so that no activator is left with nothing while there is a backend.
    """
    total = backends * container_concurrency
    if total <= 0:
        return 0
    return max(1, total // max(1, activators))


def _ip_of(address: str) -> str:
    if address.startswith("["):
        return address[1:].partition("]")[0]
    return address.rpartition(":")[0] if address.count(":") == 1 else address
