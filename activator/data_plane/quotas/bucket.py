"""A token bucket: an amount per period, whose used part drains evenly (GCRA).

An unused bucket admits `limit` at once, and then `limit` in each `period_s`. Usage beyond the limit, which the end of a
request may add, has to drain first.
"""

from __future__ import annotations

from typing import Final, final

ROUNDING: Final = 1e-6  # tolerance of comparisons; larger than the rounding errors of limits up to RATE_MAX


@final
class Bucket:
    """The usage of one limit. `limit`: 0: there is none, and usage does not drain; `period_s`: above 0."""

    def __init__(self, limit: int, period_s: float) -> None:
        self.limit = limit
        self.period_s = period_s
        self.taken: float = 0.0  # the sum of all reserved and added amounts
        self._reserved: float = 0.0  # not committed yet, so that it does not drain
        self._used: float = 0.0  # committed and added, as of `_used_at_s`
        self._used_at_s: float = 0.0

    def used(self, now_s: float) -> float:
        """Return the usage that has not drained; it may exceed the limit."""
        drained = (now_s - self._used_at_s) * self.limit / self.period_s
        return max(self._used - drained, 0.0) + self._reserved

    def remaining(self, now_s: float) -> int:
        """Return the amount that can be reserved now, rounded down."""
        return max(int(self.limit - self.used(now_s) + ROUNDING), 0)

    def wait_s(self, amount: float, now_s: float) -> float:
        """Return the time until `amount`, at most the limit, can be reserved; 0.0: now, or there is no limit."""
        if self.limit == 0:
            return 0.0
        excess = self.used(now_s) + amount - self.limit
        return 0.0 if excess <= ROUNDING else excess * self.period_s / self.limit

    def full_s(self, now_s: float) -> float:
        """Return the time until all usage has drained; 0.0 without a limit."""
        return self.used(now_s) * self.period_s / self.limit if self.limit else 0.0

    def reserve(self, amount: float) -> None:
        """Reserve an amount, which does not drain before `commit`."""
        self._reserved += amount
        self.taken += amount

    def commit(self, amount: float, now_s: float) -> float:
        """Let a reserved amount drain; return the time at which it will have drained."""
        self._reserved = max(self._reserved - amount, 0.0)  # below 0.0 by rounding only
        self._add_usage(amount, now_s)
        return now_s + self.full_s(now_s)

    def add(self, amount: float, now_s: float) -> None:
        """Add usage, even beyond the limit."""
        self.taken += amount
        self._add_usage(amount, now_s)

    def refund(self, amount: float, drained_s: float, now_s: float) -> None:
        """Refund a part of a committed amount that has not drained. `drained_s`: as `commit` has returned it."""
        undrained = max((drained_s - now_s) * self.limit / self.period_s, 0.0)
        self._add_usage(-min(amount, undrained), now_s)

    def change(self, limit: int, period_s: float, now_s: float) -> None:
        """Set another limit and keep the usage."""
        self._add_usage(0.0, now_s)  # it has drained at the former rate until now
        self.limit, self.period_s = limit, period_s

    def _add_usage(self, amount: float, now_s: float) -> None:
        """Add `amount`, which may be negative, to the usage as of now."""
        self._used = max(self.used(now_s) - self._reserved + amount, 0.0)
        self._used_at_s = now_s
