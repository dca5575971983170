"""Body pieces of one request that no pod has yet, or that may have to be sent once more.

They count against the worker's budget for as long as they are here, and against their revision's once it is known.
"""

from __future__ import annotations

from typing import Final

from activator.data_plane.throttle.budget import HeldBudget

# Each piece is an object, of which budgets count only the bytes: one of two bytes takes 56. So many in a row, each
# smaller than this, are joined to one; then all take less than twice what is counted.
SMALL_PIECE_BYTES: Final = 512
SMALL_PIECES_MAX: Final = 64

_REVISION: Final = "for this revision"


class HeldBody:
    """Pieces in the order they came; `size` in bytes."""

    def __init__(self, budget: HeldBudget) -> None:
        self._budget = budget
        self._of_revision: HeldBudget | None = None
        self.refused_for: str = ""  # whose budget was used up, where it was not the worker's
        self.pieces: list[bytes] = []
        self.size: int = 0
        self._small: int = 0  # how many of the last pieces are small

    def append(self, data: bytes) -> bool:
        """Keep a piece; False, and nothing kept, where the budget does not allow it."""
        if not self._budget.take(len(data)):
            return False
        of_revision = self._of_revision
        if of_revision is not None and not of_revision.take(len(data)):
            self._budget.give_back(len(data))
            self.refused_for = _REVISION
            return False
        pieces = self.pieces
        pieces.append(data)
        self.size += len(data)
        self._small = self._small + 1 if len(data) < SMALL_PIECE_BYTES else 0
        if self._small == SMALL_PIECES_MAX:
            self._small = 0
            pieces[-SMALL_PIECES_MAX:] = [b"".join(pieces[-SMALL_PIECES_MAX:])]
        return True

    def replace(self, start: int, end: int, data: bytes) -> bool:
        """Other bytes in the place of some, before the revision is known; False where the budget does not allow it."""
        more = len(data) - (end - start)
        if more > 0 and not self._budget.take(more):
            return False
        if more < 0:
            self._budget.give_back(-more)
        whole = b"".join(self.pieces)
        self.pieces = [b"%b%b%b" % (whole[:start], data, whole[end:])]
        self.size += more
        self._small = 0
        return True

    def assign(self, of_revision: HeldBudget) -> bool:
        """The revision is known; False where its budget does not allow what is here. To be called once."""
        if not of_revision.take(self.size):
            self.refused_for = _REVISION
            return False
        self._of_revision = of_revision
        return True

    def move(self, of_revision: HeldBudget) -> bool:
        """Another revision's from now on; False, and nothing changed, where its budget does not allow it."""
        if not of_revision.take(self.size):
            return False
        if self._of_revision is not None:
            self._of_revision.give_back(self.size)
        self._of_revision = of_revision
        return True

    def drop(self) -> None:
        """Keep nothing any more; to be called once."""
        self._budget.give_back(self.size)
        if self._of_revision is not None:
            self._of_revision.give_back(self.size)
        self.size = 0
        self.pieces = []
