"""Two allowances: what requests may hold, and the retries that a revision may cost its pods.

Of the first kind there is one object per worker, one per revision and one for all temporary files, of the second one
per revision; each is read and written by one event loop only, and its counters are the metrics.
"""

from __future__ import annotations

from typing import Final

RETRY_BUDGET_MAX: Final = 100.0  # requests of one revision that may be sent twice, when none was for a while …
RETRY_BUDGET_SHARE: Final = 0.2  # … and of all further ones

NO_LIMIT: Final = 1 << 62


class HeldBudget:
    """Requests that wait for a slot, and bytes of bodies that are held: for them, to be sent again, or in buffers."""

    def __init__(self, bytes_max: int = NO_LIMIT, requests_max: int = NO_LIMIT) -> None:
        self.bytes_max = bytes_max
        self.requests_max = requests_max
        self.held_bytes: int = 0
        self.held_requests: int = 0

    def take(self, count: int) -> bool:
        """Account for `count` more bytes; False, and nothing taken, when they would exceed the bound."""
        if self.held_bytes + count > self.bytes_max:
            return False
        self.held_bytes += count
        return True

    def take_spare(self, count: int) -> bool:
        """The same for bytes that could be left with their sender: they may not use the second half of the budget."""
        if self.held_bytes + count > self.bytes_max // 2:
            return False
        self.held_bytes += count
        return True

    def has_spare(self) -> bool:
        """Whether less than half of the budget is used."""
        return self.held_bytes <= self.bytes_max // 2

    def give_back(self, count: int) -> None:
        self.held_bytes -= count
        assert self.held_bytes >= 0

    def is_full(self) -> bool:
        """Whether one more request may not wait."""
        return self.held_requests >= self.requests_max

    def request_waits(self) -> None:
        self.held_requests += 1

    def request_left(self) -> None:
        self.held_requests -= 1
        assert self.held_requests >= 0


class RetryBudget:
    """How many requests may be sent twice: a share of all requests, so that a pod that ends every connection under
    every request does not see its load doubled.

    Computed when a retry is asked for; a request itself costs nothing.
    """

    def __init__(self) -> None:
        self.left: float = RETRY_BUDGET_MAX
        self._requests_seen: int = 0

    def spend(self, requests_total: int) -> bool:
        """One retry, after so many requests in all; False when the budget is used up."""
        earned = (requests_total - self._requests_seen) * RETRY_BUDGET_SHARE
        self._requests_seen = requests_total
        self.left = min(self.left + earned, RETRY_BUDGET_MAX)
        if self.left < 1.0:
            return False
        self.left -= 1.0
        return True
