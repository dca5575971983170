"""Which requests may wait, where in line, and for how long, by a revision's configuration."""

from __future__ import annotations

from activator.config.specs import RevisionSpec
from activator.data_plane.throttle.classifier import RequestClassifier
from activator.data_plane.throttle.disciplines import make_classifier
from activator.data_plane.throttle.forecast import Forecast
from activator.data_plane.throttle.waiters import Waiter, WaitingLine
from activator.runtime.reasons import Reason


class Admission:
    """Of one revision. `detail` is the text that goes with the reason that was returned last."""

    def __init__(self, spec: RevisionSpec, forecast: Forecast) -> None:
        self._forecast = forecast
        self._classifier: RequestClassifier | None = None
        self.exempts: bool = False  # some rule exempts
        self.predicts: bool = False
        self.detail: str = ""
        self._slots_max: int = 0
        self.configure(spec)

    def configure(self, spec: RevisionSpec) -> None:
        classifier = make_classifier(spec)
        self._classifier = classifier
        self.exempts = classifier is not None and classifier.exempts
        self.predicts = spec.admission == "predictive"
        self._slots_max = spec.max_scale * spec.container_concurrency

    def is_exempt(self, waiter: Waiter) -> bool:
        """Whether a rule lets the request pass even when every pod is full."""
        classifier = self._classifier
        head = waiter.request()
        if classifier is not None and head is not None:
            waiter.exempt = classifier.is_exempt(head)
        return waiter.exempt

    def sort(self, waiter: Waiter) -> Reason | None:
        """Find the waiter's place in line; a reason when its headers make no sense."""
        classifier = self._classifier
        head = None if classifier is None else waiter.request()
        if classifier is not None and head is not None:
            self.detail = classifier.sort(waiter, head)
            if self.detail:
                return Reason.BAD_REQUEST
        waiter.sorted = True
        return None

    def limit_s(self, waiter: Waiter, usual_s: float) -> float:
        """How long the waiter may stand in line from its arrival, where others may `usual_s`."""
        if self._classifier is None:
            return min(usual_s, waiter.own_deadline_s)
        return self._classifier.timeout_s(waiter, usual_s)

    def predict(self, waiter: Waiter, line: WaitingLine, capacity: int, limit_s: float, now_s: float) -> Reason | None:
        """A reason when the waiter could not be granted in time even in the best case.

        How many slots there can ever be follows from max_scale; where that is not known, no request is refused.
        """
        slots = max(self._slots_max, capacity) if self._slots_max else 0
        best_s = self._forecast.best_case_s(line.ahead_of(waiter), slots, now_s)
        if best_s <= limit_s - (now_s - waiter.asked_s):
            return None
        self.detail = f"at best in {best_s:.1f} s, wanted within {limit_s:g} s"
        return Reason.DEADLINE_TOO_SHORT
