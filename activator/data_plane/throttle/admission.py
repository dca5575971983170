"""Admission to a revision's queue: whether a request may wait, at which position, and for how long.

Rules
  1. If a slot is free, only exempting rules are evaluated.
  2. The header fields of a client affect the position of its own request only, within the bounds of the configuration.
  3. Exempting rules match the path as it was sent. A path with `..`, or with an encoded dot, slash or backslash, is not
     exempted, because the pod may interpret it as another path.
"""

from __future__ import annotations

import re
from typing import Final

from activator.codec.message import RequestHead
from activator.config.model.queueing import PRIORITY_LEVELS
from activator.config.specs import NO_LEVEL, QueueSpec, RevisionSpec, RuleSpec
from activator.data_plane.throttle.forecast import Forecast
from activator.data_plane.throttle.waiters import Waiter, WaiterQueue
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
    """One entry of `queue.rules`, with its strings as bytes."""

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
    """The classifier of one revision's requests, by its rules and by header fields."""

    def __init__(self, spec: QueueSpec) -> None:
        self.exempts: bool = any(rule.exempt for rule in spec.rules)
        self._rules: list[_Rule] = [_Rule(rule) for rule in spec.rules]
        discipline = spec.discipline
        has_keys = discipline.name in {"fair", "priority-fair"}
        self._priority_header: bytes = discipline.header.lower().encode()
        self._default_level: int = discipline.default
        self._share_header: bytes = discipline.key_header.lower().encode()
        self._shares_by_user: bool = has_keys and not self._share_header
        self._reads_limits: bool = spec.request_timeout
        self._timeout_max_s: float | None = spec.request_timeout_max_s

    def is_exempt(self, head: RequestHead) -> bool:
        """Return True if the first rule that matches exempts the request from the limits of the pods."""
        rule = self._rule_for(head)
        return rule is not None and rule.exempt and _AMBIGUOUS.search(_path_of(head)) is None

    def classify(self, waiter: Waiter, head: RequestHead) -> str:
        """Set the level, share, charge and limits of a waiter; return an error text, "" if its fields are valid."""
        waiter.level = self._level_of(waiter, head)
        if self._share_header:
            waiter.share = head.received(self._share_header) or b""
        elif self._shares_by_user and waiter.user is not None:
            waiter.share = waiter.user.share
        rule = self._rule_for(head)
        if rule is not None:
            waiter.charge = rule.charge
        if not self._reads_limits or waiter.is_classified:
            return ""
        return self._read_limits(waiter, head)

    def timeout_s(self, waiter: Waiter, usual_s: float) -> float:
        """Return how long the waiter may wait from its arrival, in seconds; `usual_s` is the limit of the revision."""
        own_s = waiter.own_timeout_s
        if own_s != NEVER:
            timeout_max_s = self._timeout_max_s
            usual_s = min(own_s, usual_s if timeout_max_s is None else timeout_max_s)
        return min(usual_s, waiter.own_deadline_s)

    # --- within ---

    def _rule_for(self, head: RequestHead) -> _Rule | None:
        """Return the first rule that matches; None if none does."""
        for rule in self._rules:
            if rule.matches(head):
                return rule
        return None

    def _level_of(self, waiter: Waiter, head: RequestHead) -> int:
        """Return the priority level of a request: that of its user, of its header, or the default."""
        user = waiter.user
        if user is not None and user.level != NO_LEVEL:
            return user.level
        if not self._priority_header:
            return self._default_level
        text = head.received(self._priority_header)
        if text is None:
            return self._default_level
        if len(text) == 1 and 48 <= text[0] < 48 + PRIORITY_LEVELS:
            return text[0] - 48  # the common case, without a regular expression
        if _PRIORITY.fullmatch(text) is None:
            return self._default_level
        return min(max(int(text), 0), PRIORITY_LEVELS - 1)

    def _read_limits(self, waiter: Waiter, head: RequestHead) -> str:
        """Set the limits that the request states in header fields; return an error text, "" if they are valid."""
        text = head.received(_QUEUE_TIMEOUT)
        if text is not None:
            seconds = parse_seconds(text.decode("latin-1"))
            if seconds is None:
                return _duration_problem(QUEUE_TIMEOUT_HEADER, text)
            waiter.own_timeout_s = seconds
        text = head.received(_DEADLINE)
        if text is not None:
            seconds = parse_seconds(text.decode("latin-1"))
            if seconds is None:
                return _duration_problem(DEADLINE_HEADER, text)
            waiter.own_deadline_s = min(waiter.own_deadline_s, seconds)
        return ""


class Admission:
    """The admission of one revision. `detail` explains the reason that was returned last."""

    def __init__(self, spec: RevisionSpec, forecast: Forecast) -> None:
        self._forecast = forecast
        self._classifier: RequestClassifier | None = None
        self.exempts: bool = False  # a rule exempts requests
        self.predicts: bool = False  # reject requests that cannot get a slot in time
        self.detail: str = ""
        self._slots_max: int = 0  # 0: the scale has no limit
        self.configure(spec)

    def configure(self, spec: RevisionSpec) -> None:
        classifier = make_classifier(spec.queue)
        self._classifier = classifier
        self.exempts = classifier is not None and classifier.exempts
        self.predicts = spec.queue.admission == "predictive"
        self._slots_max = spec.balancing.max_scale * spec.container_concurrency

    def is_exempt(self, waiter: Waiter) -> bool:
        """Return True if a rule exempts the request from the limits of the pods; the result is stored in the waiter."""
        classifier = self._classifier
        head = waiter.request()
        if classifier is not None and head is not None:
            waiter.exempt = classifier.is_exempt(head)
        return waiter.exempt

    def classify(self, waiter: Waiter) -> Reason | None:
        """Classify the waiter; return BAD_REQUEST if its header fields are invalid."""
        classifier = self._classifier
        head = None if classifier is None else waiter.request()
        if classifier is not None and head is not None:
            self.detail = classifier.classify(waiter, head)
            if self.detail:
                return Reason.BAD_REQUEST
        waiter.is_classified = True
        return None

    def limit_s(self, waiter: Waiter, usual_s: float) -> float:
        """Return how long the waiter may wait from its arrival, in seconds; `usual_s` is the limit of the revision."""
        if self._classifier is None:
            return min(usual_s, waiter.own_deadline_s)
        return self._classifier.timeout_s(waiter, usual_s)

    def predict(
        self, waiter: Waiter, waiters: WaiterQueue, capacity: int, limit_s: float, now_s: float
    ) -> Reason | None:
        """Return DEADLINE_TOO_SHORT if the waiter cannot be granted a slot in time even in the best case.

        The largest possible number of slots follows from max_scale. If that is unlimited, no request is rejected.
        """
        slots = max(self._slots_max, capacity) if self._slots_max else 0
        best_s = self._forecast.best_case_s(waiters.ahead_of(waiter), slots, now_s)
        if best_s <= limit_s - (now_s - waiter.asked_s):
            return None
        self.detail = f"a slot in {best_s:.1f} s at best, required within {limit_s:g} s"
        return Reason.DEADLINE_TOO_SHORT


def make_classifier(spec: QueueSpec) -> RequestClassifier | None:
    """Return the classifier of a revision; None if the position of a request never depends on its head."""
    if spec.discipline.name == "fifo" and not spec.rules and not spec.request_timeout:
        return None
    return RequestClassifier(spec)


def _path_of(head: RequestHead) -> bytes:
    return head.target.partition(b"?")[0]


def _duration_problem(name: str, text: bytes) -> str:
    return f"{name}: found {text[:40].decode('latin-1')!r}, expected seconds or a duration such as 300ms, 5s or 2m"
