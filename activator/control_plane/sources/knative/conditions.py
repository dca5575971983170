"""What the conditions of a Revision say about requests that wait for it: whether they wait in vain, and why.

Rules
  1. A condition is looked at only while no pod of the revision takes requests (revision_backends.py), and only where it
     is False. One that is Unknown is being worked on.
  2. It is *certain* where Kubernetes or Knative has given up: the image is not to be had, the pods were not ready
     within the progress deadline, an object that is needed belongs to another owner.
  3. A container that exits is started again, and may come up in the end. Knative leaves that condition as it was when
     the revision is scaled to zero, so at the next start it may be about the one before. It is a failure when pods have
     been listed for EXITS_PATIENCE_S (revision_backends.py) and it still stands.
  4. What may end without anybody's help is none: no node has room, a quota is used up.
  5. Clients are told the kind of failure and Knative's word for it. The message of a condition, which may hold the last
     lines of a program's log, is for the log.

Sources: knative.dev/serving pkg/apis/serving/v1/revision_lifecycle.go, pkg/apis/serving/k8s_lifecycle.go,
pkg/reconciler/revision/revision.go and reconcile_resources.go (v1.23): which reasons there are, and when they are set.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from activator.kubernetes.objects import Condition, Revision

_READY: Final = "Ready"
_RESOURCES: Final = "ResourcesAvailable"
_CONTAINER: Final = "ContainerHealthy"

_IMAGE_MISSING: Final = "ContainerMissing"
_EXIT_CODE: Final = "ExitCode"  # and the code
_NOT_OWNED: Final = "NotOwned"
_TOO_SLOW: Final = "ProgressDeadlineExceeded"
_PULLING: Final = frozenset(
    {"ErrImageNeverPull", "ErrImagePull", "ImageInspectError", "ImagePullBackOff", "InvalidImageName"}
)  # what a kubelet says of a container that waits for its image
_WAITING: Final = frozenset(
    {"", "FailedCreate", "FailedDelete", "SchedulerError", "SchedulingGated", "Unschedulable"}
)  # of PodScheduled, and of a ReplicaSet that may not make pods now
_REASON_MAX: Final = 64
_MESSAGE_MAX: Final = 500


class Failure(NamedTuple):
    """`cause`: one line for clients; `message`: what Knative says of it, for the log."""

    cause: str
    message: str
    is_certain: bool


def failure_of(revision: Revision) -> Failure | None:
    """Why the revision cannot start; None: it may."""
    failed = {one.type: one for one in revision.status.conditions or [] if one.status == "False"}
    for kind in (_CONTAINER, _RESOURCES):
        if kind in failed:
            found = _failure(failed[kind], kind == _CONTAINER)
            if found is not None:
                return found
    ready = failed.get(_READY)  # it has the reason of the first of the others that failed
    if ready is not None and not failed.keys() & {_CONTAINER, _RESOURCES}:
        return _failure(ready, ready.reason.startswith(_EXIT_CODE))
    return None


def _failure(condition: Condition, is_container: bool) -> Failure | None:
    reason = condition.reason
    if reason == _IMAGE_MISSING:
        return _made(condition, "its image is not to be had", True)
    if is_container:
        said = "its container exits" if reason.startswith(_EXIT_CODE) else "its container is not healthy"
        return _made(condition, said, False)
    if reason in _WAITING:
        return None
    if reason in _PULLING:
        return _made(condition, "its image cannot be pulled", True)
    if reason == _NOT_OWNED:
        return _made(condition, "an object that it needs belongs to another owner", True)
    if reason == _TOO_SLOW:
        return _made(condition, "its pods were not ready in time", True)
    return _made(condition, "its pods cannot start", True)  # the reason of a container, after the progress deadline


def _made(condition: Condition, said: str, is_certain: bool) -> Failure:
    reason = condition.reason[:_REASON_MAX]
    word = f" ({reason})" if reason.isascii() and reason.isalnum() else ""
    return Failure(said + word, " ".join(condition.message[:_MESSAGE_MAX].split()), is_certain)
