"""Metrics of the state worker: how it fares, and what it refused."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from activator.clock import Now
from activator.discovery.push import PushIntake
from activator.state.worker import StateWorker
from lb.tracker import EMPTY, STATE_NAMES


def worker_health(worker: StateWorker, now: Now) -> Iterator[Metric]:
    """Panics, rebuilds, refusals. No sample of the last panic while there was none."""
    supervision = worker.supervision
    now_s = now()
    yield CounterMetricFamily(
        "activator_state_worker_panics", "Changes that raised and were set aside.", value=supervision.panics_total
    )
    since = GaugeMetricFamily("activator_state_worker_last_panic_seconds", "How long ago the last panic was.")
    since_s = supervision.since_last_s(now_s)
    if since_s is not None:
        since.add_metric((), since_s)
    yield since
    yield GaugeMetricFamily(
        "activator_state_worker_panics_in_a_row",
        "Panics in a row, of the revision that has most.",
        value=supervision.worst_in_a_row(now_s),
    )
    yield GaugeMetricFamily(
        "activator_state_worker_next_backoff_seconds",
        "The longest backoff, if its owner panicked now.",
        value=supervision.next_backoff_s(now_s),
    )
    yield CounterMetricFamily(
        "activator_state_rebuilds", "Tables made anew from the model.", value=worker.rebuilds_total
    )
    yield CounterMetricFamily(
        "activator_state_changes_refused", "Changes that made no sense when they came.", value=worker.refused_total
    )
    found = CounterMetricFamily("activator_state_mismatches", "What the auditor found.", labels=("kind",))
    for kind, count in sorted(worker.mismatch_totals.items()):
        found.add_metric((kind,), count)
    yield found
    illegal = CounterMetricFamily(
        "activator_state_illegal_transitions", "Transitions that were refused.", labels=("from", "event", "to")
    )
    for (before, event, after), count in sorted(worker.illegal_totals.items()):
        illegal.add_metric((_name(before), event, _name(after)), count)
    yield illegal


def push_reports(intake: PushIntake | None) -> Iterator[Metric]:
    """What pods said of themselves and what became of it; nothing where they cannot."""
    if intake is None:
        return
    reports = CounterMetricFamily("activator_push_reports", "What pods said of themselves.", labels=("outcome",))
    for verdict, count in intake.verdict_totals.items():
        reports.add_metric((verdict.value,), count)
    yield reports
    asked = CounterMetricFamily("activator_push_validations", "Pods asked after they said ready.", labels=("outcome",))
    for found, count in intake.validation_totals.items():
        asked.add_metric((found.value,), count)
    yield asked


def _name(state: int) -> str:
    return "unknown" if state == EMPTY else STATE_NAMES[state]
