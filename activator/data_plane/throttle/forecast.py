"""Forecasts from the history of a queue: when to retry, and which deadlines cannot be met.

*When to retry* is an estimate of the likely case: the current queue, at the rate at which slots became free while
requests waited. *Which deadlines cannot be met* is a bound from the best case: every slot that could ever exist, each
as fast as the fastest recent request, and a start as fast as the fastest one observed. Unknown values are assumed to be
the best possible.
"""

from __future__ import annotations

from math import ceil
from typing import Final

from activator.runtime.clock import NEVER

RETRY_AFTER_MIN_S: Final = 1
RETRY_AFTER_MAX_S: Final = 120
_HALF_LIFE_S: Final = 10.0  # after this time with waiting requests, older events count half
_LIFE_S: Final = _HALF_LIFE_S / 0.6931  # half-life / ln 2: the limit of the decayed time
_STEP_S: Final = 0.01  # decay is computed at most this often, because each handover needs it
_SPAN_MIN_S: Final = 0.05  # a rate over less time than this is not meaningful
_QUICKEST_WINDOW_S: Final = 60.0  # the fastest request of this window and of the previous one


class Forecast:
    """The forecast of one revision. Callers pass in all times, in monotonic seconds."""

    def __init__(self) -> None:
        # Slots that became free while requests waited, and the time during which requests waited; both decay together.
        self._freed: float = 0.0
        self._span_s: float = 0.0
        self._aged_at_s: float = 0.0  # when both were computed
        self._has_queue: bool = False  # requests wait
        # Starts from zero.
        self._starting_since_s: float = NEVER
        self._start_last_s: float = NEVER
        self._start_best_s: float = NEVER
        self.not_before_s: float = 0.0  # the time of the next start attempt; 0: unknown
        # The fastest request.
        self._quickest_s: float = NEVER  # in the current window
        self._former_quickest_s: float = NEVER  # in the window before
        self._window_since_s: float = 0.0

    # --- events ---

    def queue_formed(self, now_s: float) -> None:
        """Begin to measure the rate of freed slots: a first request waits."""
        self._aged_at_s = now_s
        self._has_queue = True

    def queue_emptied(self, now_s: float) -> None:
        self._age(now_s)
        self._has_queue = False

    def slot_freed(self, now_s: float) -> None:
        """Count a slot that became free while requests wait."""
        self._age(now_s)
        self._freed += 1.0

    def start_requested(self, now_s: float) -> None:
        """Begin to measure a start, unless one is being measured: a request waits, and there is no pod."""
        if self._starting_since_s == NEVER:
            self._starting_since_s = now_s

    def start_ended(self, now_s: float) -> None:
        """Record the duration of the measured start, if any: a pod has a free slot."""
        if self._starting_since_s != NEVER:
            self._start_last_s = now_s - self._starting_since_s
            self._start_best_s = min(self._start_best_s, self._start_last_s)
            self._starting_since_s = NEVER

    def start_progress(self, now_s: float) -> tuple[float, float]:
        """Return the duration of the current start so far, and that of the last one, in seconds; 0.0: none."""
        so_far_s = 0.0 if self._starting_since_s == NEVER else max(now_s - self._starting_since_s, 0.0)
        return so_far_s, 0.0 if self._start_last_s == NEVER else self._start_last_s

    def start_abandoned(self) -> None:
        """Stop measuring a start that has failed or that no request waits for."""
        self._starting_since_s = NEVER

    def served(self, duration_s: float, now_s: float) -> None:
        """Record a successful request that took `duration_s`."""
        if now_s - self._window_since_s > _QUICKEST_WINDOW_S:
            idle = now_s - self._window_since_s > 2.0 * _QUICKEST_WINDOW_S
            self._former_quickest_s = NEVER if idle else self._quickest_s
            self._quickest_s = NEVER
            self._window_since_s = now_s
        if duration_s < self._quickest_s:
            self._quickest_s = duration_s

    # --- queries ---

    def per_s(self, now_s: float) -> float:
        """Return how many slots become free per second while requests wait; 0.0 if unknown."""
        self._age(now_s)
        return 0.0 if self._freed < 0.01 else self._freed / max(self._span_s, _SPAN_MIN_S)

    def retry_after_s(self, length: int, now_s: float) -> int:
        """Return the expected time until the requests that wait now are served, in whole bounded seconds."""
        if self.not_before_s > now_s:
            guess_s = self.not_before_s - now_s
            if self._start_last_s != NEVER:
                guess_s += self._start_last_s
        elif self._starting_since_s != NEVER:
            guess_s = self._start_left_s(now_s)
        else:
            per_s = self.per_s(now_s)
            # Without a rate, assume that the queue lasts as long again as it has lasted so far.
            guess_s = (length + 1) / per_s if per_s > 0.0 else self._span_s
        return ceil(min(max(guess_s, float(RETRY_AFTER_MIN_S)), float(RETRY_AFTER_MAX_S)))

    def best_case_s(self, ahead: int, slots_max: int, now_s: float) -> float:
        """Return the shortest possible wait of a request behind `ahead` others. `slots_max` 0: unknown."""
        start_s = 0.0
        if self._starting_since_s != NEVER and self._start_best_s != NEVER:
            start_s = max(self._start_best_s - (now_s - self._starting_since_s), 0.0)
        quickest_s = min(self._quickest_s, self._former_quickest_s)
        if slots_max <= 0 or quickest_s == NEVER or now_s - self._window_since_s > 2.0 * _QUICKEST_WINDOW_S:
            return start_s
        # All slots may become free at once, and then again each time the fastest request ends.
        return start_s + (ahead // slots_max) * quickest_s

    # --- within ---

    def _start_left_s(self, now_s: float) -> float:
        """Return the expected time until the current start ends."""
        elapsed_s = now_s - self._starting_since_s
        if self._start_last_s != NEVER and self._start_last_s > elapsed_s:
            return self._start_last_s - elapsed_s
        return elapsed_s  # unknown or overdue: assume as long again as it has taken so far

    def _age(self, now_s: float) -> None:
        """Let the rate decay until now, while requests wait."""
        if not self._has_queue:
            return
        passed_s = now_s - self._aged_at_s
        if passed_s < _STEP_S:
            return
        factor: float = 2.0 ** (-passed_s / _HALF_LIFE_S)
        self._freed *= factor
        self._span_s = self._span_s * factor + _LIFE_S * (1.0 - factor)
        self._aged_at_s = now_s
