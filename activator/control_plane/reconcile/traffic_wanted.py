"""What is wanted of the traffic of a Service, and what watches show of it: where its requests go.

Rules
  1. A Service is in one of three positions. OUT: its requests go to its pods, by the slices that the cluster makes;
     what is ours holds no endpoint. BESIDE: our endpoints stand beside those of the pods. ALONE: only ours.
  2. It is ALONE by one more label in the selector of the Service, which no pod has: so the cluster takes the pods out
     of its own slices, and no other field of the Service is touched. The rest of the selector may be edited meanwhile.
  3. In every position the Service has endpoints that work, so a step between two that are neighbours loses nothing.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

import msgspec

IN_PATH_LABEL: Final = "activator.dev/in-path"  # in the selector of a Service whose requests all come to us
IN_PATH_VALUE: Final = "only"
SERVICE_NAME_LABEL: Final = "kubernetes.io/service-name"  # on slices, as the API has them …
MANAGED_BY_LABEL: Final = "endpointslice.kubernetes.io/managed-by"  # … with whose they are
OURS: Final = "activator.dev"
THE_CLUSTERS: Final = "endpointslice-controller.k8s.io"
FRONT_ENDPOINTS_MAX: Final = 100  # replicas of the activator in one slice, as the cluster's own controller has it


class Position(Enum):
    """Where the requests of a Service go; see rule 1."""

    OUT = "out"
    BESIDE = "beside"
    ALONE = "alone"


class FrontEndpoint(msgspec.Struct, frozen=True):
    """One replica of the activator, as its own Service's slices show it."""

    address: str
    ready: bool = True
    serving: bool = True
    terminating: bool = False
    node: str = ""
    zone: str = ""


class FrontPort(msgspec.Struct, frozen=True):
    """`name` is that of the Service's port, `number` the port on which the activator knows this Service."""

    name: str
    number: int
    app_protocol: str = ""


class FrontSlice(msgspec.Struct, frozen=True):
    """An EndpointSlice of ours, of one address family."""

    name: str
    address_type: str
    endpoints: tuple[FrontEndpoint, ...]
    ports: tuple[FrontPort, ...]


class FrontSliceSeen(msgspec.Struct, frozen=True):
    """One that is there. `service_uid`: of the Service that owns it."""

    slice: FrontSlice
    version: str
    uid: str
    service_uid: str


class Traffic(msgspec.Struct, frozen=True):
    """What is wanted. `has_pods`: pods are ready, so the cluster's slices have to show them before ours hold none."""

    service: str
    service_uid: str
    position: Position
    slices: tuple[FrontSlice, ...]
    has_pods: bool = False


class TrafficSeen(msgspec.Struct, frozen=True):
    """What watches show. `is_alone`: the selector has our label; `slices_version`: that of the watch of slices."""

    service_uid: str
    service_version: str
    is_alone: bool
    slices: tuple[FrontSliceSeen, ...]
    slices_version: str = ""


NO_TRAFFIC_SEEN: Final = TrafficSeen("", "", False, ())


def position_of(seen: TrafficSeen, wanted: tuple[FrontSlice, ...]) -> Position | None:
    """Where the requests go, by what is shown. `wanted`: our slices with their endpoints; None: not as any position."""
    there = {one.slice.name: one.slice for one in seen.slices}
    ports_fit = all(one.name in there and there[one.name].ports == one.ports for one in wanted)
    if not ports_fit:
        return None
    if all(there[one.name].endpoints == one.endpoints for one in wanted) and any(one.endpoints for one in wanted):
        return Position.ALONE if seen.is_alone else Position.BESIDE
    if not seen.is_alone and not any(one.endpoints for one in there.values()):
        return Position.OUT
    return None
