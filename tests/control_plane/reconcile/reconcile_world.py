"""A reconciler on a fake cluster: the definition of Activations, what is wanted, and an API without a network."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from activator.control_plane.reconcile import wire
from activator.control_plane.reconcile.desired import (
    ConditionSpec,
    Desired,
    EventSpec,
    Observed,
    PodsService,
    TargetReference,
)
from activator.control_plane.reconcile.reconciler import Reconciler
from activator.control_plane.reconcile.report import Report
from activator.kubernetes.errors import RefusedError, UnreachableError
from activator.runtime.controller_counts import Controllers
from lb.rng import Rng
from tests.kubernetes.fake_api_server import FakeApiServer, Fault, Target
from tests.kubernetes.fake_controllers import deployment
from tests.kubernetes.fake_objects import Collection, Json, RefusalError
from tests.manual_clock import ManualClock

NAMESPACE = "default"
CONDITIONS = ("Ready", "Active", "ScaledToZero", "Degraded")

DEFINITION: Json = {
    "metadata": {"name": "activations.activator.dev"},
    "spec": {
        "group": "activator.dev",
        "scope": "Namespaced",
        "names": {"plural": "activations", "singular": "activation", "kind": "Activation", "shortNames": ["act"]},
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "required": ["spec"],
                        "properties": {
                            "spec": {
                                "type": "object",
                                "required": ["target"],
                                "properties": {
                                    "target": {
                                        "type": "object",
                                        "required": ["name"],
                                        "properties": {
                                            "apiVersion": {"type": "string", "default": "apps/v1"},
                                            "kind": {"type": "string", "default": "Deployment"},
                                            "name": {"type": "string", "minLength": 1, "maxLength": 253},
                                        },
                                    },
                                    "port": {"x-kubernetes-int-or-string": True, "default": 8080},
                                    "replicas": {"type": "integer", "format": "int32", "minimum": 0},
                                },
                            },
                            "status": {
                                "type": "object",
                                "properties": {
                                    "observedGeneration": {"type": "integer", "format": "int64"},
                                    "hosts": {"type": "array", "items": {"type": "string"}},
                                    "ready": {"type": "integer", "format": "int32"},
                                    "wanted": {"type": "integer", "format": "int32"},
                                    "conditions": {
                                        "type": "array",
                                        "x-kubernetes-list-type": "map",
                                        "x-kubernetes-list-map-keys": ["type"],
                                        "items": {
                                            "type": "object",
                                            "required": ["type", "status"],
                                            "properties": {
                                                "type": {"type": "string"},
                                                "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
                                                "reason": {"type": "string"},
                                                "message": {"type": "string"},
                                                "lastTransitionTime": {"type": "string", "format": "date-time"},
                                            },
                                        },
                                    },
                                },
                            },
                        },
                    }
                },
            }
        ],
    },
}


def activation(name: str, **spec: Any) -> Json:
    return {
        "apiVersion": "activator.dev/v1alpha1",
        "kind": "Activation",
        "metadata": {"name": name},
        "spec": {"target": {"name": name}, **spec},
    }


def desired_of(thing: Json, replicas: int | None = 0, ready: int = 0, **changes: Any) -> Desired:
    """What a source would want for it."""
    metadata = thing["metadata"]
    name = metadata["name"]
    active = bool(replicas)
    conditions = (
        ConditionSpec("Ready", "True", "Ready", "Requests are served."),
        ConditionSpec("Active", str(active), "Requested" if active else "NoTraffic", "Whether pods are wanted."),
    )
    whole = Desired(
        key=f"{metadata['namespace']}/{name}",
        uid=metadata["uid"],
        generation=metadata["generation"],
        target=TargetReference("apps/v1", "Deployment", name),
        replicas=replicas,
        service=PodsService(f"{name}-pods", {"app": name}, "http", 8080),
        conditions=conditions,
        wanted=replicas or 0,
        ready=ready,
    )
    return msgspec.structs.replace(whole, **changes)


def event(reason: str = "Scaled", note: str = "from 0 to 1", warning: bool = False) -> EventSpec:
    return EventSpec(reason, "Scale", note, warning)


class DirectApi:
    """The calls of our client, answered by the fake server without a network. `faults`: for the next calls, in order.

    `calls` are those that came, as (verb, resource with subresource). `held`: calls of this verb wait for `release`.
    """

    def __init__(self, server: FakeApiServer) -> None:
        self.server = server
        self.calls: list[tuple[str, str]] = []
        self.faults: list[Fault | None] = []
        self.before: Callable[[str, str], None] = lambda verb, path: None
        self.away = False
        self.hold: asyncio.Event | None = None
        self.running = self.most_running = 0

    async def get(self, path: str, query: Mapping[str, str] = {}) -> bytes:
        return await self._call("get", path, query)

    async def list_page(self, path: str, query: Mapping[str, str]) -> bytes:
        return await self._call("list", path, query)

    async def create(self, collection: str, thing: Mapping[str, Any], field_manager: str) -> bytes:
        return await self._call("create", collection, {"fieldManager": field_manager}, thing, "application/json")

    async def apply(self, path: str, wanted: Mapping[str, Any], field_manager: str, force: bool = False) -> bytes:
        query = {"fieldManager": field_manager, "force": str(force).lower()}
        return await self._call("patch", path, query, wanted, "application/apply-patch+yaml")

    async def merge_patch(self, path: str, patch: Mapping[str, Any], field_manager: str) -> bytes:
        query = {"fieldManager": field_manager}
        return await self._call("patch", path, query, patch, "application/merge-patch+json")

    async def delete(self, path: str, uid: str, resource_version: str = "") -> bytes:
        preconditions = {"uid": uid, **({"resourceVersion": resource_version} if resource_version else {})}
        return await self._call("delete", path, {}, {"preconditions": preconditions}, "application/json")

    async def _call(
        self, verb: str, path: str, query: Mapping[str, str], body: Mapping[str, Any] | None = None, kind: str = ""
    ) -> bytes:
        target = Target(path)
        resource = f"{target.plural}/{target.subresource}" if target.subresource else target.plural
        self.calls.append((verb, resource or target.prefix))
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await asyncio.sleep(0)
            if self.hold is not None:
                await self.hold.wait()
            fault = self.faults.pop(0) if self.faults else None
            if self.away or fault is Fault.LOST_REQUEST:
                raise UnreachableError("cut")
            self.before(verb, path)
            answer = self._answered(verb, target, dict(query), body, kind)
            await asyncio.sleep(0)
            if fault is not None:
                raise UnreachableError("cut after it was done")
            return json.dumps(answer).encode()
        finally:
            self.running -= 1

    def _answered(
        self, verb: str, target: Target, query: dict[str, str], body: Mapping[str, Any] | None, kind: str
    ) -> Json:
        server = self.server
        try:
            if not target.plural:
                found = server.kinds.discovery(target.prefix)
                if found is None:
                    raise RefusalError(404, "", "404 page not found")
                return found
            known = server.kinds.get(target.prefix, target.plural)
            if known is None or not server._has(known, target.subresource):
                raise RefusalError(404, "", "404 page not found")
            server._authorize(verb, target)
            collection = server.kinds.collection(target.prefix, target.plural)
            raw = b"" if body is None else json.dumps(body).encode()
            return server._do(verb, collection, target, query, raw, kind)[1]
        except RefusalError as refusal:
            raise RefusedError(refusal.code, refusal.reason, refusal.message, refusal.retry_after_s) from refusal

    def taken(self) -> Counter[tuple[str, str]]:
        """The calls since the last time."""
        calls, self.calls = self.calls, []
        return Counter(calls)


class World:
    """A cluster with the definition, a reconciler, and time that passes when a test says so."""

    def __init__(self, kind: type[Reconciler] = Reconciler, **settings: Any) -> None:
        self.server = FakeApiServer()
        self.server.create("customresourcedefinitions", DEFINITION, "")
        self.api = DirectApi(self.server)
        self.clock = ManualClock()
        self.controllers = Controllers(self.clock.now)
        self.reports: list[Report] = []
        self.errors: list[BaseException] = []
        self.pauses: list[float] = []
        self.reconciler = kind(
            self.api,
            self.controllers,
            self.clock.now,
            lambda: 1_767_225_600.0 + self.clock.now_s,
            Rng(1),
            self.reports.append,
            lambda name, error: self.errors.append(error),
            call_later=self.clock.call_later,
            pause=self._pause,
            **settings,
        )

    async def _pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.clock.pass_time(seconds)
        await asyncio.sleep(0)

    # --- the cluster ------------------------------------------------------------------------------------------------

    def collection(self, plural: str) -> Collection:
        return self.server.collection(plural)

    def one(self, plural: str, name: str) -> Json:
        return self.collection(plural).objects[NAMESPACE, name]

    def has(self, plural: str, name: str) -> bool:
        return (NAMESPACE, name) in self.collection(plural).objects

    def make(self, name: str, replicas: int = 0, manager: str = "") -> Json:
        """A Deployment and its Activation."""
        collection = self.collection("deployments")
        self.server.objects.create(collection, NAMESPACE, deployment(name, replicas), manager)
        return self.server.create("activations", activation(name))

    def observed(self, name: str) -> Observed:
        """What watches would show that are not behind."""
        version = str(self.server.objects.version)
        service, target, thing = (
            self.collection(plural).objects.get((NAMESPACE, key))
            for plural, key in (("services", f"{name}-pods"), ("deployments", name), ("activations", name))
        )
        return Observed(
            None if service is None else wire.service_seen(json.dumps(service).encode()),
            None if target is None else wire.scale_seen(json.dumps(target).encode()),
            None if thing is None else wire.status_seen(json.dumps(thing).encode()),
            version,
        )

    # --- time -------------------------------------------------------------------------------------------------------

    async def settle(self) -> None:
        """Until no pass runs or waits for its turn."""
        async with asyncio.timeout(30):
            await asyncio.sleep(0)
            while not self.reconciler.is_quiet:  # noqa: ASYNC110 - nobody tells a test that a pass has ended
                await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert not self.errors, self.errors

    async def pass_time(self, seconds: float) -> None:
        self.clock.pass_time(seconds)
        await self.settle()


@asynccontextmanager
async def world(**settings: Any) -> AsyncIterator[World]:
    made = World(**settings)
    try:
        yield made
    finally:
        await made.reconciler.close()
