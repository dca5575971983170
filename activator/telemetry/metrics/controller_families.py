"""The metrics of controllers, with the names of Kubernetes' controller-runtime and client-go where these exist.

Rules
  1. Metrics that a controller runtime has keep its names, so that its dashboards work. The only label is `controller`,
     because the queues' label `name` would have the same value. The label `host` of client-go's calls is omitted,
     because its value would be an address. The verb is that of the API.
  2. The description of each of the activator's own metrics names the difference from the nearest standard one.
     Together they are at most 113 series.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from activator.runtime.controller_counts import (
    CONTROLLERS,
    MANAGER_WORDS,
    NO_ANSWER,
    QUEUE_BOUNDS_S,
    RECONCILE_BOUNDS_S,
    RESULTS,
    TARGET_KINDS,
    VERBS,
    WRITE_COMPONENTS,
    WRITE_OUTCOMES,
    ControllerCounts,
    Controllers,
    ErrorType,
)
from activator.runtime.distribution import Distribution
from activator.runtime.histogram import Histogram
from activator.telemetry.metrics.families import Family, Kind, Row

_LABEL = ("controller",)
_TRANSIENT = ", ".join(kind.value for kind in ErrorType if kind.is_transient)
_PERSISTENT = ", ".join(kind.value for kind in ErrorType if not kind.is_transient)


def _each(read: Callable[[ControllerCounts], float]) -> Callable[[Controllers], Iterable[Row]]:
    """Return the `read` function of a family with one value for each controller."""
    return lambda controllers: [((name,), float(read(counts))) for name, counts in controllers.counts.items()]


def _each_histogram(read: Callable[[ControllerCounts], Histogram]) -> Callable[[Controllers], Iterable[Row]]:
    return lambda controllers: [((name,), Distribution.of(read(counts))) for name, counts in controllers.counts.items()]


def _results(controllers: Controllers) -> Iterable[Row]:
    for name, counts in controllers.counts.items():
        yield from (((name, result), float(count)) for result, count in counts.results.items())


def _conflicts(controllers: Controllers) -> Iterable[Row]:
    for name, counts in controllers.counts.items():
        yield from (((name, kind), float(count)) for kind, count in counts.conflicts.items())


def _errors(controllers: Controllers) -> Iterable[Row]:
    for name, counts in controllers.counts.items():
        yield from (((name, kind.value), float(count)) for kind, count in counts.errors.items())


def _writes(controllers: Controllers) -> Iterable[Row]:
    """Return all series of the only controller that writes for Activations, if it is registered."""
    counts = controllers.counts.get("activation")
    if counts is not None:
        for component in WRITE_COMPONENTS:
            for outcome in WRITE_OUTCOMES:
                yield (component, outcome), float(counts.writes[component, outcome])


def _managers(controllers: Controllers) -> Iterable[Row]:
    """Return the series of the managers that have occurred."""
    counts = controllers.counts.get("activation")
    if counts is not None:
        yield from ((labels, float(count)) for labels, count in sorted(counts.conflict_managers.items()))


def _counter(name: str, text: str, read: Callable[[ControllerCounts], float]) -> Family[Controllers]:
    return Family(name, Kind.COUNTER, text, _each(read), _LABEL, (CONTROLLERS,))


def _gauge(name: str, text: str, read: Callable[[ControllerCounts], float]) -> Family[Controllers]:
    return Family(name, Kind.GAUGE, text, _each(read), _LABEL, (CONTROLLERS,))


def _histogram(
    name: str, text: str, read: Callable[[ControllerCounts], Histogram], bounds: tuple[float, ...]
) -> Family[Controllers]:
    return Family(name, Kind.HISTOGRAM, text, _each_histogram(read), _LABEL, (CONTROLLERS,), bounds)


CONTROLLER_FAMILIES: tuple[Family[Controllers], ...] = (
    Family(
        "controller_runtime_reconcile",
        Kind.COUNTER,
        "Reconcile passes over one object, by result.",
        _results,
        ("controller", "result"),
        (CONTROLLERS, RESULTS),
    ),
    _histogram(
        "controller_runtime_reconcile_time_seconds",
        "How long a pass took.",
        lambda counts: counts.reconcile_time,
        RECONCILE_BOUNDS_S,
    ),
    _gauge("controller_runtime_active_workers", "Passes in progress.", lambda counts: counts.active),
    _gauge(
        "controller_runtime_max_concurrent_reconciles",
        "The largest number of concurrent passes.",
        lambda counts: counts.concurrency,
    ),
    _gauge("workqueue_depth", "Objects that wait for their pass.", lambda counts: counts.depth),
    _counter(
        "workqueue_adds",
        "Objects added to the queue; one that already waits is not added again.",
        lambda counts: counts.added_total,
    ),
    _counter(
        "workqueue_retries",
        "Of these, objects added again after an error or on request.",
        lambda counts: counts.retries_total,
    ),
    _histogram(
        "workqueue_queue_duration_seconds",
        "How long an object waited for its pass.",
        lambda counts: counts.queue_time,
        QUEUE_BOUNDS_S,
    ),
    _histogram(
        "workqueue_work_duration_seconds", "How long its pass took.", lambda counts: counts.work_time, QUEUE_BOUNDS_S
    ),
    Family(
        "rest_client_requests",
        Kind.COUNTER,
        "Calls of the Kubernetes API, by verb and status code.",
        lambda controllers: [(labels, float(count)) for labels, count in sorted(controllers.calls.items())],
        ("verb", "code"),
        (VERBS, (NO_ANSWER, "100 to 599")),
    ),
    Family(
        "activator_status_update_conflict",
        Kind.COUNTER,
        "Writes rejected because of a concurrent write (409), by kind of object.",
        _conflicts,
        ("controller", "target_kind"),
        (CONTROLLERS, TARGET_KINDS),
        why='`rest_client_requests_total{code="409"}` shows neither the controller nor the kind of object.',
    ),
    Family(
        "activator_reconcile_errors",
        Kind.COUNTER,
        f"Errors of passes, by kind. Transient: {_TRANSIENT}. Persistent until something is changed: {_PERSISTENT}.",
        _errors,
        ("controller", "error_type"),
        (CONTROLLERS, tuple(kind.value for kind in ErrorType)),
        why='`controller_runtime_reconcile_total{result="error"}` does not distinguish transient errors.',
    ),
    Family(
        "activator_reconcile_writes",
        Kind.COUNTER,
        "Writes for Activations by part and outcome; `unchanged`: not sent because nothing differed.",
        _writes,
        ("component", "outcome"),
        (WRITE_COMPONENTS, WRITE_OUTCOMES),
        why="`rest_client_requests_total` does not count unsent writes.",
    ),
    Family(
        "activator_reconcile_conflicts",
        Kind.COUNTER,
        "Conflicts of writes for Activations (409), by the other manager of the field; `none`: a precondition failed.",
        _managers,
        ("target_kind", "manager"),
        (TARGET_KINDS, MANAGER_WORDS),
        why="`activator_status_update_conflict_total` does not show the other writer.",
    ),
)
