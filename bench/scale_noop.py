"""The cost of an event that changes nothing, from its line in the watch to the comparison: no server, no network."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from activator.control_plane.reconcile.reconciler import Reconciler
from activator.kubernetes.client import KubeClient
from activator.kubernetes.credentials import Credentials
from activator.kubernetes.object_store import Handler
from activator.kubernetes.objects import KubeObject
from activator.kubernetes.reflector import Reflector
from activator.kubernetes.resources import Selection
from activator.runtime.controller_counts import Controllers
from bench.allocations import Allocations, allocations
from bench.scale_source import (
    ACTIVATIONS,
    Activation,
    Deployment,
    Marks,
    OwnedService,
    ScaleSource,
    SliceMarks,
    conditions_of,
    named,
)
from lb.rng import Rng
from tests.kubernetes.kube_samples import endpoint_slice

EVENTS = 2_000
ROUNDS = 5


class Noop(NamedTuple):
    """The cost of one event: the best of ROUNDS, in us; `allocated` is None without a C compiler."""

    objects: int
    event_us: float
    allocated: Allocations | None


class Silent:
    """An API that must not be called."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was called: the reconciler wanted to write")


async def measured(objects: int) -> Noop:
    """Measure with this many Activations, all of which are as desired."""
    source = ScaleSource("default", lambda desired: True)
    reconciler = Reconciler(
        Silent(),
        Controllers(time.monotonic),
        time.monotonic,
        time.time,
        Rng(1),
        lambda report: None,
        _failed,
    )
    source._want = reconciler.want
    reflector = _filled(source, objects)
    source.flush()
    assert reconciler.no_pass_total == objects, "everything is as desired from the beginning"
    version = 10_000_000

    def lines() -> list[bytes]:
        nonlocal version
        found = []
        for number in range(EVENTS):
            version += 1
            found.append(_event((number * 7919) % objects, version))
        return found

    best_us = float("inf")
    for _ in range(ROUNDS):
        events = lines()
        began_s = time.perf_counter()
        for line in events:
            reflector._apply_event(line)
            source.flush()
        best_us = min(best_us, (time.perf_counter() - began_s) * 1e6 / EVENTS)
    events = lines()

    def once() -> None:
        for line in events:
            reflector._apply_event(line)
            source.flush()

    allocated = allocations(once, EVENTS)
    await reconciler.close()
    return Noop(objects, best_us, allocated)


def _failed(name: str, error: BaseException) -> None:
    raise error


def _filled(source: ScaleSource, objects: int) -> Reflector[Activation]:
    handler: Handler[Activation] = Marks(source, named)
    client = KubeClient(Credentials({"KUBECONFIG": str(Path("/nowhere"))}, time.monotonic), "activator/bench")
    reflector = Reflector(client, Selection(ACTIVATIONS), handler, time.monotonic, Rng(1))
    things = [msgspec.json.decode(json.dumps(_activation(number, 1)), type=Activation) for number in range(objects)]
    targets = [msgspec.json.decode(json.dumps(_target(number)), type=Deployment) for number in range(objects)]
    services = [msgspec.json.decode(json.dumps(_service(number)), type=OwnedService) for number in range(objects)]
    source.activations, source.deployments = reflector.store, _by_key(targets)
    source.services = _by_key(services)
    marks = SliceMarks(source)
    from activator.kubernetes.objects import EndpointSlice

    for number in range(objects):
        text = json.dumps(_slice(number))
        marks.changed(None, msgspec.json.decode(text, type=EndpointSlice))
    reflector.contents.replace(_by_key(things))
    return reflector


def _by_key(things: list[Any]) -> Mapping[tuple[str, str], Any]:
    found: dict[tuple[str, str], KubeObject] = {thing.key: thing for thing in things}
    return found


def _name(number: int) -> str:
    return f"bench-{number:05d}"


def _activation(number: int, version: int) -> dict[str, Any]:
    conditions = [
        {**msgspec.to_builtins(one), "lastTransitionTime": "2026-01-01T00:00:00Z"} for one in conditions_of(2, 2)
    ]
    return {
        "apiVersion": "activator.dev/v1alpha1",
        "kind": "Activation",
        "metadata": {
            "name": _name(number),
            "namespace": "default",
            "uid": f"uid-{number}",
            "resourceVersion": str(version),
            "generation": 1,
            "annotations": {"activator.dev/reconcile-trigger": str(version)},
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {"target": {"name": _name(number)}, "port": 8080, "scaling": {"min": 2}},
        "status": {"observedGeneration": 1, "ready": 2, "wanted": 2, "conditions": conditions},
    }


def _target(number: int) -> dict[str, Any]:
    metadata = {"name": _name(number), "namespace": "default", "uid": f"target-{number}", "resourceVersion": "1"}
    return {"metadata": metadata, "spec": {"replicas": 2, "selector": {"matchLabels": {"app": _name(number)}}}}


def _service(number: int) -> dict[str, Any]:
    metadata = {
        "name": f"{_name(number)}-pods",
        "namespace": "default",
        "uid": f"service-{number}",
        "resourceVersion": "1",
        "labels": {"activator.dev/activation": _name(number)},
        "ownerReferences": [{"uid": f"uid-{number}", "controller": True}],
    }
    port = {"name": "http", "port": 80, "targetPort": 8080}
    return {"metadata": metadata, "spec": {"selector": {"app": _name(number)}, "ports": [port]}}


def _slice(number: int) -> dict[str, Any]:
    thing = endpoint_slice(f"{_name(number)}-s", [2 * number, 2 * number + 1])
    thing["metadata"] |= {"namespace": "default", "labels": {"activator.dev/activation": _name(number)}}
    return thing


def _event(number: int, version: int) -> bytes:
    return json.dumps({"type": "MODIFIED", "object": _activation(number, version)}, separators=(",", ":")).encode()


def run(objects: list[int]) -> list[Noop]:
    """Measure with each number of objects."""

    async def all_of_them() -> list[Noop]:
        return [await measured(count) for count in objects]

    return asyncio.run(all_of_them())
