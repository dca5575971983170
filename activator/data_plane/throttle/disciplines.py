"""From the name of a discipline to the line that keeps it, and to what sorts requests into that line."""

from __future__ import annotations

from typing import Final

from activator.config.model.queueing import PRIORITY_LEVELS
from activator.config.specs import RevisionSpec
from activator.data_plane.throttle.classifier import RequestClassifier
from activator.data_plane.throttle.fair import FairLine
from activator.data_plane.throttle.lines import FifoLine
from activator.data_plane.throttle.priority import PriorityLine
from activator.data_plane.throttle.waiters import WaitingLine

FAIR_KEYS_MAX: Final = 1_024  # keys of the discipline `fair` that wait at the same time; the others share one


def make_line(spec: RevisionSpec) -> WaitingLine:
    """An empty line as the revision wants it."""
    discipline = spec.discipline
    if discipline.name == "priority":
        return PriorityLine(PRIORITY_LEVELS, discipline.ageing_s)
    if discipline.name == "fair":
        weights = {key.encode(): weight for key, weight in discipline.weights.items()}
        charge_max = max((rule.charge for rule in spec.queue_rules), default=1)
        return FairLine(weights, charge_max, FAIR_KEYS_MAX)
    assert discipline.name == "fifo", f"no discipline is called {discipline.name}"
    return FifoLine()


def make_classifier(spec: RevisionSpec) -> RequestClassifier | None:
    """None where a request's place does not depend on what it asks for."""
    if spec.discipline.name == "fifo" and not spec.queue_rules and not spec.request_timeout:
        return None
    return RequestClassifier(spec)
