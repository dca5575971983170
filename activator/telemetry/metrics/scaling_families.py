"""The metrics of scaling: the last decision of each revision that is scaled here.

At most METRICS_REVISIONS_MAX revisions have rows of their own; the others share the row `_other`, which has sums, or
the maximum of values that cannot be added. All are gauges, so a revision may move between its own row and `_other`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from activator.control_plane.scaling.autoscaler import Autoscaler, LastDecision
from activator.control_plane.scaling.explanation import ScalingReason
from activator.telemetry.metrics import METRICS_REVISIONS_MAX
from activator.telemetry.metrics.families import REVISION_LABELS, Aggregation, Family, Kind, Row
from activator.telemetry.metrics.named import OTHER

SCALING_REASONS = tuple(reason.value for reason in ScalingReason)


class ScalingFigures(NamedTuple):
    """The scaled revisions at one time."""

    shown: list[LastDecision]
    decisions: dict[ScalingReason, int]

    @classmethod
    def of(cls, autoscaler: Autoscaler) -> ScalingFigures:
        return cls(list(autoscaler.all_shown()), autoscaler.decision_totals)


def _gauge(
    name: str, text: str, read: Callable[[LastDecision], float], fold: Aggregation = Aggregation.SUM
) -> Family[ScalingFigures]:
    def rows(figures: ScalingFigures) -> Iterable[Row]:
        for decision in figures.shown[:METRICS_REVISIONS_MAX]:
            namespace, _, revision = decision.key.partition("/")
            yield (namespace, revision), float(read(decision))
        others = [float(read(decision)) for decision in figures.shown[METRICS_REVISIONS_MAX:]]
        if others:
            yield OTHER, max(others) if fold is Aggregation.MAX else sum(others)

    return Family(name, Kind.GAUGE, text, rows, REVISION_LABELS, ((), ()), fold=fold)


def _average(read: Callable[[LastDecision], float]) -> Callable[[LastDecision], float]:
    """Return a function that reads an average; it is 0 for a revision that sleeps, which has no windows."""
    return lambda shown: read(shown) if shown.is_awake else 0.0


SCALING_FAMILIES: tuple[Family[ScalingFigures], ...] = (
    _gauge(
        "activator_scaling_wanted_pods",
        "The number of pods that the last decision asks for.",
        lambda shown: shown.decision.wanted,
    ),
    _gauge(
        "activator_scaling_panicking",
        "1 while the revision panics: its load rose suddenly, and its number of pods does not fall.",
        lambda shown: float(shown.is_awake and shown.decision.panicking),
    ),
    _gauge(
        "activator_scaling_stable_average",
        "The average load over the stable window: concurrent requests, or requests per second.",
        _average(lambda shown: shown.decision.seen.stable),
    ),
    _gauge(
        "activator_scaling_panic_average",
        "The average load over the panic window.",
        _average(lambda shown: shown.decision.seen.panic),
    ),
    _gauge(
        "activator_scaling_target",
        "The target load of each pod, multiplied by the target utilization.",
        lambda shown: shown.decision.rule.effective_target,
        Aggregation.MAX,
    ),
    Family(
        "activator_scaling_decisions",
        Kind.COUNTER,
        "Decisions about the number of pods of a revision, by the step that determined the number.",
        lambda figures: [((reason.value,), float(count)) for reason, count in figures.decisions.items() if count],
        ("reason",),
        (SCALING_REASONS,),
    ),
)
