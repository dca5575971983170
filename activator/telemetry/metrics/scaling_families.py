"""The metrics of scaling: the last decision of each revision that is scaled here.

At most METRICS_REVISIONS_MAX revisions have rows of their own; the others are one row, `_other`: sums, and the greatest
of what cannot be added up. All are gauges, so a revision may move from one to the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from activator.control_plane.scaling.autoscaler import Autoscaler, Shown
from activator.control_plane.scaling.explanation import ScalingReason
from activator.telemetry.metrics import METRICS_REVISIONS_MAX
from activator.telemetry.metrics.families import REVISION_LABELS, Family, Fold, Kind, Row
from activator.telemetry.metrics.named import OTHER

SCALING_REASONS = tuple(reason.value for reason in ScalingReason)


class ScalingFigures(NamedTuple):
    """Of one moment."""

    shown: list[Shown]
    decisions: dict[ScalingReason, int]

    @classmethod
    def of(cls, autoscaler: Autoscaler) -> ScalingFigures:
        return cls(list(autoscaler.all_shown()), autoscaler.decision_totals)


def _gauge(name: str, text: str, read: Callable[[Shown], float], fold: Fold = Fold.SUM) -> Family[ScalingFigures]:
    def rows(it: ScalingFigures) -> Iterable[Row]:
        for one in it.shown[:METRICS_REVISIONS_MAX]:
            namespace, _, revision = one.key.partition("/")
            yield (namespace, revision), float(read(one))
        others = [float(read(one)) for one in it.shown[METRICS_REVISIONS_MAX:]]
        if others:
            yield OTHER, max(others) if fold is Fold.MAX else sum(others)

    return Family(name, Kind.GAUGE, text, rows, REVISION_LABELS, ((), ()), fold=fold)


def _average(read: Callable[[Shown], float]) -> Callable[[Shown], float]:
    """A revision that sleeps had none since its last decision."""
    return lambda it: read(it) if it.is_awake else 0.0


SCALING_FAMILIES: tuple[Family[ScalingFigures], ...] = (
    _gauge("activator_scaling_wanted_pods", "Pods that are wanted.", lambda it: it.decision.wanted),
    _gauge(
        "activator_scaling_panicking",
        "1: the load rose suddenly, and the number does not fall (panic).",
        lambda it: float(it.is_awake and it.decision.panicking),
    ),
    _gauge(
        "activator_scaling_stable_average",
        "The average load over the stable window: requests at once, or per second.",
        _average(lambda it: it.decision.seen.stable),
    ),
    _gauge(
        "activator_scaling_panic_average",
        "The average load over the panic window: requests at once, or per second.",
        _average(lambda it: it.decision.seen.panic),
    ),
    _gauge(
        "activator_scaling_target",
        "The load that is aimed at for each pod, with its utilization.",
        lambda it: it.decision.rule.effective_target,
        Fold.MAX,
    ),
    Family(
        "activator_scaling_decisions",
        Kind.COUNTER,
        "Decisions about how many pods a revision should have, by the step that gave the number.",
        lambda it: [((reason.value,), float(count)) for reason, count in it.decisions.items() if count],
        ("reason",),
        (SCALING_REASONS,),
    ),
)
