"""What a line's past says about its future: when to come again, and what cannot be in time.

Two different questions, two different answers. *When to come again* is the likely case: the line as it is, at the rate
at which slots came free while there was a line. *What cannot be in time* is the best case: every slot there could ever
be, each as quick as the quickest request of late, a start as quick as the quickest one seen. What is not known is taken
to be at its best.
"""

from __future__ import annotations

from math import ceil
from typing import Final

from activator.runtime.clock import NEVER

RETRY_AFTER_MIN_S: Final = 1
RETRY_AFTER_MAX_S: Final = 120
_HALF_LIFE_S: Final = 10.0  # of what the rate remembers, in time during which requests waited
_LIFE_S: Final = _HALF_LIFE_S / 0.6931  # by ln 2: the decayed length of an endless past
_STEP_S: Final = 0.01  # ageing is computed no more often than this: it is part of every hand-over
_SPAN_MIN_S: Final = 0.05  # a rate from less than this means nothing
_QUICKEST_WINDOW_S: Final = 60.0  # the quickest request of this window and of the one before


class Forecast:
    """Of one revision. All times are monotonic seconds, handed in."""

    def __init__(self) -> None:
        # Slots that came free while requests waited, and for how long requests waited; both decay together.
        self._freed: float = 0.0
        self._span_s: float = 0.0
        self._at_s: float = 0.0
        self._standing: bool = False
        # Starts from zero.
        self._starting_since_s: float = NEVER
        self._start_last_s: float = NEVER
        self._start_best_s: float = NEVER
        self.not_before_s: float = 0.0  # no start is tried before; 0: that is not known
        # The quickest request.
        self._quickest_s: float = NEVER
        self._quickest_before_s: float = NEVER
        self._window_since_s: float = 0.0

    # --- what happens ---

    def line_formed(self, now_s: float) -> None:
        """The first request waits; none did before."""
        self._at_s = now_s
        self._standing = True

    def line_ended(self, now_s: float) -> None:
        self._age(now_s)
        self._standing = False

    def slot_freed(self, now_s: float) -> None:
        """A request ended while others waited."""
        self._age(now_s)
        self._freed += 1.0

    def start_wanted(self, now_s: float) -> None:
        """A request waits, and there is no pod."""
        if self._starting_since_s == NEVER:
            self._starting_since_s = now_s

    def start_ended(self, now_s: float) -> None:
        """There is a pod with room."""
        if self._starting_since_s != NEVER:
            self._start_last_s = now_s - self._starting_since_s
            self._start_best_s = min(self._start_best_s, self._start_last_s)
            self._starting_since_s = NEVER

    def start_progress(self, now_s: float) -> tuple[float, float]:
        """How long the start has taken that is waited for, and how long the last one took; 0.0: none, not known."""
        so_far_s = 0.0 if self._starting_since_s == NEVER else max(now_s - self._starting_since_s, 0.0)
        return so_far_s, 0.0 if self._start_last_s == NEVER else self._start_last_s

    def start_given_up(self) -> None:
        """No request waits for it any more, or it failed: how long it takes will not be seen."""
        self._starting_since_s = NEVER

    def served(self, took_s: float, now_s: float) -> None:
        """A request went well."""
        if now_s - self._window_since_s > _QUICKEST_WINDOW_S:
            idle = now_s - self._window_since_s > 2.0 * _QUICKEST_WINDOW_S
            self._quickest_before_s = NEVER if idle else self._quickest_s
            self._quickest_s = NEVER
            self._window_since_s = now_s
        if took_s < self._quickest_s:
            self._quickest_s = took_s

    # --- what is asked ---

    def per_s(self, now_s: float) -> float:
        """Slots that come free in a second while requests wait; 0.0: not known."""
        self._age(now_s)
        return 0.0 if self._freed < 0.01 else self._freed / max(self._span_s, _SPAN_MIN_S)

    def retry_after_s(self, length: int, now_s: float) -> int:
        """When the requests that wait now will have been served, in whole seconds; at least 1, and bounded."""
        if self.not_before_s > now_s:
            guess_s = self.not_before_s - now_s
            if self._start_last_s != NEVER:
                guess_s += self._start_last_s
        elif self._starting_since_s != NEVER:
            guess_s = self._start_left_s(now_s)
        else:
            per_s = self.per_s(now_s)
            # With no rate to go by: as long again as the line has stood.
            guess_s = (length + 1) / per_s if per_s > 0.0 else self._span_s
        return ceil(min(max(guess_s, float(RETRY_AFTER_MIN_S)), float(RETRY_AFTER_MAX_S)))

    def best_case_s(self, ahead: int, slots_max: int, now_s: float) -> float:
        """The least that a request must wait which has `ahead` before it. `slots_max` 0: it is not known."""
        start_s = 0.0
        if self._starting_since_s != NEVER and self._start_best_s != NEVER:
            start_s = max(self._start_best_s - (now_s - self._starting_since_s), 0.0)
        quickest_s = min(self._quickest_s, self._quickest_before_s)
        if slots_max <= 0 or quickest_s == NEVER or now_s - self._window_since_s > 2.0 * _QUICKEST_WINDOW_S:
            return start_s
        # All slots may come free this moment, and then again each time the quickest request is over.
        return start_s + (ahead // slots_max) * quickest_s

    # --- within ---

    def _start_left_s(self, now_s: float) -> float:
        elapsed_s = now_s - self._starting_since_s
        if self._start_last_s != NEVER and self._start_last_s > elapsed_s:
            return self._start_last_s - elapsed_s
        return elapsed_s  # nothing to go by, or overdue: as long again as it has taken

    def _age(self, now_s: float) -> None:
        if not self._standing:
            return
        passed_s = now_s - self._at_s
        if passed_s < _STEP_S:
            return
        kept: float = 2.0 ** (-passed_s / _HALF_LIFE_S)
        self._freed *= kept
        self._span_s = self._span_s * kept + _LIFE_S * (1.0 - kept)
        self._at_s = now_s
