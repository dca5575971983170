"""EndpointSlices of a Service with a selector, as the cluster's controller writes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Json = dict[str, Any]

ENDPOINTS_MAX = 100  # of one slice
MANAGED_BY = "endpointslice-controller.k8s.io"
RESERVED = ("endpointslice.kubernetes.io/managed-by", "kubernetes.io/service-name", "service.kubernetes.io/headless")


def slices_of(service: Json, pods: Sequence[Json], names: list[str], suffix: Callable[[], str]) -> list[Json]:
    """The slices for these pods, in the slices of these names first. Without pods one slice, which is empty."""
    by_ports: dict[str, tuple[list[Json], list[Json]]] = {}
    for pod in pods:
        if not (pod.get("status") or {}).get("podIP"):
            continue
        ports = _ports(service, pod)
        by_ports.setdefault(str(ports), (ports, []))[1].append(_endpoint(pod))
    groups = list(by_ports.values()) or [([], [])]
    parts = [
        (ports, found[first : first + ENDPOINTS_MAX])
        for ports, found in groups
        for first in range(0, max(len(found), 1), ENDPOINTS_MAX)
    ]
    free = sorted(names)
    return [
        _slice(service, free.pop(0) if free else f"{service['metadata']['name']}-{suffix()}", ports, found)
        for ports, found in parts
    ]


def _slice(service: Json, name: str, ports: list[Json], endpoints: list[Json]) -> Json:
    metadata = service["metadata"]
    mirrored = {label: value for label, value in (metadata.get("labels") or {}).items() if label not in RESERVED}
    labels = {**mirrored, RESERVED[0]: MANAGED_BY, RESERVED[1]: metadata["name"]}
    if service["spec"].get("clusterIP") == "None":
        labels[RESERVED[2]] = ""
    owner = {"apiVersion": "v1", "kind": "Service", "name": metadata["name"], "uid": metadata["uid"]}
    return {
        "metadata": {
            "name": name,
            "labels": labels,
            "annotations": {"endpoints.kubernetes.io/last-change-trigger-time": "2026-01-01T00:00:00Z"},
            "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}],
        },
        "addressType": "IPv4",
        "endpoints": endpoints or None,
        "ports": ports or None,
    }


def _ports(service: Json, pod: Json) -> list[Json]:
    found = []
    for port in service["spec"].get("ports") or ():
        number = port.get("targetPort", port["port"])
        if isinstance(number, str):
            number = _named(pod, number)
        if number is not None:
            told: Json = {"name": port.get("name", ""), "port": number, "protocol": port.get("protocol", "TCP")}
            found.append({**told, **({"appProtocol": port["appProtocol"]} if port.get("appProtocol") else {})})
    return found


def _named(pod: Json, name: str) -> int | None:
    for container in pod["spec"].get("containers") or ():
        for port in container.get("ports") or ():
            if port.get("name") == name:
                number: int = port["containerPort"]
                return number
    return None


def _endpoint(pod: Json) -> Json:
    metadata, status = pod["metadata"], pod["status"]
    serving = any(one["type"] == "Ready" and one["status"] == "True" for one in status.get("conditions") or ())
    terminating = bool(metadata.get("deletionTimestamp"))
    zone = (metadata.get("labels") or {}).get("topology.kubernetes.io/zone")  # of its node, in a real cluster
    return {
        **({"zone": zone} if zone else {}),
        "addresses": [status["podIP"]],
        "conditions": {"ready": serving and not terminating, "serving": serving, "terminating": terminating},
        "nodeName": pod["spec"].get("nodeName", ""),
        "targetRef": {
            "kind": "Pod",
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
        },
    }
