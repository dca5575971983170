"""Computes which pods of a revision belong to this activator, where several are in front of it (`sharing: knative`).

Rules
  1. Activators find each other through the revision's public endpoints: the ready IP addresses there, sorted as
     strings. The index of this one is its place among them. While it is not among them, the last known index stays in
     force.
  2. Pods are sorted as strings too, but with their port: 10.0.0.10:8012 comes before 10.0.0.1:8012, though 10.0.0.1
     comes before 10.0.0.10. Each activator takes an equal number of whole pods; of the rest, the first activators take
     one each. Where there are more activators than pods, pods are shared.
  3. Without a limit (container_concurrency 0), or with one activator, every pod belongs to this activator.
  4. Two activators must not differ on the set of pods that are shared out while both wake waiters, and each probes on
     its own, so one of them gets an answer first. Therefore all listed pods are divided, whether they have answered or
     not, and a pod has its owner before it is probed. A pod that does not answer must not starve the
     activator that it belongs to: SHARE_PATIENCE_S after another pod has answered it is left out until it answers
     (shared_pods.py).
  5. For the same reason this activator has no pod before its index is known. If requests wait, it waits
     SHARE_PATIENCE_S for the index; an activator that is not among the public endpoints then takes every pod.

Sources: knative.dev/serving pkg/activator/net/throttler.go, handlePubEpsUpdate, inferIndex, updateCapacity,
assignSlice, pickIndices, and helpers.go, healthyAddresses, endpointsToDests (v1.23). Rules 4 and 5 differ from it:
there the pods that have answered are shared out, and an activator takes all of them while its index is not known.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from activator.control_plane.sources.cluster.backends import Backend
from activator.runtime.sockets import split_address

SHARE_PATIENCE_S: Final = 3.0  # for a pod that does not answer while others do, and for our index while requests wait

UNKNOWN: Final = -1


def infer_index(ips: Iterable[str], own_ip: str) -> tuple[int, int]:
    """Return the index of `own_ip` in the sorted addresses, or UNKNOWN, and their number."""
    addresses = sorted(set(ips))
    own = _canonical(own_ip)
    index = next((number for number, ip in enumerate(addresses) if _canonical(ip) == own), UNKNOWN)
    return index, len(addresses)


def pick_indices(pods: int, index: int, activators: int) -> tuple[int, int, int]:
    """Return the first, the end and the number left over of the pods that activator `index` takes."""
    if activators > pods:
        first = index % pods
        return first, first + 1, 0
    each = pods // activators
    first = index * each
    return first, first + each, pods % activators


def block_of(pods: int, index: int, activators: int) -> tuple[int, int, int]:
    """Return the first, the end and one more (or -1) of the sorted pods that belong to activator `index`."""
    if index == UNKNOWN or activators <= 1 or pods <= 1:
        return 0, pods, -1
    first, end, remnants = pick_indices(pods, index, activators)
    return first, end, pods - remnants + index if index < remnants else -1


def assign_slice(addresses: Sequence[str], index: int, activators: int) -> list[str]:
    """Return the addresses of the pods that belong to activator `index`; `addresses` (`ip:port`) in any order."""
    pods = sorted(addresses)
    first, end, more = block_of(len(pods), index, activators)
    return pods[first:end] if more < 0 else [*pods[first:end], pods[more]]


def share_of(backends: int, container_concurrency: int, activators: int) -> int:
    """Return the capacity of this activator where pods are not addressed individually (a ClusterIP); 0: none at all.

    It is at least one request, so that no activator is left with nothing while there is a backend.
    """
    total = backends * container_concurrency
    if total <= 0:
        return 0
    return max(1, total // max(1, activators))


class PublicAddresses:
    """The ready IP addresses of a revision's public endpoints, and the place of `own_ip` among them (rule 1)."""

    def __init__(self, own_ip: str) -> None:
        self._own_ip = own_ip
        self._own = _canonical(own_ip)
        self._ip_of_endpoint: dict[str, str] = {}  # IP addresses by identity of the endpoint
        self._pods: dict[str, int] = {}  # how many endpoints, by IP address
        self._own_pods = 0  # endpoints at our own address
        self._place: tuple[int, int] | None = None  # None: something has changed

    def read_all(self, endpoints: Mapping[str, Backend]) -> None:
        self._ip_of_endpoint, self._pods, self._own_pods, self._place = {}, {}, 0, None
        self.read(endpoints)

    def read(self, endpoints: Mapping[str, Backend | None]) -> None:
        """Update these endpoints; None: removed."""
        for identity, endpoint in endpoints.items():
            is_ready = endpoint is not None and endpoint.ready and not endpoint.terminating
            ip = split_address(endpoint.address)[0] if endpoint is not None and is_ready else ""
            before = self._ip_of_endpoint.get(identity, "")
            if ip == before:
                continue
            if before:
                del self._ip_of_endpoint[identity]
                self._count(before, -1)
            if ip:
                self._ip_of_endpoint[identity] = ip
                self._count(ip, 1)

    def place(self) -> tuple[int, int]:
        """Return the result of `infer_index`; UNKNOWN where the public endpoints are the pods themselves."""
        if self._place is None:
            found = infer_index(self._pods, self._own_ip) if self._own_pods else None
            self._place = found or (UNKNOWN, len(self._pods))
        return self._place

    def _count(self, ip: str, step: int) -> None:
        self._place = None
        count = self._pods.get(ip, 0) + step
        if count:
            self._pods[ip] = count
        else:
            del self._pods[ip]
        if _canonical(ip) == self._own:
            self._own_pods += step


def _canonical(ip: str) -> str:
    """Return an IPv6 address in its canonical form, any other unchanged."""
    if ":" not in ip:
        return ip
    try:
        return str(ipaddress.ip_address(ip))
    except ValueError:
        return ip
