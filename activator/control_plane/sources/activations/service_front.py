"""Checks whether the requests of a Service can come to the activator, and builds our slices of the Service.

Rules
  1. A port of the Service is taken if it leads to the port of the Activation. A Service with other ports is refused,
     because its slices have no pods while the activator is alone in the path.
  2. A Service that determines itself where its requests go is refused: a headless one, an external name, one without a
     selector, one whose requests stay on their node.
  3. There is one slice for each address family of the Service, named after the Service, so all replicas write the same
     object. A Service with a family in which the activator cannot be reached is refused: alone in the path, the
     activator would leave clients of that family without endpoints.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from activator.config.activation import Declared
from activator.control_plane.reconcile.traffic_wanted import (
    FRONT_ENDPOINTS_MAX,
    IN_PATH_LABEL,
    FrontEndpoint,
    FrontPort,
    FrontSlice,
    ObservedFrontSlice,
    ObservedTraffic,
)
from activator.control_plane.sources.activations.objects import (
    AnnotatedService,
    FrontEndpointRead,
    FrontSliceRead,
    ServicePort,
    Workload,
)
from activator.runtime.child_name import child_name

FAMILIES: Final = ("IPv4", "IPv6")


class Refused(NamedTuple):
    """Why the requests of a Service cannot come to the activator: a reason and a sentence."""

    reason: str
    message: str


def service_of(declared: Declared, key: str) -> str:
    """Return the Service of a transparent Activation, as namespace/name."""
    namespace, _, name = key.partition("/")
    return f"{namespace}/{declared.activation.transparent.service or name}"


def usable_ports(
    service: AnnotatedService | None, declared: Declared, workload: Workload | None, name: str
) -> tuple[ServicePort, ...] | Refused:
    """Return the ports of the Service whose requests come to the activator, or why none can."""
    if service is None:
        return Refused("ServiceNotFound", f"there is no Service {name}: name it in spec.transparent.service")
    spec = service.spec
    refused = _refused(service, name)
    if refused is not None:
        return refused
    numbers = _port_numbers(workload)
    wanted = _number(declared.activation.port, numbers)
    ports = spec.ports or []
    taken = tuple(
        port
        for port in ports
        if port.protocol in ("", "TCP") and _number(port.target_port or port.port, numbers) == wanted
    )
    if not taken:
        return Refused("PortNotFound", f"no port of the Service {name} leads to port {declared.activation.port}")
    other = next((port for port in ports if port not in taken), None)
    if other is not None:
        problem = (
            f"port {other.name or other.port} of the Service {name} does not lead to port {declared.activation.port}"
        )
        return Refused("OtherPorts", f"{problem}: give it a Service of its own")
    return taken


def missing_family(service: AnnotatedService, families: Collection[str], name: str) -> Refused | None:
    """Return why the Service cannot be used: the activator lacks one of its address families; None if it can.

    `families`: those in which the activator can be reached; empty: unknown.
    """
    missing = next((family for family in families_of(service) if family not in families), None)
    if missing is None or not families:
        return None
    reached = " and ".join(sorted(families))
    problem = f"the Service {name} has {missing} addresses, and the activator is reached by {reached} only"
    return Refused("AddressFamily", f"{problem}: give the activator's Service and `listen` {missing} as well")


def families_of(service: AnnotatedService) -> list[str]:
    return service.spec.ip_families or [FAMILIES[0]]


def _refused(service: AnnotatedService, name: str) -> Refused | None:
    """Return why the Service cannot be used, by its type and its policies; None if it can (rule 2)."""
    spec = service.spec
    if spec.type == "ExternalName":
        return Refused("ExternalName", f"the Service {name} is an external name: it has no endpoints")
    if spec.cluster_ip == "None":
        return Refused("Headless", f"the Service {name} is headless: its clients choose pods themselves")
    if not {key for key in spec.selector or {} if key != IN_PATH_LABEL}:
        return Refused("NoSelector", f"the Service {name} has no selector: another program makes its endpoints")
    if "Local" in (spec.external_traffic_policy, spec.internal_traffic_policy):
        return Refused("NodeLocal", f"requests for the Service {name} stay on their node (a traffic policy of Local)")
    return None


def _port_numbers(workload: Workload | None) -> Mapping[str, int]:
    containers = [] if workload is None else workload.spec.template.spec.containers or []
    return {port.name: port.container_port for container in containers for port in container.ports or () if port.name}


def _number(port: int | str, numbers: Mapping[str, int]) -> int | str:
    """Return the number of a port that the workload names; otherwise the port as it is."""
    return numbers.get(port, port) if isinstance(port, str) else port


# --- endpoints and slices --------------------------------------------------------------------------------------------


def replicas_in(slices: Iterable[FrontSliceRead]) -> dict[str, tuple[FrontEndpoint, ...]]:
    """Return the replicas of the activator by address family, from the slices of its own Service."""
    replicas: dict[str, dict[str, FrontEndpoint]] = {}
    for replica_slice in slices:
        for read in replica_slice.endpoints or ():
            if read.addresses:
                replicas.setdefault(replica_slice.address_type, {})[read.addresses[0]] = _endpoint(read)
    return {
        family: tuple(by_address[address] for address in sorted(by_address))[:FRONT_ENDPOINTS_MAX]
        for family, by_address in replicas.items()
    }


def _endpoint(read: FrontEndpointRead) -> FrontEndpoint:
    conditions = read.conditions
    return FrontEndpoint(
        read.addresses[0] if read.addresses else "",
        conditions.ready is not False,
        conditions.serving is not False,
        conditions.terminating is True,
        read.node_name,
        read.zone,
    )


def front_slices(
    service: AnnotatedService,
    ports: Iterable[ServicePort],
    number: int,
    replicas: Mapping[str, tuple[FrontEndpoint, ...]],
) -> tuple[FrontSlice, ...]:
    """Return our slices of the Service, with all replicas of the activator; no slice for a family without replicas."""
    fronts = tuple(FrontPort(port.name, number, port.app_protocol) for port in ports)
    return tuple(
        FrontSlice(front_name(service.metadata.name, family), family, replicas[family], fronts)
        for family in families_of(service)
        if replicas.get(family)
    )


def front_name(service: str, family: str) -> str:
    return child_name(service, f"-activator-{family.lower()}")


def slice_seen(front_slice: FrontSliceRead) -> ObservedFrontSlice:
    """Return one of our slices as it is in the cluster."""
    endpoints = tuple(_endpoint(read) for read in front_slice.endpoints or ())
    ports = tuple(FrontPort(port.name, port.port or 0, port.app_protocol) for port in front_slice.ports or ())
    owner = next((ref.uid for ref in front_slice.metadata.owner_references or () if ref.controller), "")
    shown = FrontSlice(front_slice.metadata.name, front_slice.address_type, endpoints, ports)
    return ObservedFrontSlice(shown, front_slice.metadata.resource_version, front_slice.metadata.uid, owner)


def traffic_seen(
    service: AnnotatedService | None, slices: Iterable[FrontSliceRead], slices_version: str
) -> ObservedTraffic:
    """Return where the requests of a Service go, as the watches show it."""
    seen = tuple(slice_seen(front_slice) for front_slice in slices)
    if service is None:
        return ObservedTraffic("", "", False, seen, slices_version)
    metadata = service.metadata
    return ObservedTraffic(metadata.uid, metadata.resource_version, is_labelled(service), seen, slices_version)


def is_labelled(service: AnnotatedService) -> bool:
    """Return True if the activator has changed the selector, so that the Service's slices have no pods."""
    return IN_PATH_LABEL in (service.spec.selector or {})
