"""Finds out why the pods of a workload do not start, in one line, for waiting requests and for the object's status.

Rules
  1. A failure is reported only while no pod of the workload answers, and only if none of them may still start.
  2. A failure is *certain* if it does not pass without intervention: the image cannot be pulled, a container cannot be
     made, or it has exited so often that Kubernetes waits before it starts it again.
  3. Between two starts of a container that exits at once, a kubelet mostly shows it as terminated, and only at times as
     CrashLoopBackOff. A container that ended soon after a restart is treated as CrashLoopBackOff.
  4. A failure is not certain if it may pass by itself: no node has room, a quota is used up. Requests then wait for the
     object's `patience` first.
  5. Of several pods, a certain failure takes precedence; among equals the first by name, so that the result depends on
     the pods alone.

Sources: Kubernetes' documentation, "Pod Lifecycle" (container states, conditions) and "Deployments" (conditions
Progressing and ReplicaFailure); pkg/kubelet/images/types.go and pkg/kubelet/container/sync_result.go (reasons).
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final, NamedTuple

from activator.control_plane.sources.activations.objects import ContainerStatus, StartingPod, Terminated
from activator.kubernetes.objects import Condition

BACK_OFF_ENDS_S: Final = 600.0  # A container that ran this long is restarted at once.
TEXT_MAX: Final = 300  # characters of another component's message

_IMAGE: Final = frozenset(
    {"ErrImageNeverPull", "ImageInspectError", "ImagePullBackOff", "InvalidImageName", "SignatureValidationFailed"}
)
_IMAGE_AT_FIRST: Final = frozenset({"ErrImagePull", "RegistryUnavailable"})  # the kubelet retries at once
_NOT_MADE: Final = frozenset(
    {"CreateContainerConfigError", "CreateContainerError", "PostStartHookError", "PreCreateHookError"}
    | {"RunContainerError"}
)
_EXITS: Final = "CrashLoopBackOff"
_CONTAINER: Final = "container"
_INIT_CONTAINER: Final = "init container"


class PodFailure(NamedTuple):
    """A cause for which pods do not start.

    `reason`: Kubernetes' reason; `cause`: one line for clients and for the status.
    """

    reason: str
    cause: str
    is_certain: bool


def failure_of(pods: Iterable[StartingPod], conditions: Iterable[Condition]) -> PodFailure | None:
    """Return the failure of a workload's pods; None if they may start.

    `pods`: those of the workload; `conditions`: those of the workload itself.
    """
    failures: list[PodFailure] = []
    alive = sorted((pod for pod in pods if pod.metadata.deletion_timestamp is None), key=lambda pod: pod.metadata.name)
    for pod in alive:
        failure = _pod_failure(pod)
        if failure is None:
            return None
        failures.append(failure)
    if not alive:
        failures = [failure for condition in conditions if (failure := _workload_failure(condition)) is not None]
    return min(failures, key=lambda failure: not failure.is_certain, default=None)


def _pod_failure(pod: StartingPod) -> PodFailure | None:
    """Return why the pod does not start; None if it may."""
    status = pod.status
    if status.phase == "Failed":
        reason = status.reason or "Failed"
        return _failure(reason, "its pod has failed", status.message, True)
    for condition in status.conditions or []:
        if condition.type == "PodScheduled" and condition.status == "False":
            return _failure(condition.reason or "Unschedulable", "no node takes its pod", condition.message, False)
    for container in status.init_container_statuses or []:
        failure = _container_failure(container, _INIT_CONTAINER)
        if failure is not None:
            return failure
    for container in status.container_statuses or []:
        failure = _container_failure(container, _CONTAINER)
        if failure is not None:
            return failure
    return None


def _container_failure(container: ContainerStatus, kind: str) -> PodFailure | None:
    """Return why the container does not start; None if it may. `kind`: the word for it in the message."""
    waiting, ended = container.state.waiting, container.state.terminated
    name = f"its {kind} {container.name}"
    if ended is not None and container.restart_count and _is_started_again(ended, kind):
        return _failure(_EXITS, f"{name} exits again and again{_exit_details(ended)}", ended.message, True)
    if waiting is None:
        return None
    if waiting.reason in _IMAGE or waiting.reason in _IMAGE_AT_FIRST:
        summary = f"the image of {name} cannot be pulled"
        return _failure(waiting.reason, summary, waiting.message, waiting.reason in _IMAGE)
    if waiting.reason in _NOT_MADE:
        return _failure(waiting.reason, f"{name} cannot be made", waiting.message, True)
    if waiting.reason == _EXITS:
        last = container.last_state.terminated
        return _failure(
            _EXITS, f"{name} exits again and again{_exit_details(last)}", last.message if last else "", True
        )
    return None


def _is_started_again(ended: Terminated, kind: str) -> bool:
    """Return True if the kubelet restarts the container with a back-off.

    It does not for an init container that has succeeded, nor for a container that ran for BACK_OFF_ENDS_S.
    """
    if kind != _CONTAINER and ended.exit_code == 0:
        return False
    try:
        ran = datetime.fromisoformat(ended.finished_at or "") - datetime.fromisoformat(ended.started_at or "")
    except ValueError:
        return True
    return ran.total_seconds() < BACK_OFF_ENDS_S


def _exit_details(last: Terminated | None) -> str:
    if last is None:
        return ""
    word = f", {last.reason}" if last.reason not in ("", "Error") else ""
    return f" (exit code {last.exit_code}{word})"


def _workload_failure(condition: Condition) -> PodFailure | None:
    """Return the failure that the condition of a workload shows; None if it shows none."""
    if condition.type == "ReplicaFailure" and condition.status == "True":
        return _failure(condition.reason or "FailedCreate", "its pods cannot be made", condition.message, False)
    if condition.type == "Progressing" and condition.status == "False":
        return _failure(
            condition.reason or "NotProgressing", "its pods were not ready in time", condition.message, True
        )
    return None


def _failure(reason: str, summary: str, message: str, is_certain: bool) -> PodFailure:
    """Make a failure; of a long message only the end is kept, where the cause of a container's exit stands."""
    words = " ".join("".join(char if char.isprintable() else " " for char in message).split())
    if len(words) > TEXT_MAX:
        words = "… " + words[2 - TEXT_MAX :]
    return PodFailure(reason, f"{summary}: {words}" if words else summary, is_certain)
