"""What controllers count, by the names of Kubernetes' controller-runtime and client-go, and two names of our own.

Rules
  1. What a controller runtime has goes by its name there, so that its dashboards show ours too; the one label is
     `controller`, as the queues' label `name` says the same word again. Kubernetes' clients label their calls with the
     host as well: here it would be an address, so it is left out. The verb is that of the API.
  2. A metric of our own says what it adds to the one nearest to it. All of ours together are at most 113 series.
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
    return lambda it: [((name,), float(read(counts))) for name, counts in it.counts.items()]


def _times(read: Callable[[ControllerCounts], Histogram]) -> Callable[[Controllers], Iterable[Row]]:
    return lambda it: [((name,), Distribution.of(read(counts))) for name, counts in it.counts.items()]


def _results(it: Controllers) -> Iterable[Row]:
    for name, counts in it.counts.items():
        yield from (((name, result), float(count)) for result, count in counts.results.items())


def _conflicts(it: Controllers) -> Iterable[Row]:
    for name, counts in it.counts.items():
        yield from (((name, kind), float(count)) for kind, count in counts.conflicts.items())


def _errors(it: Controllers) -> Iterable[Row]:
    for name, counts in it.counts.items():
        yield from (((name, kind.value), float(count)) for kind, count in counts.errors.items())


def _writes(it: Controllers) -> Iterable[Row]:
    """Only the controller that writes for Activations has them: where it is registered, each series is there."""
    counts = it.counts.get("activation")
    if counts is not None:
        for component in WRITE_COMPONENTS:
            for outcome in WRITE_OUTCOMES:
                yield (component, outcome), float(counts.writes[component, outcome])


def _managers(it: Controllers) -> Iterable[Row]:
    """Those that there were."""
    counts = it.counts.get("activation")
    if counts is not None:
        yield from ((labels, float(count)) for labels, count in sorted(counts.conflict_managers.items()))


def _counter(name: str, text: str, read: Callable[[ControllerCounts], float]) -> Family[Controllers]:
    return Family(name, Kind.COUNTER, text, _each(read), _LABEL, (CONTROLLERS,))


def _gauge(name: str, text: str, read: Callable[[ControllerCounts], float]) -> Family[Controllers]:
    return Family(name, Kind.GAUGE, text, _each(read), _LABEL, (CONTROLLERS,))


def _histogram(
    name: str, text: str, read: Callable[[ControllerCounts], Histogram], bounds: tuple[float, ...]
) -> Family[Controllers]:
    return Family(name, Kind.HISTOGRAM, text, _times(read), _LABEL, (CONTROLLERS,), bounds)


CONTROLLER_FAMILIES: tuple[Family[Controllers], ...] = (
    Family(
        "controller_runtime_reconcile",
        Kind.COUNTER,
        "Passes over one object, by how they ended.",
        _results,
        ("controller", "result"),
        (CONTROLLERS, RESULTS),
    ),
    _histogram(
        "controller_runtime_reconcile_time_seconds",
        "How long a pass took.",
        lambda it: it.reconcile_time,
        RECONCILE_BOUNDS_S,
    ),
    _gauge("controller_runtime_active_workers", "Passes that are under way.", lambda it: it.active),
    _gauge(
        "controller_runtime_max_concurrent_reconciles",
        "Passes that may be under way at the same time.",
        lambda it: it.concurrency,
    ),
    _gauge("workqueue_depth", "Objects that wait for their pass.", lambda it: it.depth),
    _counter(
        "workqueue_adds",
        "Objects put into the queue; one that waits already is not put in twice.",
        lambda it: it.added_total,
    ),
    _counter(
        "workqueue_retries",
        "Of these, those that were added again: after an error, or on request.",
        lambda it: it.retries_total,
    ),
    _histogram(
        "workqueue_queue_duration_seconds",
        "How long an object waited for its pass.",
        lambda it: it.queue_time,
        QUEUE_BOUNDS_S,
    ),
    _histogram("workqueue_work_duration_seconds", "How long its pass took.", lambda it: it.work_time, QUEUE_BOUNDS_S),
    Family(
        "rest_client_requests",
        Kind.COUNTER,
        "Calls of the Kubernetes API, by verb and status code.",
        lambda it: [(labels, float(count)) for labels, count in sorted(it.calls.items())],
        ("verb", "code"),
        (VERBS, (NO_ANSWER, "100 to 599")),
    ),
    Family(
        "activator_status_update_conflict",
        Kind.COUNTER,
        "Writes rejected because of another write meanwhile (409), by kind of object.",
        _conflicts,
        ("controller", "target_kind"),
        (CONTROLLERS, TARGET_KINDS),
        adds='`rest_client_requests_total{code="409"}` counts them too, but says neither who '
        "wrote nor what: which kind of object the writers quarrel about is the question.",
    ),
    Family(
        "activator_reconcile_errors",
        Kind.COUNTER,
        f"Errors of passes, by kind. Transient: {_TRANSIENT}. Persistent, until a change is made: {_PERSISTENT}.",
        _errors,
        ("controller", "error_type"),
        (CONTROLLERS, tuple(kind.value for kind in ErrorType)),
        adds='`controller_runtime_reconcile_total{result="error"}` counts failed passes, not whether waiting helps.',
    ),
    Family(
        "activator_reconcile_writes",
        Kind.COUNTER,
        "What became of writes for Activations, by part; `unchanged`: compared and not sent.",
        _writes,
        ("component", "outcome"),
        (WRITE_COMPONENTS, WRITE_OUTCOMES),
        adds="`rest_client_requests_total` counts calls; what a comparison saved is in none of them.",
    ),
    Family(
        "activator_reconcile_conflicts",
        Kind.COUNTER,
        "Conflicts of writes for Activations (409), by the other manager of the field; `none`: a precondition failed.",
        _managers,
        ("target_kind", "manager"),
        (TARGET_KINDS, MANAGER_WORDS),
        adds="`activator_status_update_conflict_total` says what the writers quarrel about, not who the other one is.",
    ),
)
