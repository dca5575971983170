"""Two kinds of budgets: for requests and bytes that are held, and for retries.

There is one HeldBudget per worker, one per revision and one for all temporary files, and one RetryBudget per revision.
Only one event loop reads and writes each of them. Their counters are exported as metrics.
"""

from __future__ import annotations

from typing import Final

RETRY_BUDGET_MAX: Final = 100.0  # retries that are available after many requests without one
RETRY_BUDGET_SHARE: Final = 0.2  # retries that each further request adds

NO_LIMIT: Final = 1 << 62


class HeldBudget:
    """The number of waiting requests and of held bytes, with their bounds.

    Bytes are held for waiting requests, for retries, and in buffers.
    """

    def __init__(self, bytes_max: int = NO_LIMIT, requests_max: int = NO_LIMIT) -> None:
        self.bytes_max = bytes_max
        self.requests_max = requests_max
        self.held_bytes: int = 0
        self.held_requests: int = 0
        self.refuses: bool = False  # no further request may wait, because of an overload

    def take(self, count: int) -> bool:
        """Account for `count` more bytes; return False and take nothing if they exceed the bound."""
        if self.held_bytes + count > self.bytes_max:
            return False
        self.held_bytes += count
        return True

    def take_spare(self, count: int) -> bool:
        """Account for `count` bytes that could stay with their sender; return False if half of the budget is used."""
        if self.held_bytes + count > self.bytes_max // 2:
            return False
        self.held_bytes += count
        return True

    def has_spare(self) -> bool:
        """Return True if at most half of the budget is used."""
        return self.held_bytes <= self.bytes_max // 2

    def give_back(self, count: int) -> None:
        """Release `count` bytes."""
        self.held_bytes -= count
        assert self.held_bytes >= 0

    def is_full(self) -> bool:
        """Return True if no further request may wait."""
        return self.held_requests >= self.requests_max

    def request_waits(self) -> None:
        self.held_requests += 1

    def request_left(self) -> None:
        self.held_requests -= 1
        assert self.held_requests >= 0


class RetryBudget:
    """The retries that are allowed: a share of all requests.

    The bound keeps a pod that closes the connection of every request from receiving twice its load. The budget is
    computed at each retry, so requests that are not retried cost nothing.
    """

    def __init__(self) -> None:
        self.left: float = RETRY_BUDGET_MAX  # retries available at the last one
        self._requests_seen: int = 0  # `requests_total` at the last retry

    def spend(self, requests_total: int) -> bool:
        """Spend one retry after `requests_total` requests; return False if the budget is exhausted."""
        earned = (requests_total - self._requests_seen) * RETRY_BUDGET_SHARE
        self._requests_seen = requests_total
        self.left = min(self.left + earned, RETRY_BUDGET_MAX)
        if self.left < 1.0:
            return False
        self.left -= 1.0
        return True
