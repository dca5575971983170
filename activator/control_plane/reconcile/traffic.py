"""Writes where the requests of a Service go: our EndpointSlices, and one label in the Service's selector.

Rules
  1. Endpoints are added before others are removed. On the way into the path our slices are written before the pods
     leave the cluster's slices; on the way out the cluster's slices show the pods before ours are emptied.
  2. Our slice is owned by the Service, and is deleted with it only. A slice of that name with another owner is not
     forced: the conflict is reported.
  3. Only one key of the Service's selector is written, by a patch that names its UID. Concurrent changes of a user
     stay, and our change can be reverted without knowledge of the rest.
  4. Only relevant fields are compared: addresses, conditions, topology and ports.
"""

from __future__ import annotations

from typing import Final, final

import msgspec

from activator.control_plane.reconcile.api import Api, Json, is_conflict, not_found
from activator.control_plane.reconcile.report import UNCHANGED, WRITTEN, Component, ComponentResult, Result
from activator.control_plane.reconcile.rights import ENDPOINT_SLICES, SERVICES
from activator.control_plane.reconcile.run import ReconcileRun
from activator.control_plane.reconcile.traffic_wanted import (
    IN_PATH_LABEL,
    IN_PATH_VALUE,
    MANAGED_BY_LABEL,
    NO_TRAFFIC_SEEN,
    OURS,
    SERVICE_NAME_LABEL,
    THE_CLUSTERS,
    DesiredPath,
    FrontEndpoint,
    FrontPort,
    FrontSlice,
    ObservedFrontSlice,
    ObservedTraffic,
    Position,
)
from activator.control_plane.reconcile.writer import MANAGERS

PODS_LISTED_S: Final = 0.3  # between two checks whether the cluster's slices show the pods
SLICES_LISTED_MAX: Final = 50  # the cluster's slices of one Service; one with a ready endpoint is enough

_LABEL_PATCH: Final = {True: IN_PATH_VALUE, False: None}


class _Struct(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """The base of the decoded structs; unknown fields are skipped."""


class _Conditions(_Struct, frozen=True, gc=False):
    ready: bool | None = None


class _Endpoint(_Struct, frozen=True, gc=False):
    addresses: list[str] = []
    conditions: _Conditions = _Conditions()


class _Slice(_Struct, frozen=True, gc=False):
    endpoints: list[_Endpoint] | None = None


class _SliceList(_Struct, frozen=True, gc=False):
    items: list[_Slice] | None = None


class _Metadata(_Struct, frozen=True, gc=False):
    resource_version: str = ""


class _Object(_Struct, frozen=True, gc=False):
    metadata: _Metadata = _Metadata()


_OBJECT: Final = msgspec.json.Decoder(_Object)
_SLICES: Final = msgspec.json.Decoder(_SliceList)


@final
class TrafficComponent:
    """The component that writes slices and the label."""

    component = Component.TRAFFIC

    def has_work(self, run: ReconcileRun) -> bool:
        """Return False if no traffic is declared, or if it is as wanted."""
        wanted = run.desired.traffic
        if wanted is None or not run.desired.present:
            return False
        seen = _observed(run)
        slices_differ = bool(_changed_slices(wanted, seen) or _surplus_slices(wanted, seen))
        return slices_differ or _is_alone(wanted) != seen.is_alone

    async def run(self, run: ReconcileRun) -> ComponentResult:
        """Write slices and the label; raise the API's refusal."""
        wanted = run.desired.traffic
        if wanted is None or not run.desired.present:
            return UNCHANGED
        seen = _observed(run)
        if wanted.service_uid != seen.service_uid:
            return ComponentResult(
                Result.NOT_FOUND, f"the Service {run.desired.namespace}/{wanted.service} was replaced"
            )
        for former in _surplus_slices(wanted, seen):
            run.memory.traffic.deleted.add(former.uid)
            await delete_slice(run.writer.api, run.desired.namespace, former.slice.name, former.uid)
        changed, label_changes = _changed_slices(wanted, seen), _is_alone(wanted) != seen.is_alone
        if wanted.position is Position.OUT:
            return await self._leave_path(run, wanted, changed, label_changes)
        for front_slice in changed:
            await self._apply_slice(run, wanted, front_slice)
        if label_changes:
            await self._write_label(run, wanted)
        return WRITTEN

    async def _leave_path(
        self, run: ReconcileRun, wanted: DesiredPath, changed: list[FrontSlice], label_changes: bool
    ) -> ComponentResult:
        """Remove the label, and empty our slices once the slices of the cluster show the pods (rule 1)."""
        if label_changes:
            await self._write_label(run, wanted)
        if changed and wanted.has_pods:
            has_endpoints = any(front_slice.slice.endpoints for front_slice in _observed(run).slices)
            if has_endpoints and not await shows_pods(run.writer.api, run.desired.namespace, wanted.service):
                message = "the slices of the cluster do not show the pods yet"
                return ComponentResult(Result.WAITING, message, again_in_s=PODS_LISTED_S)
        for front_slice in changed:
            await self._apply_slice(run, wanted, front_slice)
        return WRITTEN

    async def _apply_slice(self, run: ReconcileRun, wanted: DesiredPath, front_slice: FrontSlice) -> None:
        """Write one of our slices, and remember the answer."""
        path = ENDPOINT_SLICES.path(run.desired.namespace, front_slice.name)
        body = slice_body(run.desired.namespace, wanted, front_slice)
        call = run.writer.api.apply(path, body, MANAGERS[self.component])
        try:
            run.memory.traffic.slices.pop(front_slice.name, None)  # unknown until the answer
            answer = await run.writer.counted(self.component, call)
        except Exception as error:
            if is_conflict(error):
                run.writer.count_conflict(self.component, error)
            raise
        run.memory.traffic.slices[front_slice.name] = (front_slice, _version(answer))

    async def _write_label(self, run: ReconcileRun, wanted: DesiredPath) -> None:
        """Write or remove our label in the selector of the Service."""
        path = SERVICES.path(run.desired.namespace, wanted.service)
        patch = label_patch(wanted.service_uid, _is_alone(wanted))
        call = run.writer.api.merge_patch(path, patch, MANAGERS[self.component])
        run.memory.traffic.is_alone = None  # unknown until the answer
        answer = await run.writer.counted(self.component, call)
        run.memory.traffic.is_alone = (_is_alone(wanted), _version(answer))


def _observed(run: ReconcileRun) -> ObservedTraffic:
    """Return the observed traffic, with the answers to our last writes."""
    watched = run.desired.observed.traffic
    return NO_TRAFFIC_SEEN if watched is None else run.memory.traffic.merged_with(watched)


def _version(answer: bytes) -> str:
    return _OBJECT.decode(answer).metadata.resource_version


def _is_alone(wanted: DesiredPath) -> bool:
    """Return True if the selector is to have our label."""
    return wanted.position is Position.ALONE


def _changed_slices(wanted: DesiredPath, seen: ObservedTraffic) -> list[FrontSlice]:
    """Return the wanted slices that do not exist yet, or differ."""
    existing = {observed.slice.name: (observed.slice, observed.service_uid) for observed in seen.slices}
    return [
        front_slice
        for front_slice in wanted.slices
        if existing.get(front_slice.name) != (front_slice, wanted.service_uid)
    ]


def _surplus_slices(wanted: DesiredPath, seen: ObservedTraffic) -> list[ObservedFrontSlice]:
    """Return our slices of an address family that the Service no longer has."""
    names = {front_slice.name for front_slice in wanted.slices}
    return [observed for observed in seen.slices if observed.slice.name not in names and observed.uid]


async def shows_pods(api: Api, namespace: str, service: str) -> bool:
    """Return True if the cluster's slices of this Service have a ready endpoint."""
    labels = f"{SERVICE_NAME_LABEL}={service},{MANAGED_BY_LABEL}={THE_CLUSTERS}"
    query = {"labelSelector": labels, "limit": str(SLICES_LISTED_MAX)}
    body = await api.list_page(ENDPOINT_SLICES.collection(namespace), query)
    return any(
        endpoint.addresses and endpoint.conditions.ready is not False
        for cluster_slice in _SLICES.decode(body).items or ()
        for endpoint in cluster_slice.endpoints or ()
    )


async def delete_slice(api: Api, namespace: str, name: str, uid: str) -> None:
    """Delete one of our slices; one that does not exist is no error."""
    try:
        await api.delete(ENDPOINT_SLICES.path(namespace, name), uid)
    except Exception as error:
        if not not_found(error):
            raise


def label_patch(service_uid: str, is_alone: bool) -> Json:
    """Return a merge patch of one key of a Service's selector."""
    return {"metadata": {"uid": service_uid}, "spec": {"selector": {IN_PATH_LABEL: _LABEL_PATCH[is_alone]}}}


def slice_body(namespace: str, wanted: DesiredPath, front_slice: FrontSlice) -> Json:
    owner = {"apiVersion": "v1", "kind": "Service", "name": wanted.service, "uid": wanted.service_uid}
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": front_slice.name,
            "namespace": namespace,
            "labels": {SERVICE_NAME_LABEL: wanted.service, MANAGED_BY_LABEL: OURS},
            "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": False}],
        },
        "addressType": front_slice.address_type,
        "endpoints": [_endpoint(endpoint) for endpoint in front_slice.endpoints],
        "ports": [_port(port) for port in front_slice.ports],
    }


def _endpoint(endpoint: FrontEndpoint) -> Json:
    conditions = {"ready": endpoint.ready, "serving": endpoint.serving, "terminating": endpoint.terminating}
    body: Json = {"addresses": [endpoint.address], "conditions": conditions}
    if endpoint.node:
        body["nodeName"] = endpoint.node
    if endpoint.zone:
        body["zone"] = endpoint.zone
    return body


def _port(port: FrontPort) -> Json:
    body: Json = {"name": port.name, "port": port.number, "protocol": "TCP"}
    return {**body, "appProtocol": port.app_protocol} if port.app_protocol else body
