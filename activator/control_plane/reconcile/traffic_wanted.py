"""The desired and the observed traffic of a Service: where its requests go.

Rules
  1. A Service is in one of three positions. OUT: its requests go to its pods, by the cluster's slices; our slices have
     no endpoint. BESIDE: our endpoints are beside those of the pods. ALONE: there are only ours.
  2. A Service becomes ALONE by one more label in its selector, which no pod has. The cluster then removes the pods from
     its own slices; no other field of the Service is touched, and the rest of the selector may be edited.
  3. In every position the Service has working endpoints, so a step between neighbouring positions loses no request.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

import msgspec

IN_PATH_LABEL: Final = "activator.dev/in-path"  # in the selector of a Service in position ALONE
IN_PATH_VALUE: Final = "only"
SERVICE_NAME_LABEL: Final = "kubernetes.io/service-name"  # on slices: the Service, as the API defines it
MANAGED_BY_LABEL: Final = "endpointslice.kubernetes.io/managed-by"  # on slices: their manager, as the API defines it
OURS: Final = "activator.dev"
THE_CLUSTERS: Final = "endpointslice-controller.k8s.io"
FRONT_ENDPOINTS_MAX: Final = 100  # replicas of the activator in one slice, as in the cluster's own controller


class Position(Enum):
    """The position of the activator in the path of a Service's requests; see rule 1."""

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
    """A port of our slice. `name` is that of the Service's port; `number` is the Service's port at the activator."""

    name: str
    number: int
    app_protocol: str = ""


class FrontSlice(msgspec.Struct, frozen=True):
    """An EndpointSlice of ours, of one address family."""

    name: str
    address_type: str
    endpoints: tuple[FrontEndpoint, ...]
    ports: tuple[FrontPort, ...]


class ObservedFrontSlice(msgspec.Struct, frozen=True):
    """An existing slice of ours. `service_uid`: of the Service that owns it."""

    slice: FrontSlice
    version: str
    uid: str
    service_uid: str


class DesiredPath(msgspec.Struct, frozen=True):
    """The desired traffic. `has_pods`: the cluster's slices must show ready pods before ours are emptied."""

    service: str
    service_uid: str
    position: Position
    slices: tuple[FrontSlice, ...]
    has_pods: bool = False


class ObservedTraffic(msgspec.Struct, frozen=True):
    """The observed traffic. `is_alone`: the selector has our label; `slices_version`: that of the watch of slices."""

    service_uid: str
    service_version: str
    is_alone: bool
    slices: tuple[ObservedFrontSlice, ...]
    slices_version: str = ""


NO_TRAFFIC_SEEN: Final = ObservedTraffic("", "", False, ())


def position_of(seen: ObservedTraffic, wanted: tuple[FrontSlice, ...]) -> Position | None:
    """Return the observed position; None: between two. `wanted`: our slices with their endpoints."""
    existing = {ours.slice.name: ours.slice for ours in seen.slices}
    ports_fit = all(ours.name in existing and existing[ours.name].ports == ours.ports for ours in wanted)
    if not ports_fit:
        return None
    are_filled = all(existing[ours.name].endpoints == ours.endpoints for ours in wanted)
    if are_filled and any(ours.endpoints for ours in wanted):
        return Position.ALONE if seen.is_alone else Position.BESIDE
    if not seen.is_alone and not any(ours.endpoints for ours in existing.values()):
        return Position.OUT
    return None
