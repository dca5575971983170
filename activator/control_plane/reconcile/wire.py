"""Decodes the API's answers to observed states, and encodes desired states to request bodies.

Rules
  1. Only relevant fields are compared, one by one: defaults, timestamps and additions of others do not count, and no
     hash is stored.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Final

import msgspec

from activator.control_plane.reconcile.api import Json
from activator.control_plane.reconcile.desired import (
    ACTIVATION_KIND,
    ACTIVATION_LABEL,
    ACTIVATION_VERSION,
    PODS_PORT,
    ConditionSpec,
    Desired,
    ObservedCondition,
    ObservedScale,
    ObservedService,
    ObservedStatus,
    PodsService,
)

_EMPTY: Final[dict[str, str]] = {}


class _Struct(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """The base of the decoded structs; unknown fields are skipped."""


class _Owner(_Struct, frozen=True, gc=False):
    uid: str = ""
    controller: bool | None = None


class _Metadata(_Struct, frozen=True, gc=False):
    name: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] = _EMPTY
    owner_references: list[_Owner] | None = None


class _Port(_Struct, frozen=True, gc=False):
    name: str = ""
    port: int = 0
    target_port: int | str = 0
    app_protocol: str = ""


class _ServiceSpec(_Struct, frozen=True, gc=False):
    cluster_ip: str = msgspec.field(name="clusterIP", default="")
    selector: dict[str, str] = _EMPTY
    ports: list[_Port] | None = None


class _Service(_Struct, frozen=True, gc=False):
    metadata: _Metadata = _Metadata()
    spec: _ServiceSpec = _ServiceSpec()


class _ServiceList(_Struct, frozen=True, gc=False):
    items: list[_Service] | None = None


class _ScaleSpec(_Struct, frozen=True, gc=False):
    replicas: int = 0  # the API leaves out a zero


class _Scale(_Struct, frozen=True, gc=False):
    metadata: _Metadata = _Metadata()
    spec: _ScaleSpec = _ScaleSpec()


class _Status(_Struct, frozen=True, gc=False):
    observed_generation: int = 0
    ready: int = 0
    wanted: int = 0
    hosts: list[str] | None = None
    conditions: list[ObservedCondition] | None = None


class _Activation(_Struct, frozen=True, gc=False):
    metadata: _Metadata = _Metadata()
    status: _Status = _Status()


_SERVICE: Final = msgspec.json.Decoder(_Service)
_SERVICES: Final = msgspec.json.Decoder(_ServiceList)
_SCALE: Final = msgspec.json.Decoder(_Scale)
_ACTIVATION: Final = msgspec.json.Decoder(_Activation)


# --- decoded --------------------------------------------------------------------------------------------------------


def service_seen(body: bytes) -> ObservedService:
    """Decode a Service; raise msgspec.DecodeError."""
    return _seen(_SERVICE.decode(body))


def services_seen(body: bytes) -> tuple[ObservedService, ...]:
    """Decode a list of Services; raise msgspec.DecodeError."""
    return tuple(_seen(service) for service in _SERVICES.decode(body).items or ())


def _seen(service: _Service) -> ObservedService:
    metadata, spec = service.metadata, service.spec
    owner = next((reference.uid for reference in metadata.owner_references or () if reference.controller), "")
    port = next((port for port in spec.ports or () if port.port == PODS_PORT), _Port())
    return ObservedService(
        metadata.name,
        metadata.uid,
        metadata.resource_version,
        owner,
        metadata.labels.get(ACTIVATION_LABEL, ""),
        spec.selector,
        spec.cluster_ip == "None",
        port.name,
        port.target_port,
        port.app_protocol,
    )


def scale_seen(body: bytes) -> ObservedScale:
    """Decode a scale; raise msgspec.DecodeError."""
    scale = _SCALE.decode(body)
    return ObservedScale(scale.spec.replicas, scale.metadata.resource_version, scale.metadata.uid)


def status_seen(body: bytes) -> ObservedStatus:
    """Decode an Activation; raise msgspec.DecodeError."""
    activation = _ACTIVATION.decode(body)
    metadata, status = activation.metadata, activation.status
    return ObservedStatus(
        metadata.uid,
        metadata.resource_version,
        status.observed_generation,
        status.ready,
        status.wanted,
        tuple(status.hosts or ()),
        tuple(status.conditions or ()),
    )


# --- compared -------------------------------------------------------------------------------------------------------


def is_service_as_wanted(seen: ObservedService, service: PodsService, desired: Desired) -> bool:
    """Return True if the Service is as wanted, whatever ports and labels others have added."""
    return (
        seen.name == service.name
        and seen.activation == desired.name
        and seen.owner_uid == desired.uid
        and seen.port_name == service.port_name
        and seen.target_port == service.target_port
        and seen.app_protocol == service.app_protocol
        and seen.selector == service.selector
    )


def is_status_as_wanted(seen: ObservedStatus, desired: Desired) -> bool:
    """Return True if the status is as wanted; times do not count."""
    if (
        seen.observed_generation != desired.generation
        or seen.ready != desired.ready
        or seen.wanted != desired.wanted
        or seen.hosts != desired.hosts
        or len(seen.conditions) != len(desired.conditions)
    ):
        return False
    by_type = {condition.type: condition for condition in seen.conditions}
    return all(_is_condition_as_wanted(by_type.get(condition.type), condition) for condition in desired.conditions)


def _is_condition_as_wanted(seen: ObservedCondition | None, wanted: ConditionSpec) -> bool:
    return (
        seen is not None
        and seen.status == wanted.status
        and seen.reason == wanted.reason
        and seen.message == wanted.message
    )


# --- encoded --------------------------------------------------------------------------------------------------------


def owner_reference(desired: Desired) -> Json:
    return {
        "apiVersion": desired.owner.api_version,
        "kind": desired.owner.kind,
        "name": desired.name,
        "uid": desired.uid,
        "controller": True,
        "blockOwnerDeletion": False,  # True would need a right to the owner's finalizers
    }


def service_body(service: PodsService, desired: Desired, uid: str = "") -> Json:
    """Return the body of the private Service. `uid`: of the object that may be changed."""
    metadata: Json = {
        "name": service.name,
        "namespace": desired.namespace,
        "labels": {ACTIVATION_LABEL: desired.name},
        "ownerReferences": [owner_reference(desired)],
    }
    if uid:
        metadata["uid"] = uid
    port: Json = {
        "name": service.port_name,
        "port": PODS_PORT,
        "protocol": "TCP",
        "targetPort": service.target_port,
    }
    if service.app_protocol:
        port["appProtocol"] = service.app_protocol
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata,
        "spec": {"clusterIP": "None", "selector": dict(service.selector), "ports": [port]},
    }


def scale_body(desired: Desired, replicas: int) -> Json:
    return {
        "apiVersion": "autoscaling/v1",
        "kind": "Scale",
        "metadata": {"name": desired.target.name, "namespace": desired.namespace},
        "spec": {"replicas": replicas},
    }


def status_body(desired: Desired, before: ObservedStatus, now: str) -> Json:
    """Return the body of the status. A condition whose status in `before` stays keeps its last transition time."""
    by_type = {condition.type: condition for condition in before.conditions}
    return {
        "apiVersion": ACTIVATION_VERSION,
        "kind": ACTIVATION_KIND,
        "metadata": {"name": desired.name, "namespace": desired.namespace, "resourceVersion": before.version},
        "status": {
            "observedGeneration": desired.generation,
            "hosts": list(desired.hosts),
            "ready": desired.ready,
            "wanted": desired.wanted,
            "conditions": [_condition(condition, by_type, now) for condition in desired.conditions],
        },
    }


def _condition(wanted: ConditionSpec, by_type: Mapping[str, ObservedCondition], now: str) -> Json:
    old = by_type.get(wanted.type)
    stays = old is not None and old.status == wanted.status and old.last_transition_time
    return {
        "type": wanted.type,
        "status": wanted.status,
        "reason": wanted.reason,
        "message": wanted.message,
        "lastTransitionTime": old.last_transition_time if old is not None and stays else now,
    }


def rfc3339(wall_s: float) -> str:
    """Return a time as in metadata, in whole seconds."""
    return dt.datetime.fromtimestamp(wall_s, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def rfc3339_micro(wall_s: float) -> str:
    """Return a time as in events, in microseconds."""
    return dt.datetime.fromtimestamp(wall_s, dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
