"""Reads pods from the endpoints of a revision's private Service.

Rules
  1. EndpointSlices are preferred; Endpoints count where a Service has no slice (an old cluster, or a Service whose
     slices have not been made yet).
  2. A pod is identified by its UID; an address without one is its own identity. A pod in several slices (while the
     slice controller moves it) or of two address families is one pod, at the address of the Service's first family.
  3. An endpoint without a readiness condition is ready. A terminating one is about to end, ready or not.
  4. The zone is that of the endpoint, which has it from the node; Endpoints have none.
  5. Only ports of the wanted name count: `http` for HTTP/1.

Sources: discovery.k8s.io/v1 EndpointConditions; knative.dev/serving pkg/activator/net/helpers.go, endpointsToDests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple

from activator.config.zones import is_zone
from activator.kubernetes.objects import EndpointAddress, Endpoints, EndpointSlice, EndpointSubset


class Backend(NamedTuple):
    """One pod as its endpoints describe it; `address` is ip:port as Go's net.JoinHostPort writes it."""

    identity: str
    address: str
    ready: bool
    terminating: bool
    zone: str = ""  # empty: not known


def of_slices(slices: Iterable[EndpointSlice], port_name: str) -> list[Backend]:
    """Return the pods of one Service, each once, sorted by address."""
    pods: dict[str, Backend] = {}
    for pod_slice in sorted(slices, key=by_family):
        for identity, backend in of_slice(pod_slice, port_name).items():
            pods[identity] = merged_record(pods.get(identity), backend)
    return sorted(pods.values(), key=by_address)


def of_slice(pod_slice: EndpointSlice, port_name: str) -> dict[str, Backend]:
    """Return the pods of one slice by identity, in its order."""
    pods: dict[str, Backend] = {}
    port = next((port.port for port in pod_slice.ports or [] if (port.name or "") == port_name and port.port), None)
    if port is None or pod_slice.address_type == "FQDN":
        return pods
    for endpoint in pod_slice.endpoints or []:
        if not endpoint.addresses:
            continue
        address = _joined(endpoint.addresses[0], port)
        conditions = endpoint.conditions
        target = endpoint.target_ref
        identity = target.uid if target is not None and target.uid else address
        zone = endpoint.zone or ""
        if not is_zone(zone):
            zone = ""
        backend = Backend(identity, address, conditions.ready is not False, conditions.terminating is True, zone)
        pods[identity] = merged_record(pods.get(identity), backend)
    return pods


def of_endpoints(objects: Iterable[Endpoints], port_name: str) -> list[Backend]:
    """Return the pods of Endpoints, sorted by address; there are two objects only while the Service is replaced."""
    pods: dict[str, Backend] = {}
    for subset in chain.from_iterable(endpoints.subsets or [] for endpoints in objects):
        port = next((port.port for port in subset.ports or [] if (port.name or "") == port_name and port.port), None)
        if port is None:
            continue
        for entry, ready in _addresses(subset):
            address = _joined(entry.ip, port)
            identity = entry.target_ref.uid if entry.target_ref is not None and entry.target_ref.uid else address
            pods[identity] = merged_record(pods.get(identity), Backend(identity, address, ready, False))
    return sorted(pods.values(), key=by_address)


def merged_record(known: Backend | None, other: Backend) -> Backend:
    """Merge two records of one pod: the first address and zone; ready or terminating if one of them is."""
    if known is None:
        return other
    return known._replace(
        ready=known.ready or other.ready,
        terminating=known.terminating or other.terminating,
        zone=known.zone or other.zone,
    )


def by_family(pod_slice: EndpointSlice) -> tuple[bool, str]:
    """Return the sort key by which the slices of a Service are read."""
    return (pod_slice.address_type != "IPv4", pod_slice.metadata.name)


def by_address(backend: Backend) -> str:
    return backend.address


def _addresses(subset: EndpointSubset) -> Iterator[tuple[EndpointAddress, bool]]:
    """Yield the addresses of a subset, each with True if it is ready."""
    for address in subset.addresses or []:
        yield address, True
    for address in subset.not_ready_addresses or []:
        yield address, False


def _joined(ip: str, port: int) -> str:
    """Return the address with the port; an IPv6 address gets brackets."""
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"
