"""Which pods of a revision are this activator's, where several stand in front of it (`sharing: knative`).

Rules
  1. Activators know of each other by the revision's public endpoints: the ready IP addresses there, sorted as strings;
     this one's index is its place among them. While it is not among them, what was known stays in force.
  2. Pods are sorted as strings too, but with their port: 10.0.0.10:8012 comes before 10.0.0.1:8012, though 10.0.0.1
     comes before 10.0.0.10. Each activator takes as many whole pods as all can take alike; of those left over, the
     first go to the first activators, one each. Where there are more activators than pods, pods are shared.
  3. Without a limit (container_concurrency 0), or with one activator, every pod is ours.
  4. Two activators must not hold different pods for shared out while both wake waiters: each probes on its own, and one
     of them has an answer first. So all pods that Kubernetes lists are shared out, whether they have answered or not,
     and a pod has its share before it is probed. One that does not answer must not starve the activator that it would
     belong to: SHARE_PATIENCE_S after another pod has answered it is left out, until it answers.
  5. For the same reason no pod is ours before our index is known. If requests wait, it is awaited for SHARE_PATIENCE_S;
     an activator that is not among the public endpoints then takes every pod.

Sources: knative.dev/serving pkg/activator/net/throttler.go, handlePubEpsUpdate, inferIndex, updateCapacity,
assignSlice, pickIndices, and helpers.go, healthyAddresses, endpointsToDests (v1.23). Rules 4 and 5 are ours: there the
pods that have answered are shared out, and all of them are taken while the index is not known.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from activator.runtime.clock import NEVER

SHARE_PATIENCE_S: Final = 3.0  # for a pod that does not answer while others do, and for our index while requests wait

UNKNOWN: Final = -1


def infer_index(ips: Iterable[str], own_ip: str) -> tuple[int, int]:
    """(the place of `own_ip` among the sorted IP addresses, or UNKNOWN; how many different ones there are)."""
    others = sorted(set(ips))
    own = _canonical(own_ip)
    place = next((number for number, ip in enumerate(others) if _canonical(ip) == own), UNKNOWN)
    return place, len(others)


def pick_indices(pods: int, index: int, activators: int) -> tuple[int, int, int]:
    """(first, end, left over) of the pods that activator `index` takes."""
    if activators > pods:
        first = index % pods
        return first, first + 1, 0
    each = pods // activators
    first = index * each
    return first, first + each, pods % activators


def assign_slice(addresses: Sequence[str], index: int, activators: int) -> list[str]:
    """The addresses of the pods that are activator `index`'s; `addresses` (`ip:port`) in any order."""
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


class SharedPods:
    """Which pods of one revision are shared out (rule 4)."""

    def __init__(self) -> None:
        self.due_s = NEVER  # when a pod will have been silent for too long
        self.leaves_out = False  # a pod that was is not shared out until it answers
        self._up_since_s = NEVER  # since when one has answered
        self._silent_since_s: dict[str, float] = {}  # those that have not

    def of(self, listed: Mapping[str, str], proven: AbstractSet[str], now_s: float) -> list[str]:
        """The addresses of those that are. `listed`: address by identity; `proven`: those that have answered."""
        silent_since_s = self._silent_since_s
        self._silent_since_s = {one: silent_since_s.get(one, now_s) for one in listed if one not in proven}
        is_up = len(self._silent_since_s) < len(listed)
        self._up_since_s = min(self._up_since_s, now_s) if is_up else NEVER
        self.due_s = NEVER
        self.leaves_out = False
        shared = []
        for identity, address in listed.items():
            until_s = max(self._silent_since_s.get(identity, NEVER), self._up_since_s) + SHARE_PATIENCE_S
            if now_s >= until_s:
                self.leaves_out = True
                continue
            self.due_s = min(self.due_s, until_s)
            shared.append(address)
        return shared


def _canonical(ip: str) -> str:
    """Of the ways in which an IPv6 address may be written, one."""
    if ":" not in ip:
        return ip
    try:
        return str(ipaddress.ip_address(ip))
    except ValueError:
        return ip
