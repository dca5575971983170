"""What all waiting requests of the process may hold together.

One object per worker, read and written by its event loop only; the counters are the metrics.
"""

from __future__ import annotations


class HeldBudget:
    """Bytes of request bodies that are held while their requests wait for a pod."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.held_bytes: int = 0

    def take(self, count: int) -> bool:
        """Account for `count` more bytes; False, and nothing taken, when they would exceed the bound."""
        if self.held_bytes + count > self.bytes_max:
            return False
        self.held_bytes += count
        return True

    def give_back(self, count: int) -> None:
        self.held_bytes -= count
        assert self.held_bytes >= 0
