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
        self._used: float = 0.0
        self._at_s: float = 0.0  # when that was

    def used(self, now_s: float) -> float:
        """Return the amount that is not free again yet; it may exceed the limit."""
        freed = (now_s - self._at_s) * self.limit / self.period_s
        return max(self._used - freed, 0.0)

    def set_used(self, amount: float, now_s: float) -> None:
        """Set the used amount."""
        self._used, self._at_s = amount, now_s

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

    def take(self, amount: float, now_s: float) -> None:
        """Take an amount, even beyond the limit."""
        self.set_used(self.used(now_s) + amount, now_s)
        self.taken += amount

    def give_back(self, amount: float, now_s: float) -> None:
        """Give back a part of what was taken."""
        self.set_used(max(self.used(now_s) - amount, 0.0), now_s)
