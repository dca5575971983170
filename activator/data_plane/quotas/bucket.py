"""A rate limit: an amount per period, of which the used part becomes free again evenly (GCRA).

A full bucket admits `limit` at once, and then `limit` in each `period_s`. What was used beyond the limit, because its
true amount was known only afterwards, has to become free again first.
"""

from __future__ import annotations

from typing import Final, final

ROUNDING: Final = 1e-6  # of an amount; the error of the arithmetic is smaller


@final
class Bucket:
    """The use of one limit. `limit`: at least 1; `period_s`: above 0."""

    def __init__(self, limit: int, period_s: float) -> None:
        self.limit = limit
        self.period_s = period_s
        self.taken: float = 0.0  # everything that was ever taken; never decreases
        self._held: float = 0.0  # taken and not told: none of it becomes free
        self._used: float = 0.0
        self._at_s: float = 0.0  # when that was

    def used(self, now_s: float) -> float:
        """Return the amount that is not free again yet; it may exceed the limit."""
        freed = (now_s - self._at_s) * self.limit / self.period_s
        return max(self._used - freed, 0.0) + self._held

    def left(self, now_s: float) -> int:
        """Return the amount that can be taken now, rounded down."""
        return max(int(self.limit - self.used(now_s) + ROUNDING), 0)

    def wait_s(self, amount: float, now_s: float) -> float:
        """Return the time until `amount`, at most the limit, can be taken; 0.0: now."""
        excess = self.used(now_s) + amount - self.limit
        return 0.0 if excess <= ROUNDING else excess * self.period_s / self.limit

    def full_s(self, now_s: float) -> float:
        """Return the time until nothing is used."""
        return self.used(now_s) * self.period_s / self.limit

    def take(self, amount: float) -> None:
        """Take an amount, which begins to become free when it is told."""
        self._held += amount
        self.taken += amount

    def told(self, amount: float, now_s: float) -> float:
        """Let an amount that was taken become free; return the time at which it is."""
        self._held -= amount
        self._use(amount, now_s)
        return now_s + self.full_s(now_s)

    def add(self, amount: float, now_s: float) -> None:
        """Count an amount that was used, even beyond the limit."""
        self.taken += amount
        self._use(amount, now_s)

    def give_back(self, amount: float, free_s: float, now_s: float) -> None:
        """Give back a part of what was taken, as far as it is not free again. `free_s`: what `told` has returned."""
        left = max((free_s - now_s) * self.limit / self.period_s, 0.0)
        self._use(-min(amount, left), now_s)

    def change(self, limit: int, period_s: float, now_s: float) -> None:
        """Set another limit; what is used stays used."""
        self._use(0.0, now_s)  # until now it became free at the former rate
        self.limit, self.period_s = limit, period_s

    def _use(self, amount: float, now_s: float) -> None:
        self._used = max(self.used(now_s) - self._held + amount, 0.0)
        self._at_s = now_s
