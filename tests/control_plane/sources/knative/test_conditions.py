"""A revision that cannot start, as its conditions say: what waits is refused with the cause, until it can."""

from __future__ import annotations

from typing import Any

import pytest

from activator.control_plane.sources.knative.conditions import failure_of
from activator.control_plane.sources.knative.revision_backends import EXITS_PATIENCE_S
from tests.control_plane.sources.knative.knative_fakes import (
    KEY,
    Cluster,
    config_map,
    endpoint,
    endpoint_slice,
    revision,
    service,
)

RESOURCES, CONTAINER, READY = "ResourcesAvailable", "ContainerHealthy", "Ready"


def condition(kind: str, reason: str, status: str = "False", message: str = "secret last line") -> dict[str, str]:
    return {"type": kind, "status": status, "reason": reason, "message": message}


def of(kind: str, reason: str, **more: Any) -> list[dict[str, str]]:
    """As Knative writes it: Ready follows the condition that failed."""
    return [condition(kind, reason, **more), condition(READY, reason, **more)]


MISSING = of(CONTAINER, "ContainerMissing")
PULLING = of(RESOURCES, "ImagePullBackOff")
EXITS = of(CONTAINER, "ExitCode1")
LISTED = endpoint_slice(endpoint("10.0.0.1", ready=False))


@pytest.mark.parametrize(
    ("conditions", "cause", "is_certain"),
    [
        (MISSING, "its image is not available (ContainerMissing)", True),
        (PULLING, "its image cannot be pulled (ImagePullBackOff)", True),
        (of(RESOURCES, "ErrImagePull"), "its image cannot be pulled (ErrImagePull)", True),
        (of(RESOURCES, "ProgressDeadlineExceeded"), "its pods were not ready in time (ProgressDeadlineExceeded)", True),
        (of(RESOURCES, "NotOwned"), "an object that it needs belongs to another owner (NotOwned)", True),
        (of(RESOURCES, "CreateContainerConfigError"), "its pods cannot start (CreateContainerConfigError)", True),
        (EXITS, "its container exits (ExitCode1)", False),
        (of(CONTAINER, "OOMKilled"), "its container is not healthy (OOMKilled)", False),
        ([condition(READY, "NotOwned")], "an object that it needs belongs to another owner (NotOwned)", True),
        ([condition(READY, "ExitCode137")], "its container exits (ExitCode137)", False),
        # Of both, the one that ends nothing by itself does not hide the other.
        ([*EXITS, *PULLING], "its container exits (ExitCode1)", False),
        (of(CONTAINER, "no word\r\nX: y"), "its container is not healthy", False),
    ],
)  # fmt: skip
def test_what_is_a_failure(conditions: list[dict[str, str]], cause: str, is_certain: bool) -> None:
    found = failure_of(revision(conditions=conditions))
    assert found is not None
    assert (found.cause, found.is_certain, found.message) == (cause, is_certain, "secret last line")


@pytest.mark.parametrize(
    "conditions",
    [
        None,
        [],
        [condition(kind, "", "True") for kind in (RESOURCES, CONTAINER, READY)],
        of(RESOURCES, "Deploying", status="Unknown"),
        of(RESOURCES, "ResolvingDigests", status="Unknown"),
        of(RESOURCES, "Unschedulable"),
        of(RESOURCES, "FailedCreate"),
        [condition("Active", "NoTraffic")],
        [condition(RESOURCES, "Deploying", "Unknown"), condition(READY, "Deploying", "Unknown")],
    ],
)
def test_what_is_none(conditions: list[dict[str, str]] | None) -> None:
    assert failure_of(revision(conditions=conditions)) is None


@pytest.mark.parametrize("conditions", [MISSING, PULLING])
def test_what_waits_is_refused_with_the_cause_and_served_again_when_the_condition_ends(
    conditions: list[dict[str, str]],
) -> None:
    cluster = Cluster()
    before, failed = revision(limit=1), revision(limit=1, conditions=conditions)
    cluster.see(before, LISTED)
    waiting = cluster.joined.ask(KEY)
    cluster.turn()
    assert waiting.ends == []
    cluster.see(failed, old=before)
    assert waiting.ends == ["revision_failed"]
    cause = cluster.joined.throttler(KEY).queue.failure or ""
    assert conditions[0]["reason"] in cause and "secret" not in cause
    assert cluster.joined.ask(KEY).ends == ["revision_failed"], "the next one too"
    cluster.see(before, old=failed)
    again = cluster.joined.ask(KEY)
    assert again.ends == []
    cluster.answer("10.0.0.1")
    assert again.ends == ["granted"]


def test_a_pod_that_answers_ends_it_whatever_the_condition_says() -> None:
    """Knative leaves a condition of a revision at zero as it was when its last pod went."""
    cluster = Cluster()
    cluster.see(revision(limit=1, conditions=PULLING), LISTED)
    assert cluster.joined.ask(KEY).ends == ["revision_failed"]
    cluster.answer("10.0.0.1")
    assert cluster.joined.throttler(KEY).queue.failure is None
    assert cluster.joined.ask(KEY).ends == ["granted"]
    cluster.see(endpoint_slice(), old=LISTED)
    assert cluster.joined.ask(KEY).ends == ["revision_failed"], "and then none does"


def test_a_service_that_answers_for_its_pods_ends_it_too() -> None:
    cluster = Cluster()
    cluster.see(config_map("config-network", mesh_compatibility_mode="enabled"))
    cluster.see(revision(limit=1, conditions=PULLING), service())
    assert cluster.joined.ask(KEY).ends == ["revision_failed"]
    cluster.says["10.96.0.5:80"] = (200, "queue")
    cluster.see(endpoint_slice(endpoint("10.0.0.1")))
    assert cluster.joined.ask(KEY).ends == ["granted"]


def test_a_container_that_exits_is_given_time_to_come_up_after_all() -> None:
    cluster = Cluster()
    cluster.see(revision(limit=1, conditions=EXITS))
    waiting = cluster.joined.ask(KEY)
    pass_time(cluster, 10 * EXITS_PATIENCE_S)
    assert waiting.ends == [], "there is no pod: this is about those that were here before"
    cluster.see(LISTED)
    pass_time(cluster, EXITS_PATIENCE_S - 0.1)
    assert waiting.ends == []
    cluster.answer("10.0.0.1")
    assert waiting.ends == ["granted"]


def test_a_container_that_exits_again_and_again_is_a_failure_in_the_end() -> None:
    cluster = Cluster()
    cluster.see(revision(limit=1, conditions=EXITS), LISTED)
    waiting = cluster.joined.ask(KEY)
    pass_time(cluster, EXITS_PATIENCE_S + 0.1)
    assert waiting.ends == ["revision_failed"]
    cluster.see(endpoint_slice(), old=LISTED)
    later = cluster.joined.ask(KEY)
    assert later.ends == [], "at zero it may be tried again"
    cluster.see(LISTED)
    pass_time(cluster, EXITS_PATIENCE_S - 0.1)
    assert later.ends == [], "and has its time again"


def test_what_was_submitted_of_a_failure_and_lost_is_submitted_again_and_a_successor_begins_without() -> None:
    cluster = Cluster()
    failed = revision(limit=1, conditions=MISSING)
    cluster.see(failed)
    cluster.joined.throttler(KEY).recover()  # as if it had been lost
    cluster.source.relist(KEY)
    cluster.turn()
    assert cluster.joined.throttler(KEY).queue.failure
    cluster.miss(failed)
    cluster.see(revision(limit=1, uid="second"))
    assert cluster.joined.throttler(KEY).queue.failure is None


def pass_time(cluster: Cluster, seconds: float) -> None:
    cluster.joined.clock.pass_time(seconds)
    cluster.turn()
