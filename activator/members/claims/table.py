"""Which indexes are taken, as of one look at the API, and which one to try.

Rules
  1. Of several indexes of one holder only the lowest is firm: it is about to leave the others.
  2. An index that two holders have (`is_shared`) is nobody's.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import final

from activator.members.claims.errors import ClaimFailedError
from activator.members.claims.names import SEATS_MAX
from lb.rng import Rng


class Choice(Enum):
    """Which of the free indexes a member tries after a conflict."""

    LOWEST = "lowest"
    RANDOM = "random"  # one of the lowest, so that members that start at once rarely try the same


@final
class Table:
    """`taken` are the indexes that somebody has, `firm` those that their holder will keep."""

    def __init__(self, held: Iterable[tuple[int, str]]) -> None:
        self._uids: dict[int, set[str]] = {}
        self._lowest: dict[str, int] = {}
        for index, uid in held:
            self.add(index, uid)

    def add(self, index: int, uid: str) -> None:
        """The holder of this UID has the index, too."""
        self._uids.setdefault(index, set()).add(uid)
        self._lowest[uid] = min(index, self._lowest.get(uid, index))

    @property
    def taken(self) -> frozenset[int]:
        return frozenset(self._uids)

    @property
    def firm(self) -> frozenset[int]:
        return frozenset(self._lowest.values())

    def of(self, uid: str) -> int | None:
        """The index of a holder, its lowest; None if it has none."""
        return self._lowest.get(uid)

    def is_shared(self, index: int) -> bool:
        """Whether more than one holder has it."""
        return len(self._uids.get(index, ())) > 1

    def is_dense_below(self, index: int) -> bool:
        """Whether everything below is taken by somebody who will keep it."""
        firm = self.firm
        return all(lower in firm for lower in range(index))

    def free(self, count: int) -> list[int]:
        """The lowest free indexes, at most `count`, none beyond SEATS_MAX."""
        found: list[int] = []
        for index in range(SEATS_MAX):
            if len(found) == count:
                break
            if index not in self._uids:
                found.append(index)
        return found

    def candidate(self, spread: int, rng: Rng) -> int:
        """The index to try: one of the `spread` lowest free ones. Raises ClaimFailedError: none is free."""
        free = self.free(spread)
        if not free:
            raise ClaimFailedError(f"all {SEATS_MAX} indexes of the group are taken")
        return free[rng.below(len(free))]

    def hole_for(self, index: int) -> int | None:
        """The free index below `index` that its holder is to move to; None if others are to fill the holes.

        As many holders as there are holes move, those with the highest indexes, each to a hole of its own.
        """
        highest = sorted(self._uids, reverse=True)
        above = highest.index(index)
        holes = [hole for hole in self.free(above + 1) if hole < index]
        return holes[above] if above < len(holes) else None
