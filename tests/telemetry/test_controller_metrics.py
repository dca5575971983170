"""What controllers count: exactly what happened, in a bounded number of series, without anybody's name."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from activator.runtime.controller_counts import (
    CONTROLLERS,
    RESULTS,
    TARGET_KINDS,
    VERBS,
    WRITE_COMPONENTS,
    WRITE_OUTCOMES,
    Controllers,
    ErrorType,
    error_type_of,
    error_type_of_status,
)
from activator.telemetry.metrics.exposition import Exposition
from tests.data_plane.proxy.proxy_fakes import World
from tests.manual_clock import ManualClock
from tests.telemetry.test_exposition import program

OWN = ("activator_status_update_conflict_total", "activator_reconcile_errors_total")


class ApiError(Exception):
    """As the client of the Kubernetes API raises it."""

    def __init__(self, status: int, reason: str = "") -> None:
        super().__init__(f"({status}) /api/v1/namespaces/secret/pods/10.0.0.1")
        self.status = status
        self.reason = reason


INJECTED: dict[ErrorType, Exception] = {
    ErrorType.CONFLICT: ApiError(409, "Conflict"),
    ErrorType.NOT_FOUND: ApiError(404),
    ErrorType.ALREADY_EXISTS: ApiError(409, "AlreadyExists"),
    ErrorType.INVALID: ApiError(422),
    ErrorType.FORBIDDEN: ApiError(403),
    ErrorType.TIMEOUT: TimeoutError(),
    ErrorType.TOO_MANY_REQUESTS: ApiError(429),
    ErrorType.OTHER: ValueError("something else"),
}


class ToControl:
    """Controllers, and what a reading says of them."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.controllers = Controllers(self.clock.now)
        self._exposition = Exposition(lambda: (), lambda: program(World())._replace(controllers=self.controllers))

    def samples(self, *names: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        slices, _ = self._exposition.render()
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(b"".join(slices).decode())
            for sample in family.samples
            if sample.name in names or (not names and not sample.name.startswith(("activator_", "process_")))
        }

    def value(self, name: str, **labels: str) -> float:
        return self.samples(name)[name, tuple(sorted(labels.items()))]

    def fail(self, controller: str, error: BaseException) -> None:
        with pytest.raises(type(error)), self.controllers.reconcile(controller):
            raise error


@pytest.mark.parametrize("kind", ErrorType)
def test_so_many_errors_of_a_kind_are_so_many(kind: ErrorType) -> None:
    told = ToControl()
    for controller in CONTROLLERS:
        told.controllers.register(controller)
    count = random.Random(kind.value).randrange(1, 50)
    for _ in range(count):
        told.fail("endpoints", INJECTED[kind])
    assert {labels: value for (_, labels), value in told.samples(OWN[1]).items() if value} == {
        (("controller", "endpoints"), ("error_type", kind.value)): float(count)
    }
    assert told.value("controller_runtime_reconcile_total", controller="endpoints", result="error") == count
    assert told.value("controller_runtime_active_workers", controller="endpoints") == 0.0


def test_every_kind_of_error_can_be_met() -> None:
    assert set(INJECTED) == set(ErrorType)
    assert {kind for kind in ErrorType if kind.is_transient} == {
        ErrorType.CONFLICT,
        ErrorType.ALREADY_EXISTS,
        ErrorType.TIMEOUT,
        ErrorType.TOO_MANY_REQUESTS,
    }


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ApiError(400), ErrorType.INVALID),
        (ApiError(401), ErrorType.FORBIDDEN),
        (ApiError(408), ErrorType.TIMEOUT),
        (ApiError(410), ErrorType.OTHER),
        (ApiError(500), ErrorType.OTHER),
        (ApiError(504), ErrorType.TIMEOUT),
        (TimeoutError(), ErrorType.TIMEOUT),
        (ConnectionRefusedError(), ErrorType.OTHER),
    ],
    ids=repr,
)
def test_kinds_of_errors(error: Exception, kind: ErrorType) -> None:
    assert error_type_of(error) is kind
    code = SimpleNamespace(code=404)
    assert error_type_of(code) is ErrorType.NOT_FOUND  # type: ignore[arg-type]
    assert error_type_of_status(409) is ErrorType.CONFLICT


def test_a_pass_and_its_queue() -> None:
    told = ToControl()
    passes: list[Any] = []
    told.controllers.on_pass = lambda *one: passes.append(one)
    controllers = told.controllers
    controllers.register("revision", concurrency=4)
    controllers.added("revision")
    controllers.added("revision", again=True)
    controllers.taken("revision", 0.5)
    assert told.value("workqueue_depth", controller="revision") == 1.0
    assert told.value("workqueue_adds_total", controller="revision") == 2.0
    assert told.value("workqueue_retries_total", controller="revision") == 1.0
    assert told.value("workqueue_queue_duration_seconds_sum", controller="revision") == 0.5
    assert told.value("controller_runtime_max_concurrent_reconciles", controller="revision") == 4.0
    began_s = told.clock.now()
    with controllers.reconcile("revision") as reconcile:
        assert told.value("controller_runtime_active_workers", controller="revision") == 1.0
        told.clock.pass_time(0.25)
        reconcile.requeue(after_s=3.0)
    with controllers.reconcile("revision") as reconcile:
        reconcile.requeue()
    with controllers.reconcile("revision"):
        pass
    told.fail("revision", ApiError(409))
    for result in RESULTS:
        assert told.value("controller_runtime_reconcile_total", controller="revision", result=result) == 1.0
    for name in ("controller_runtime_reconcile_time_seconds", "workqueue_work_duration_seconds"):
        assert told.value(f"{name}_count", controller="revision") == 4.0
        assert told.value(f"{name}_sum", controller="revision") == pytest.approx(0.25)
    assert passes[0] == ("revision", began_s, pytest.approx(began_s + 0.25), "requeue_after", "")
    assert [one[3:] for one in passes[1:]] == [("requeue", ""), ("success", ""), ("error", "conflict")]


def test_who_is_stopped_has_not_failed() -> None:
    told = ToControl()
    told.fail("endpoints", asyncio.CancelledError())
    assert not any(told.samples(OWN[1]).values())
    assert told.value("controller_runtime_active_workers", controller="endpoints") == 0.0


def test_conflicts_and_calls() -> None:
    told = ToControl()
    for _ in range(3):
        told.controllers.conflict("membership", "member_row")
    for code in (200, 200, 409, None, 0, 99_999):
        told.controllers.rest("update", code)
    told.controllers.rest("EXEC /api/v1/secret", 200)
    assert told.value(OWN[0], controller="membership", target_kind="member_row") == 3.0
    assert told.samples("rest_client_requests_total") == {
        ("rest_client_requests_total", (("code", "200"), ("verb", "update"))): 2.0,
        ("rest_client_requests_total", (("code", "409"), ("verb", "update"))): 1.0,
        ("rest_client_requests_total", (("code", "error"), ("verb", "update"))): 3.0,
        ("rest_client_requests_total", (("code", "200"), ("verb", "other"))): 1.0,
    }


def test_writes_and_who_they_conflict_with() -> None:
    told = ToControl()
    controllers = told.controllers
    controllers.register("revision")
    assert not told.samples("activator_reconcile_writes_total"), "only the one that writes for Activations has them"
    controllers.register("activation")
    assert len(told.samples("activator_reconcile_writes_total")) == len(WRITE_COMPONENTS) * len(WRITE_OUTCOMES)
    for _ in range(2):
        controllers.written("activation", "scale", "unchanged")
    assert told.value("activator_reconcile_writes_total", component="scale", outcome="unchanged") == 2.0
    for manager in ("kubectl-client-side-apply", "kubectl", "Helm", "somebody@example.com", ""):
        controllers.refused_by("activation", "scale", manager)
    found = told.samples("activator_reconcile_conflicts_total")
    assert {dict(labels)["manager"]: count for (_, labels), count in found.items()} == {
        "kubectl": 2.0,
        "helm": 1.0,
        "other": 1.0,
        "none": 1.0,
    }


def test_what_is_in_no_set_is_refused() -> None:
    controllers = Controllers(ManualClock().now)
    for wrong in (
        lambda: controllers.register("my-namespace"),
        lambda: controllers.reconcile("sync_pods"),
        lambda: controllers.reconciled("revision", "fine", 0.1),
        lambda: controllers.conflict("revision", "pods/10.0.0.1"),
        lambda: controllers.written("activation", "pods", "ok"),
        lambda: controllers.written("activation", "scale", "fine"),
        lambda: controllers.refused_by("activation", "pods", "kubectl"),
    ):
        with pytest.raises(ValueError, match="is none of"):
            wrong()


def test_the_number_of_series_is_bounded_and_nobody_is_named() -> None:
    told = ToControl()
    rng = random.Random(7)
    assert told.samples() == {}, "no controllers, no series"
    for controller in CONTROLLERS:
        told.controllers.register(controller)
    before = set(told.samples(*OWN))
    assert len(before) == 70
    for _ in range(3000):
        controller = rng.choice(CONTROLLERS)
        told.fail(controller, rng.choice([ApiError(rng.randrange(100, 600), f"r{rng.random()}"), OSError("/a/path")]))
        told.controllers.conflict(controller, rng.choice(TARGET_KINDS))
        told.controllers.rest(rng.choice([*VERBS, f"/{rng.random()}"]), rng.choice([200, 201, 404, None]))
    assert set(told.samples(*OWN)) == before
    words = {value for _, labels in told.samples() for name, value in labels if name != "le"}
    assert words <= {*CONTROLLERS, *RESULTS, *VERBS, *WRITE_COMPONENTS, *WRITE_OUTCOMES, "200", "201", "404", "error"}
