"""`python -m bench kube`: the cost of reading 1,000 endpoints with our structs and with kubernetes-asyncio's models.

The endpoints are those of one Knative revision as an API server writes them, including managed fields: once in one
object and once in slices of 100. Times are the best of many rounds; memory is what the decoded list occupies
(tracemalloc). The cost of the imports is measured in separate processes.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from activator.kubernetes.decoding import Decoding
from activator.kubernetes.objects import BareObject, EndpointSlice, RawList, WatchEvent, unchanged
from bench import header, results
from bench.processes import ROOT, BenchError
from bench.results import Document, Result, Value

ENDPOINTS = 1_000
SHAPES = {"1 object of 1,000": 1, "10 slices of 100": 10}
BAR_MS = 5.0
IMPORTS = {
    "what the data path needs": "import uvloop, httptools, msgspec, yaml, aiohttp",
    "… and the lean import": "from activator.runtime import lean_import;"
    " lean_import.prepare('kubernetes_asyncio'); import kubernetes_asyncio.config",
    "… and all of kubernetes_asyncio": "import kubernetes_asyncio",
}


def endpoint(number: int) -> dict[str, Any]:
    return {
        "addresses": [f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"],
        "conditions": {"ready": True, "serving": True, "terminating": False},
        "nodeName": f"node-{number % 20}",
        "targetRef": {
            "kind": "Pod",
            "name": f"hello-00001-deployment-6bd7f88cf5-{number:05x}",
            "namespace": "default",
            "uid": f"0a1b2c3d-0000-4000-8000-{number:012d}",
        },
        "zone": "zone-a",
    }


def endpoint_slice(name: str, numbers: range) -> dict[str, Any]:
    managed: dict[str, object] = {f"f:{field}": {} for field in ("addressType", "endpoints", "ports", "metadata")}
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": "99999999-0000-4000-8000-000000000000",
            "resourceVersion": "123456",
            "generation": 7,
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {
                "app": "hello-00001",
                "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
                "kubernetes.io/service-name": "hello-00001-private",
                "networking.internal.knative.dev/serviceType": "Private",
                "serving.knative.dev/revision": "hello-00001",
                "serving.knative.dev/revisionUID": "11111111-2222-3333-4444-555555555555",
            },
            "annotations": {"endpoints.kubernetes.io/last-change-trigger-time": "2026-01-01T00:00:00Z"},
            "managedFields": [{"manager": "kube-controller-manager", "operation": "Update", "fieldsV1": managed}],
        },
        "addressType": "IPv4",
        "endpoints": [endpoint(number) for number in numbers],
        "ports": [{"name": "http", "port": 8012, "protocol": "TCP"}, {"name": "http-autometric", "port": 9090}],
    }


def list_body(objects: int) -> bytes:
    """Return the response to a list request in which `objects` objects share the endpoints."""
    each = ENDPOINTS // objects
    items = [endpoint_slice(f"hello-{number}", range(number * each, (number + 1) * each)) for number in range(objects)]
    return json.dumps({"kind": "EndpointSliceList", "metadata": {"resourceVersion": "9"}, "items": items}).encode()


def event_body(endpoints: int) -> bytes:
    return json.dumps({"type": "MODIFIED", "object": endpoint_slice("hello-0", range(endpoints))}).encode()


def best_ms(operation: Callable[[], object], rounds: int) -> float:
    best = float("inf")
    for _ in range(rounds):
        began = time.perf_counter()
        operation()
        best = min(best, time.perf_counter() - began)
    return best * 1e3


def kept_kb(operation: Callable[[], object]) -> float:
    operation()  # warm the caches
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        kept = operation()
        after = tracemalloc.get_traced_memory()[0]
        del kept
    finally:
        tracemalloc.stop()
    return (after - before) / 1024


class Body:
    """A response that has been read, as ApiClient.deserialize expects it."""

    def __init__(self, text: str) -> None:
        self.data = text


async def models(body: bytes) -> Callable[[], object]:
    """Decode the same bytes with kubernetes-asyncio."""
    from kubernetes_asyncio.client import ApiClient, Configuration

    client = ApiClient(Configuration())
    await client.close()  # sends nothing
    return lambda: client.deserialize(Body(body.decode()), "V1EndpointSliceList")


def ways(body: bytes) -> dict[str, Callable[[], object]]:
    decoding = Decoding(EndpointSlice)
    shallow = msgspec.json.Decoder(RawList)
    old = decoding.list(body).items or []
    new = decoding.list(body).items or []
    return {
        "structs": lambda: decoding.list(body),
        "shallow": lambda: shallow.decode(body),
        "compare": lambda: [unchanged(one, other) for one, other in zip(old, new)],
        "json": lambda: json.loads(body),
        "models": asyncio.run(models(body)),
    }


TITLES = {
    "structs": "msgspec structs of ours",
    "shallow": "… a shallow look: metadata, the rest as raw bytes",
    "compare": "… comparing two decoded lists",
    "json": "json.loads alone",
    "models": "kubernetes-asyncio's models",
}


def run(rounds: int, json_path: str | None) -> int:
    """Run `python -m bench kube`. Raises BenchError when the bar is missed."""
    head = header.collect([])
    print(header.one_line(head), flush=True)
    found = [*_lists(rounds), *_events(rounds), *_imports()]
    _print(found)
    if json_path is not None:
        results.write(json_path, Document(head, found))
    worst = max(one.value for one in found if one.name == "kube.list.structs")
    if worst > BAR_MS:
        raise BenchError(f"a list of {ENDPOINTS:,} endpoints took {worst:.2f} ms to decode, the bar is {BAR_MS:g}")
    return 0


def _lists(rounds: int) -> list[Result]:
    found = []
    for shape, objects in SHAPES.items():
        body = list_body(objects)
        for way, operation in ways(body).items():
            few = max(rounds // 10, 3) if way == "models" else rounds
            params: dict[str, Value] = {"shape": shape, "bytes": len(body), "kept_kb": round(kept_kb(operation), 1)}
            found.append(Result(f"kube.list.{way}", best_ms(operation, few), "ms", True, params))
    return found


def _events(rounds: int) -> list[Result]:
    """Measure one update of a slice: decoded completely, and its metadata only."""
    decoding = Decoding(EndpointSlice)
    bare = msgspec.json.Decoder(WatchEvent[BareObject])
    found = []
    for endpoints in (100, 1_000):
        line = event_body(endpoints)
        params: dict[str, Value] = {"endpoints": endpoints, "bytes": len(line)}
        whole_ms = best_ms(partial(decoding.event, line), rounds)
        bare_ms = best_ms(partial(bare.decode, line), rounds)
        found.append(Result("kube.event.structs", whole_ms, "ms", True, params))
        found.append(Result("kube.event.shallow", bare_ms, "ms", True, params))
    return found


def _imports() -> list[Result]:
    found = []
    code = ""
    for title, statement in IMPORTS.items():
        code = f"{IMPORTS['what the data path needs']}; {statement}"
        ask = f"{code}; print([line.split()[1] for line in open('/proc/self/status') if line.startswith('VmRSS')][0])"
        done = subprocess.run(
            [sys.executable, "-c", ask], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
        )
        if done.returncode != 0:
            raise BenchError(f"importing failed: {done.stderr.strip()}")
        found.append(Result("kube.import.resident", int(done.stdout) / 1024, "MB", True, {"what": title}))
    return found


def _print(found: list[Result]) -> None:
    rows = [
        [
            TITLES[one.name.rpartition(".")[2]],
            str(one.params["shape"]),
            f"{one.value:.2f}",
            f"{one.params['kept_kb']:,}",
        ]
        for one in found
        if one.name.startswith("kube.list.")
    ]
    print("\n" + results.table([f"a list of {ENDPOINTS:,} endpoints", "in", "ms", "KiB kept"], rows))
    rows = [
        [TITLES[one.name.rpartition(".")[2]], f"{one.params['endpoints']:,}", f"{one.value:.3f}"]
        for one in found
        if one.name.startswith("kube.event.")
    ]
    print("\n" + results.table(["one event of a slice", "endpoints", "ms"], rows))
    rows = [[str(one.params["what"]), f"{one.value:.1f}"] for one in found if one.name.startswith("kube.import.")]
    print("\n" + results.table(["resident after importing", "MB"], rows))
