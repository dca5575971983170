"""Metrics, collected from plain counters when somebody asks: the request path never touches this module.

Rules
  1. Labels are namespace, revision and closed sets (state, reason, code class); never a pod, a path or a host.
  2. Names and units follow Prometheus' conventions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from activator.clock import Now
from activator.discovery.push import PushIntake
from activator.listen.connection import Listening
from activator.state.apply import DataPart
from activator.state.worker import StateWorker
from activator.telemetry.state_metrics import push_reports, worker_health
from activator.throttle.budget import HeldBudget
from activator.throttle.revision import RevisionThrottler
from lb.tracker import EMPTY, STATE_NAMES

REVISION_LABELS = ("namespace", "revision")


class Exposition:
    """One registry for one program; nothing global, so two programs in one process do not meet."""

    def __init__(
        self,
        part: DataPart,
        listening: Listening,
        held: HeldBudget,
        worker: StateWorker,
        now: Now,
        intake: PushIntake | None = None,
    ) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Program(listening, held, worker, now, intake))
        self._registry.register(_Revisions(part))

    def render(self) -> tuple[bytes, str]:
        """The text format, and its content type."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST


class _Program(Collector):
    """What belongs to the whole process."""

    def __init__(
        self, listening: Listening, held: HeldBudget, worker: StateWorker, now: Now, intake: PushIntake | None
    ) -> None:
        self._now = now
        self._intake = intake
        self._listening = listening
        self._held = held
        self._worker = worker

    def collect(self) -> Iterator[Metric]:
        listening = self._listening
        proxy = listening.proxy
        worker = self._worker
        yield _gauge("activator_client_connections", "Open client connections.", len(listening.connections))
        yield _counter("activator_client_connections_accepted", "Client connections.", listening.accepted_total)
        yield _counter("activator_client_connections_shed", "Client connections over the limit.", listening.shed_total)
        yield _gauge("activator_exchanges", "Requests begun and not ended.", proxy.active)
        yield _gauge("activator_held_bytes", "Request bodies held while their requests wait.", self._held.held_bytes)
        yield _gauge("activator_held_requests", "Requests that wait for a slot.", self._held.held_requests)
        refused = CounterMetricFamily(
            "activator_refused_requests", "Requests refused before they had a revision.", labels=("reason",)
        )
        for reason, count in proxy.refused_requests.items():
            refused.add_metric((reason.value,), count)
        yield refused
        yield _counter("activator_state_changes", "Changes the state worker has taken.", worker.changes_total)
        yield _counter("activator_state_changes_folded", "Changes folded into later ones.", worker.queue.folded_total)
        yield from worker_health(worker, self._now)
        yield from push_reports(self._intake)


class _Revisions(Collector):
    """What belongs to one revision each."""

    def __init__(self, part: DataPart) -> None:
        self._part = part

    def collect(self) -> Iterator[Metric]:
        throttlers = list(self._part.throttlers.values())
        yield _family(throttlers, GaugeMetricFamily, "activator_in_flight", "Requests at pods.", _in_flight)
        yield _family(throttlers, GaugeMetricFamily, "activator_queued", "Requests that wait for a slot.", _queued)
        yield _family(
            throttlers, GaugeMetricFamily, "activator_queue_held_bytes", "Bodies held for this revision.", _held_bytes
        )
        yield _family(throttlers, CounterMetricFamily, "activator_exempted", "Requests exempted by rule.", _exempted)
        yield _family(
            throttlers, CounterMetricFamily, "activator_waiter_errors", "Waiters that raised when told.", _errors
        )
        yield _family(
            throttlers, GaugeMetricFamily, "activator_capacity", "Slots of pods that may be picked.", _capacity
        )
        yield _family(throttlers, CounterMetricFamily, "activator_requests", "Requests routed here.", _requests)
        yield _family(throttlers, CounterMetricFamily, "activator_client_gone", "Clients that left early.", _gone)
        yield _family(
            throttlers,
            GaugeMetricFamily,
            "activator_sparse_array_fragmentation_ratio",
            "Empty slots below the table's length, as a share of it.",
            _fragmentation,
        )
        yield self._responses(throttlers)
        yield self._failures(throttlers)
        yield self._retries(throttlers)
        yield self._pods(throttlers)

    def _responses(self, throttlers: list[RevisionThrottler]) -> Metric:
        family = CounterMetricFamily(
            "activator_responses", "Answers of pods, by class of status code.", labels=(*REVISION_LABELS, "code_class")
        )
        for throttler in throttlers:
            classes: dict[str, int] = {}
            for code, count in throttler.codes.items():
                name = f"{code // 100}xx"
                classes[name] = classes.get(name, 0) + count
            for name, count in sorted(classes.items()):
                family.add_metric((*_labels(throttler), name), count)
        return family

    def _failures(self, throttlers: list[RevisionThrottler]) -> Metric:
        family = CounterMetricFamily(
            "activator_failures", "Requests that did not end with a pod's answer.", labels=(*REVISION_LABELS, "reason")
        )
        for throttler in throttlers:
            for reason, count in throttler.failed_totals.items():
                family.add_metric((*_labels(throttler), reason.value), count)
        return family

    def _retries(self, throttlers: list[RevisionThrottler]) -> Metric:
        family = CounterMetricFamily(
            "activator_retries", "Requests tried again, by what failed.", labels=(*REVISION_LABELS, "reason")
        )
        for throttler in throttlers:
            for reason, count in throttler.retries.items():
                family.add_metric((*_labels(throttler), reason.value), count)
        return family

    def _pods(self, throttlers: list[RevisionThrottler]) -> Metric:
        family = GaugeMetricFamily("activator_pods", "Pods by state.", labels=(*REVISION_LABELS, "state"))
        for throttler in throttlers:
            counts = [0] * len(STATE_NAMES)
            for tracker in throttler.table.slots[: throttler.table.length]:
                counts[tracker.state] += 1
            for state, name in enumerate(STATE_NAMES):
                if state != EMPTY:
                    family.add_metric((*_labels(throttler), name), counts[state])
        return family


def _labels(throttler: RevisionThrottler) -> tuple[str, str]:
    namespace, _, name = throttler.key.partition("/")
    return namespace, name


def _family(
    throttlers: list[RevisionThrottler],
    kind: type[GaugeMetricFamily | CounterMetricFamily],
    name: str,
    text: str,
    value: Callable[[RevisionThrottler], float],
) -> Metric:
    family = kind(name, text, labels=REVISION_LABELS)
    for throttler in throttlers:
        family.add_metric(_labels(throttler), value(throttler))
    return family


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value=value)


def _in_flight(throttler: RevisionThrottler) -> float:
    return float(throttler.table.in_flight)


def _queued(throttler: RevisionThrottler) -> float:
    return float(throttler.line.length)


def _held_bytes(throttler: RevisionThrottler) -> float:
    return float(throttler.held.held_bytes)


def _exempted(throttler: RevisionThrottler) -> float:
    return float(throttler.exempted_total)


def _errors(throttler: RevisionThrottler) -> float:
    return float(throttler.errors_total)


def _capacity(throttler: RevisionThrottler) -> float:
    return float(throttler.table.capacity)


def _requests(throttler: RevisionThrottler) -> float:
    return float(throttler.requests_total)


def _gone(throttler: RevisionThrottler) -> float:
    return float(throttler.client_gone_total)


def _fragmentation(throttler: RevisionThrottler) -> float:
    return float(throttler.table.fragmentation)
