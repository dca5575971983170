"""Why pods do not come, in one line."""

from __future__ import annotations

from typing import Any

import pytest

from activator.control_plane.sources.activations.pod_failures import TEXT_MAX, PodFailure, failure_of
from activator.kubernetes.objects import Condition
from tests.control_plane.sources.activations.activation_fakes import pod, waiting

UNSCHEDULABLE = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
}


def ended(restarts: int = 1, **how: Any) -> dict[str, Any]:
    """As a kubelet shows a container between its end and its next start."""
    times = {"startedAt": "2026-01-01T00:59:58Z", "finishedAt": "2026-01-01T01:00:00Z"}
    return {"name": "main", "state": {"terminated": {**times, **how}}, "restartCount": restarts}


def one(**status: Any) -> PodFailure | None:
    return failure_of([pod(**status)], [])


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (
            {"containerStatuses": [waiting("ImagePullBackOff", 'Back-off pulling image "nope:1"')]},
            PodFailure(
                "ImagePullBackOff",
                'the image of its container main cannot be pulled: Back-off pulling image "nope:1"',
                True,
            ),
        ),
        (
            {"containerStatuses": [waiting("ErrImagePull", "timeout")]},
            PodFailure("ErrImagePull", "the image of its container main cannot be pulled: timeout", False),
        ),
        (
            {
                "containerStatuses": [
                    waiting("CrashLoopBackOff", last={"exitCode": 3, "reason": "Error", "message": "no model\n"})
                ]
            },
            PodFailure("CrashLoopBackOff", "its container main exits again and again (exit code 3): no model", True),
        ),
        (
            {"containerStatuses": [waiting("CrashLoopBackOff", last={"exitCode": 137, "reason": "OOMKilled"})]},
            PodFailure("CrashLoopBackOff", "its container main exits again and again (exit code 137, OOMKilled)", True),
        ),
        (
            {"initContainerStatuses": [waiting("CrashLoopBackOff", container="fetch", last={"exitCode": 1})]},
            PodFailure("CrashLoopBackOff", "its init container fetch exits again and again (exit code 1)", True),
        ),
        (
            {"containerStatuses": [waiting("CreateContainerConfigError", 'secret "token" not found')]},
            PodFailure(
                "CreateContainerConfigError", 'its container main cannot be made: secret "token" not found', True
            ),
        ),
        (
            {"conditions": [UNSCHEDULABLE]},
            PodFailure(
                "Unschedulable",
                "no node takes its pod: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
                False,
            ),
        ),
        (
            {"phase": "Failed", "reason": "Evicted", "message": "low on memory"},
            PodFailure("Evicted", "its pod has failed: low on memory", True),
        ),
        (
            {"containerStatuses": [ended(exitCode=3, reason="Error", message="no model\n")]},
            PodFailure("CrashLoopBackOff", "its container main exits again and again (exit code 3): no model", True),
        ),
        (
            {"containerStatuses": [ended(exitCode=0, reason="Completed")]},
            PodFailure("CrashLoopBackOff", "its container main exits again and again (exit code 0, Completed)", True),
        ),
        (
            {"initContainerStatuses": [ended(exitCode=1)]},
            PodFailure("CrashLoopBackOff", "its init container main exits again and again (exit code 1)", True),
        ),
        ({"initContainerStatuses": [ended(exitCode=0)]}, None),
        ({"containerStatuses": [ended(restarts=0, exitCode=1)]}, None),
        ({"containerStatuses": [ended(exitCode=1, startedAt="2026-01-01T00:00:00Z")]}, None),
        ({"containerStatuses": [waiting("ContainerCreating")]}, None),
        ({"initContainerStatuses": [waiting("PodInitializing")]}, None),
        ({"containerStatuses": [{"name": "main", "state": {"running": {}}}]}, None),
        ({}, None),
    ],
)
def test_of_one_pod(status: dict[str, Any], expected: PodFailure | None) -> None:
    assert one(**status) == expected


def test_one_pod_that_may_come_is_enough() -> None:
    broken = pod("a", containerStatuses=[waiting("ImagePullBackOff")])
    assert failure_of([broken, pod("b")], []) is None


def test_what_is_certain_goes_first_then_the_first_by_name() -> None:
    pods = [
        pod("c", containerStatuses=[waiting("ImagePullBackOff", "third")]),
        pod("b", containerStatuses=[waiting("ImagePullBackOff", "second")]),
        pod("a", conditions=[UNSCHEDULABLE]),
    ]
    found = failure_of(pods, [])
    assert found is not None
    assert found.cause.endswith("second")


def test_a_pod_that_is_about_to_go_says_nothing() -> None:
    leaving = pod("a", containerStatuses=[waiting("ImagePullBackOff")])
    gone = leaving.__class__(
        metadata=leaving.metadata.__class__(name="a", deletion_timestamp="2026-01-01T00:00:00Z"), status=leaving.status
    )
    assert failure_of([gone], []) is None


QUOTA = Condition("ReplicaFailure", "True", "FailedCreate", "pods is forbidden: exceeded quota: gpus")
TOO_SLOW = Condition("Progressing", "False", "ProgressDeadlineExceeded", "timed out")


def test_without_pods_the_workload_says_why() -> None:
    assert failure_of([], [QUOTA]) == PodFailure(
        "FailedCreate", "its pods cannot be made: pods is forbidden: exceeded quota: gpus", False
    )
    assert failure_of([], [QUOTA, TOO_SLOW]) == PodFailure(
        "ProgressDeadlineExceeded", "its pods were not ready in time: timed out", True
    )
    assert failure_of([], [Condition("Progressing", "True", "NewReplicaSetAvailable", "")]) is None
    assert failure_of([], []) is None


def test_a_message_is_one_printable_line_of_which_the_end_is_kept() -> None:
    last = {"exitCode": 1, "message": "x" * 10_000 + "\r\n\x1b[31mthe cause\x00"}
    found = one(containerStatuses=[waiting("CrashLoopBackOff", last=last)])
    assert found is not None
    assert found.cause.isprintable()
    assert found.cause.endswith("the cause")
    assert len(found.cause) < TEXT_MAX + 100
