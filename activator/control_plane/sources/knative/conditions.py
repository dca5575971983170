"""Reads from a Revision's conditions whether its pods can start and, if not, why.

Rules
  1. Conditions are evaluated only while no pod of the revision takes requests (revision_backends.py), and only those
     that are False. Unknown means that the work is in progress.
  2. A failure is *certain* where Kubernetes or Knative has given up: the image is not available, the pods were not
     ready within the progress deadline, an object that is needed belongs to another owner.
  3. A container that exits is restarted and may still start. Knative leaves that condition unchanged when the revision
     is scaled to zero, so at the next start it may describe an earlier one. It is a failure if it still holds when pods
     have been listed for EXITS_PATIENCE_S (revision_backends.py).
  4. A condition that may pass by itself is no failure: no node has room, a quota is used up.
  5. Clients receive the kind of failure and Knative's reason. The message of a condition, which may hold the last lines
     of a program's log, is only logged.

Sources: knative.dev/serving pkg/apis/serving/v1/revision_lifecycle.go, pkg/apis/serving/k8s_lifecycle.go,
pkg/reconciler/revision/revision.go and reconcile_resources.go (v1.23): the reasons, and when they are set.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from activator.kubernetes.objects import Condition, Revision

_READY: Final = "Ready"
_RESOURCES: Final = "ResourcesAvailable"
_CONTAINER: Final = "ContainerHealthy"

_IMAGE_MISSING: Final = "ContainerMissing"
_EXIT_CODE: Final = "ExitCode"  # followed by the exit code
_NOT_OWNED: Final = "NotOwned"
_TOO_SLOW: Final = "ProgressDeadlineExceeded"
_PULLING: Final = frozenset(
    {"ErrImageNeverPull", "ErrImagePull", "ImageInspectError", "ImagePullBackOff", "InvalidImageName"}
)  # the kubelet's reasons for a container that waits for its image
_WAITING: Final = frozenset(
    {"", "FailedCreate", "FailedDelete", "SchedulerError", "SchedulingGated", "Unschedulable"}
)  # reasons of PodScheduled, and of a ReplicaSet that cannot create pods now
_REASON_MAX: Final = 64
_MESSAGE_MAX: Final = 500


class RevisionFailure(NamedTuple):
    """Why a revision cannot start. `cause`: one line for clients; `message`: Knative's message, for the log."""

    cause: str
    message: str
    is_certain: bool


def failure_of(revision: Revision) -> RevisionFailure | None:
    """Return why the revision cannot start; None: it may."""
    failed = {one.type: one for one in revision.status.conditions or [] if one.status == "False"}
    for kind in (_CONTAINER, _RESOURCES):
        if kind in failed:
            failure = _failure(failed[kind], kind == _CONTAINER)
            if failure is not None:
                return failure
    ready = failed.get(_READY)  # its reason is that of the first other condition that failed
    if ready is not None and not failed.keys() & {_CONTAINER, _RESOURCES}:
        return _failure(ready, ready.reason.startswith(_EXIT_CODE))
    return None


def _failure(condition: Condition, is_container: bool) -> RevisionFailure | None:
    reason = condition.reason
    if reason == _IMAGE_MISSING:
        return _explained(condition, "its image is not available", True)
    if is_container:
        cause = "its container exits" if reason.startswith(_EXIT_CODE) else "its container is not healthy"
        return _explained(condition, cause, False)
    if reason in _WAITING:
        return None
    if reason in _PULLING:
        return _explained(condition, "its image cannot be pulled", True)
    if reason == _NOT_OWNED:
        return _explained(condition, "an object that it needs belongs to another owner", True)
    if reason == _TOO_SLOW:
        return _explained(condition, "its pods were not ready in time", True)
    # The reason of a container, after the progress deadline.
    return _explained(condition, "its pods cannot start", True)


def _explained(condition: Condition, cause: str, is_certain: bool) -> RevisionFailure:
    reason = condition.reason[:_REASON_MAX]
    word = f" ({reason})" if reason.isascii() and reason.isalnum() else ""
    return RevisionFailure(cause + word, " ".join(condition.message[:_MESSAGE_MAX].split()), is_certain)
