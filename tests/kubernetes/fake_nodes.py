"""Nodes that take pods from pending to ready, or do not: with delays and failures as they are set.

A pod's annotation `activator.test/failure` names how it fails; `Settings.failures` does so by the name of its owner.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

import msgspec

from tests.kubernetes.fake_api_server import FakeApiServer
from tests.kubernetes.fake_objects import Event, Json, Key, key_of

FAILURE_ANNOTATION = "activator.test/failure"
STARTED = "2026-01-01T00:00:00Z"


class Failure(Enum):
    """Why a pod never becomes ready."""

    IMAGE_PULL = "ImagePullBackOff"
    CRASH_LOOP = "CrashLoopBackOff"
    UNSCHEDULABLE = "Unschedulable"
    INIT_CONTAINER = "Init:CrashLoopBackOff"
    NOT_READY = "its probe fails"


def pod_address(number: int) -> str:
    """Of the pod of this number, in a network of pods."""
    return f"10.{64 + (number >> 16 & 63)}.{number >> 8 & 255}.{number & 255}"


class Settings(msgspec.Struct, frozen=True):
    """`address` gives each pod its own.

    `quotas`: pods that a namespace may have; `crash`: exit code and last message of a container that crashes."""

    nodes: int = 3
    pods_per_node: int = 110
    schedule_s: float = 0.0
    ready_s: float = 0.0
    terminate_s: float = 0.0
    failures: Mapping[str, Failure] = {}
    quotas: Mapping[str, int] = {}
    crash: tuple[int, str] = (1, "panic: no configuration")
    address: Callable[[int], str] = pod_address


class Nodes:
    """The scheduler and the kubelets."""

    def __init__(
        self, server: FakeApiServer, settings: Settings, later: Callable[[float, Callable[[], None]], object]
    ) -> None:
        self._server = server
        self._settings = settings
        self._later = later
        self._on_node = [0] * settings.nodes
        self._next_node = 0
        self._addresses = 0
        self._suffixes = 0
        self._unscheduled: dict[Key, str] = {}  # by key: the UID, in order

    def suffix(self) -> str:
        """Five letters and digits that no other object of this cluster has."""
        self._suffixes += 1
        letters, number = "bcdfghjklmnpqrstvwxz2456789", 7_654_321 + 524_287 * self._suffixes
        text = ""
        for _ in range(5):
            number, place = divmod(number, len(letters))
            text += letters[place]
        return text

    def heard(self, event: Event) -> None:
        """Of a write of a pod."""
        if event.before is None and event.after is not None:
            uid, key = event.after["metadata"]["uid"], key_of(event.after)
            self._after(self._settings.schedule_s, key, uid, self._schedule)
        elif event.after is None and event.before is not None:
            node = (event.before.get("spec") or {}).get("nodeName", "")
            self._unscheduled.pop(key_of(event.before), None)
            if node:
                self._on_node[int(node.rpartition("-")[2])] -= 1
                for key, uid in list(self._unscheduled.items())[:1]:  # there is a place now
                    self._after(0.0, key, uid, self._schedule)

    def terminate(self, key: Key) -> None:
        """It is asked to end, and does so after its time."""
        pods = self._server.collection("pods")
        pod = pods.objects.get(key)
        if pod is None or pod["metadata"].get("deletionTimestamp"):
            return
        if self._settings.terminate_s <= 0 or not (pod.get("spec") or {}).get("nodeName"):
            self._server.objects.delete(pods, key)
            return
        self._server.objects.terminate(pods, key)
        self._after(self._settings.terminate_s, key, pod["metadata"]["uid"], self._ended)

    def restart(self, key: Key) -> None:
        """A container of a pod that runs ends and starts again: not ready, and then ready, with one restart more."""
        pod = self._server.collection("pods").objects[key]
        restarts = pod["status"]["containerStatuses"][0]["restartCount"] + 1
        self._status(pod, running(pod, ready=False, restarts=restarts))
        self._after(
            self._settings.ready_s,
            key,
            pod["metadata"]["uid"],
            lambda now: self._status(now, running(now, True, restarts)),
        )

    def _after(self, seconds: float, key: Key, uid: str, step: Callable[[Json], Any]) -> None:
        """`step`, for this very pod, if it is still there then."""

        def run() -> None:
            pod = self._server.collection("pods").objects.get(key)
            if pod is not None and pod["metadata"]["uid"] == uid:
                step(pod)

        self._later(seconds, run)

    def _ended(self, pod: Json) -> None:
        self._server.objects.delete(self._server.collection("pods"), key_of(pod))

    def _schedule(self, pod: Json) -> None:
        key, uid = key_of(pod), pod["metadata"]["uid"]
        if (pod.get("spec") or {}).get("nodeName"):
            return
        node = self._free_node() if self._failure(pod) is not Failure.UNSCHEDULABLE else None
        if node is None:
            self._unscheduled[key] = uid
            why = "Insufficient cpu" if self._failure(pod) else "Too many pods"
            self._status(pod, unscheduled(self._settings.nodes, why))
            return
        self._unscheduled.pop(key, None)
        self._on_node[node] += 1
        bound = copy.deepcopy(pod)
        bound["spec"]["nodeName"] = f"node-{node}"
        bound["status"] = {"phase": "Pending", "conditions": [_condition("PodScheduled", True)]}
        self._server.objects.update(self._server.collection("pods"), key, bound, whole=False)
        self._after(self._settings.ready_s, key, uid, self._started)

    def _free_node(self) -> int | None:
        for _ in range(self._settings.nodes):
            node = self._next_node
            self._next_node = (node + 1) % self._settings.nodes
            if self._on_node[node] < self._settings.pods_per_node:
                return node
        return None

    def _started(self, pod: Json) -> None:
        failure = self._failure(pod)
        address = ""
        if failure in {None, Failure.NOT_READY}:
            self._addresses += 1
            address = self._settings.address(self._addresses)
        self._status(pod, started(pod, failure, address, self._settings.crash))

    def _failure(self, pod: Json) -> Failure | None:
        return failure_of(pod, self._settings)

    def _status(self, pod: Json, status: Json) -> None:
        status = {**{name: value for name, value in pod["status"].items() if name == "podIP"}, **status}
        self._server.objects.merge_patch(self._server.collection("pods"), key_of(pod), {"status": status})


def failure_of(pod: Json, settings: Settings) -> Failure | None:
    """How this pod is to fail."""
    named = (pod["metadata"].get("annotations") or {}).get(FAILURE_ANNOTATION)
    if named:
        return Failure(named)
    owners = pod["metadata"].get("ownerReferences") or [{"name": ""}]
    return settings.failures.get(owners[0]["name"])


def unscheduled(nodes: int, why: str) -> Json:
    """The status of a pod that finds no node."""
    message = f"0/{nodes} nodes are available: {nodes} {why}. preemption: 0/{nodes} nodes are available."
    return {"phase": "Pending", "conditions": [_condition("PodScheduled", False, "Unschedulable", message)]}


def started(pod: Json, failure: Failure | None, address: str, crash: tuple[int, str]) -> Json:
    """The status of a pod whose containers have been started, as well as that went."""
    if failure is None or failure is Failure.NOT_READY:
        return {**running(pod, failure is None, 0), "podIP": address}
    return _failed(pod, failure, crash)


def _failed(pod: Json, failure: Failure, crash: tuple[int, str]) -> Json:
    code, message = crash
    if failure is Failure.IMAGE_PULL:
        image = pod["spec"]["containers"][0].get("image", "")
        said = f'Back-off pulling image "{image}": ErrImagePull: not found'
        state: Json = {"state": {"waiting": {"reason": failure.value, "message": said}}, "restartCount": 0}
    else:
        times = {"startedAt": STARTED, "finishedAt": STARTED}
        ended = {"terminated": {"exitCode": code, "reason": "Error", "message": message, **times}}
        waits = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s restarting failed container"}}
        # A kubelet of 1.36 shows `waits` for a moment only, at the end of each pause.
        now = ended if failure is Failure.CRASH_LOOP else waits
        state = {"state": now, "lastState": ended, "restartCount": 1}
    init = failure is Failure.INIT_CONTAINER
    named = {"name": "init" if init else pod["spec"]["containers"][0]["name"], "ready": False, **state}
    return {
        "phase": "Pending" if init or failure is Failure.IMAGE_PULL else "Running",
        "conditions": [
            _condition("PodScheduled", True),
            _condition("Initialized", not init, "" if not init else "ContainersNotInitialized"),
            _condition("Ready", False, "ContainersNotReady"),
        ],
        "initContainerStatuses" if init else "containerStatuses": [named],
    }


def running(pod: Json, ready: bool, restarts: int) -> Json:
    """The status of a pod whose containers run."""
    states = [
        {"name": one["name"], "ready": ready, "restartCount": restarts, "state": {"running": {"startedAt": STARTED}}}
        for one in pod["spec"]["containers"]
    ]
    conditions = [_condition("PodScheduled", True), _condition("Initialized", True), _condition("Ready", ready)]
    return {"phase": "Running", "conditions": conditions, "containerStatuses": states}


def _condition(kind: str, holds: bool, reason: str = "", message: str = "") -> Json:
    told = {"type": kind, "status": "True" if holds else "False"}
    return told | ({"reason": reason} if reason else {}) | ({"message": message} if message else {})
