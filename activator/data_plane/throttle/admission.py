"""Which requests may wait, where in line, and for how long: by a revision's rules, and by what a request asks for.

Rules
  1. For a request that is granted a slot at once, only the exempting rules are looked at.
  2. What a client sends decides about its own place only, within what the revision's configuration allows.
  3. An exempting rule looks at the path as it was sent; one with `..` or an encoded dot, slash or backslash in it,
     which the pod may read as another path, is not exempted.
"""

from __future__ import annotations

import re
from typing import Final

from activator.codec.message import RequestHead
from activator.config.model.queueing import PRIORITY_LEVELS
from activator.config.specs import RevisionSpec, RuleSpec
from activator.data_plane.throttle.forecast import Forecast
from activator.data_plane.throttle.waiters import Waiter, WaitingLine
from activator.runtime.clock import NEVER
from activator.runtime.durations import parse_seconds
from activator.runtime.reasons import Reason

QUEUE_TIMEOUT_HEADER: Final = "Activator-Queue-Timeout"
DEADLINE_HEADER: Final = "Activator-Deadline"
_QUEUE_TIMEOUT: Final = QUEUE_TIMEOUT_HEADER.lower().encode()
_DEADLINE: Final = DEADLINE_HEADER.lower().encode()
_AMBIGUOUS: Final = re.compile(rb"/\.\.|\\|%(2e|2f|5c)", re.IGNORECASE)
_PRIORITY: Final = re.compile(rb"[-+]?[0-9]{1,9}")


class _Rule:
    """One entry of `queue.rules`, as bytes."""

    def __init__(self, spec: RuleSpec) -> None:
        self.path_prefix: bytes = spec.path_prefix.encode()
        self.methods: frozenset[bytes] = frozenset([method.encode() for method in spec.methods])
        self.exempt: bool = spec.exempt
        self.charge: int = spec.charge

    def matches(self, head: RequestHead) -> bool:
        if self.methods and head.method not in self.methods:
            return False
        return head.target.startswith(self.path_prefix)


class RequestClassifier:
    """The rules and headers of one revision."""

    def __init__(self, spec: RevisionSpec) -> None:
        self.exempts: bool = any(rule.exempt for rule in spec.queue_rules)
        self._rules: list[_Rule] = [_Rule(rule) for rule in spec.queue_rules]
        discipline = spec.discipline
        header = discipline.header.lower().encode()
        self._priority_header: bytes = header if discipline.name == "priority" else b""
        self._default_level: int = discipline.default
        self._share_header: bytes = header if discipline.name == "fair" else b""
        self._reads_limits: bool = spec.request_timeout
        self._timeout_max_s: float | None = spec.request_timeout_max_s

    def is_exempt(self, head: RequestHead) -> bool:
        """Whether the first rule that matches lets the request pass even when every pod is full."""
        rule = self._rule_for(head)
        return rule is not None and rule.exempt and _AMBIGUOUS.search(_path_of(head)) is None

    def sort(self, waiter: Waiter, head: RequestHead) -> str:
        """Write the waiter's place into it. What is wrong with the request, or an empty string."""
        waiter.level = self._level_of(head)
        if self._share_header:
            waiter.share = head.received(self._share_header) or b""
        rule = self._rule_for(head)
        if rule is not None:
            waiter.charge = rule.charge
        if not self._reads_limits or waiter.sorted:
            return ""
        return self._read_limits(waiter, head)

    def timeout_s(self, waiter: Waiter, usual_s: float) -> float:
        """How long the waiter may stand in line from its arrival, where others may `usual_s`."""
        own_s = waiter.own_timeout_s
        if own_s != NEVER:
            most_s = self._timeout_max_s
            usual_s = min(own_s, usual_s if most_s is None else most_s)
        return min(usual_s, waiter.own_deadline_s)

    # --- within ---

    def _rule_for(self, head: RequestHead) -> _Rule | None:
        for rule in self._rules:
            if rule.matches(head):
                return rule
        return None

    def _level_of(self, head: RequestHead) -> int:
        if not self._priority_header:
            return 0
        text = head.received(self._priority_header)
        if text is None:
            return self._default_level
        if len(text) == 1 and 48 <= text[0] < 48 + PRIORITY_LEVELS:
            return text[0] - 48  # the usual value, without the slower way
        if _PRIORITY.fullmatch(text) is None:
            return self._default_level
        return min(max(int(text), 0), PRIORITY_LEVELS - 1)

    def _read_limits(self, waiter: Waiter, head: RequestHead) -> str:
        text = head.received(_QUEUE_TIMEOUT)
        if text is not None:
            seconds = parse_seconds(text.decode("latin-1"))
            if seconds is None:
                return _no_duration(QUEUE_TIMEOUT_HEADER, text)
            waiter.own_timeout_s = seconds
        text = head.received(_DEADLINE)
        if text is not None:
            seconds = parse_seconds(text.decode("latin-1"))
            if seconds is None:
                return _no_duration(DEADLINE_HEADER, text)
            waiter.own_deadline_s = min(waiter.own_deadline_s, seconds)
        return ""


class Admission:
    """The admission of one revision. `detail` is the text that goes with the reason that was returned last."""

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


def make_classifier(spec: RevisionSpec) -> RequestClassifier | None:
    """Return the classifier of a revision; None if a request's place does not depend on what it asks for."""
    if spec.discipline.name == "fifo" and not spec.queue_rules and not spec.request_timeout:
        return None
    return RequestClassifier(spec)


def _path_of(head: RequestHead) -> bytes:
    return head.target.partition(b"?")[0]


def _no_duration(name: str, text: bytes) -> str:
    return f"{name}: found {text[:40].decode('latin-1')!r}, expected seconds or a duration such as 300ms, 5s or 2m"
