"""Body pieces of one request that no pod has yet, or that may have to be sent once more.

They count against the worker's budget for as long as they are here, and against their revision's once it is known.
"""

from __future__ import annotations

from typing import Final

from activator.data_plane.throttle.budget import HeldBudget

_REVISION: Final = "for this revision"


class HeldBody:
    """Pieces in the order they came; `size` in bytes."""

    def __init__(self, budget: HeldBudget) -> None:
        self._budget = budget
        self._of_revision: HeldBudget | None = None
        self.refused_for: str = ""  # whose budget was used up, where it was not the worker's
        self.pieces: list[bytes] = []
        self.size: int = 0

    def append(self, data: bytes) -> bool:
        """Keep a piece; False, and nothing kept, where the budget does not allow it."""
        if not self._budget.take(len(data)):
            return False
        of_revision = self._of_revision
        if of_revision is not None and not of_revision.take(len(data)):
            self._budget.give_back(len(data))
            self.refused_for = _REVISION
            return False
        self.pieces.append(data)
        self.size += len(data)
        return True

    def assign(self, of_revision: HeldBudget) -> bool:
        """The revision is known; False where its budget does not allow what is here. To be called once."""
        if not of_revision.take(self.size):
            self.refused_for = _REVISION
            return False
        self._of_revision = of_revision
        return True

    def drop(self) -> None:
        """Keep nothing any more; to be called once."""
        self._budget.give_back(self.size)
        if self._of_revision is not None:
            self._of_revision.give_back(self.size)
        self.size = 0
        self.pieces = []
