"""Objects as an API server has them, with what we do not read as well, and a handler that remembers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from activator.kubernetes.objects import Key, KubeObject, Object, unchanged

Json = dict[str, Any]


def config_map(name: str, labels: dict[str, str] | None = None, **data: str) -> Json:
    return {"metadata": {"name": name, "labels": labels or {}}, "data": data}


def by_key(*things: Object) -> dict[Key, Object]:
    """As a list has them."""
    return {thing.key: thing for thing in things}


def endpoint(number: int, ready: bool = True, family: int = 4) -> Json:
    if family == 4:
        address = f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
    else:
        address = f"fd00::{number:x}"
    return {
        "addresses": [address],
        "conditions": {"ready": ready, "serving": ready, "terminating": False},
        "nodeName": f"node-{number % 20}",
        "targetRef": {
            "kind": "Pod",
            "name": f"hello-00001-deployment-6bd7f88cf5-{number:05x}",
            "namespace": "default",
            "uid": f"0a1b2c3d-0000-4000-8000-{number:012d}",
        },
        "zone": "zone-a",
    }


def endpoint_slice(
    name: str, numbers: range | list[int], service: str = "hello-00001-private", family: int = 4, ready: bool = True
) -> Json:
    return {
        "metadata": {
            "name": name,
            "labels": {
                "kubernetes.io/service-name": service,
                "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
                "serving.knative.dev/revision": service.removesuffix("-private"),
                "serving.knative.dev/revisionUID": "11111111-2222-3333-4444-555555555555",
                "networking.internal.knative.dev/serviceType": "Private",
            },
            "annotations": {"endpoints.kubernetes.io/last-change-trigger-time": "2026-01-01T00:00:00Z"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Service", "name": service, "uid": "6" * 36}],
            "managedFields": [
                {
                    "manager": "kube-controller-manager",
                    "operation": "Update",
                    "fieldsType": "FieldsV1",
                    "fieldsV1": {"f:addressType": {}, "f:endpoints": {}, "f:ports": {}},
                }
            ],
        },
        "addressType": f"IPv{family}",
        "endpoints": [endpoint(number, ready, family) for number in numbers],
        "ports": [
            {"name": "http", "port": 8012, "protocol": "TCP"},
            {"name": "http-autometric", "port": 9090, "protocol": "TCP"},
        ],
    }


class Recorder:
    """A handler: `told` is what happened, as ("+" | "~" | "-", name) and ("=", number of objects)."""

    def __init__(self) -> None:
        self.told: list[tuple[str, object]] = []
        self.last: dict[Key, KubeObject] = {}
        self.missed_names: list[str] = []

    def changed(self, old: KubeObject | None, new: KubeObject) -> None:
        self.told.append(("+" if old is None else "~", new.metadata.name))
        self.last[new.key] = new

    def removed(self, old: KubeObject) -> None:
        self.told.append(("-", old.metadata.name))
        del self.last[old.key]

    def resync(self, new: KubeObject) -> None:
        assert unchanged(self.last[new.key], new), "what it is now has been told before"
        self.missed_names.append(new.metadata.name)

    def listed(self, objects: Mapping[Key, KubeObject]) -> None:
        self.told.append(("=", len(objects)))

    def was_told(self, sign: str, name: str) -> bool:
        return (sign, name) in self.told

    def take(self) -> list[tuple[str, object]]:
        told, self.told = self.told, []
        return told
