"""Body pieces of one request that no pod has yet, or that may have to be sent once more.

They count against the worker's budget for as long as they are here.
"""

from __future__ import annotations

from activator.throttle.budget import HeldBudget


class HeldBody:
    """Pieces in the order they came; `size` in bytes."""

    def __init__(self, budget: HeldBudget) -> None:
        self._budget = budget
        self.pieces: list[bytes] = []
        self.size: int = 0

    def append(self, data: bytes) -> bool:
        """Keep a piece; False, and nothing kept, where the budget does not allow it."""
        if not self._budget.take(len(data)):
            return False
        self.pieces.append(data)
        self.size += len(data)
        return True

    def drop(self) -> None:
        """Keep nothing any more; to be called once."""
        self._budget.give_back(self.size)
        self.size = 0
        self.pieces = []
