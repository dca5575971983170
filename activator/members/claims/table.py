"""The taken indexes as of one read of the API, and the index to try.

Rules
  1. If a holder has several indexes, only the lowest is firm: it is about to give up the others.
  2. An index that two holders have (`is_shared`) belongs to neither.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import final

from activator.members.claims.errors import ClaimFailedError
from activator.members.claims.names import SEATS_MAX
from lb.rng import Rng


class Choice(Enum):
    """The free index that a member tries after a conflict."""

    LOWEST = "lowest"
    RANDOM = "random"  # one of the lowest, so that members that start at once rarely try the same


@final
class Table:
    """The indexes and their holders. `taken` are all that have one, `firm` those that their holders will keep."""

    def __init__(self, held: Iterable[tuple[int, str]]) -> None:
        self._uids: dict[int, set[str]] = {}  # the holders of each index
        self._lowest: dict[str, int] = {}  # the lowest index of each holder
        for index, uid in held:
            self.add(index, uid)

    def add(self, index: int, uid: str) -> None:
        """Add an index of the holder with this UID."""
        self._uids.setdefault(index, set()).add(uid)
        self._lowest[uid] = min(index, self._lowest.get(uid, index))

    @property
    def taken(self) -> frozenset[int]:
        return frozenset(self._uids)

    @property
    def firm(self) -> frozenset[int]:
        return frozenset(self._lowest.values())

    def of(self, uid: str) -> int | None:
        """Return the lowest index of a holder; None if it has none."""
        return self._lowest.get(uid)

    def is_shared(self, index: int) -> bool:
        """Return True if more than one holder has it."""
        return len(self._uids.get(index, ())) > 1

    def is_dense_below(self, index: int) -> bool:
        """Return True if each lower index has a holder that will keep it."""
        firm = self.firm
        return all(lower in firm for lower in range(index))

    def free(self, count: int) -> list[int]:
        """Return the lowest free indexes below SEATS_MAX, at most `count`."""
        found: list[int] = []
        for index in range(SEATS_MAX):
            if len(found) == count:
                break
            if index not in self._uids:
                found.append(index)
        return found

    def candidate(self, spread: int, rng: Rng) -> int:
        """Return the index to try, one of the `spread` lowest free ones. Raises ClaimFailedError if none is free."""
        free = self.free(spread)
        if not free:
            raise ClaimFailedError(f"all {SEATS_MAX} indexes of the group are taken")
        return free[rng.below(len(free))]

    def hole_for(self, index: int) -> int | None:
        """Return the free index below `index` that its holder must move to; None if others must fill the holes.

        As many holders as there are holes move, those with the highest indexes, each to a hole of its own.
        """
        highest = sorted(self._uids, reverse=True)
        above = highest.index(index)
        holes = [hole for hole in self.free(above + 1) if hole < index]
        return holes[above] if above < len(holes) else None
