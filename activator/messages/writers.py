"""The replica of the activator that writes to an object: at most one at a time, also while the view changes.

Rules
  1. A replica writes to an object that it owns, by rendezvous hash, in each view that counts: the one in effect, and
     the one that it has accepted. A view takes effect when all its replicas have accepted it, so a former owner has
     stopped by then.
  2. It waits while a former owner may still write: a silent one, for as long as that one takes to stop by itself.
  3. A replica without a view, or without a connection to a majority (`is_allowed`), does not write.
  4. Everything here is frozen; `members/writer_gate.py` computes it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from activator.runtime.rendezvous import owner_of

Places = tuple[int, ...]  # seats of the writing replicas


class UnconfirmedWriters(NamedTuple):
    """Unreachable writers of an earlier view that may still be writing."""

    places: Places
    silent: frozenset[int]


class Writers(msgspec.Struct, frozen=True):
    """The writers as one replica sees them.

    `views`: the one in effect first. `present`: replicas that may have requests.
    """

    own: int = 0
    views: tuple[Places, ...] = ()
    doubts: tuple[UnconfirmedWriters, ...] = ()
    is_allowed: bool = True
    present: frozenset[int] = frozenset()

    def writes(self, uid: str) -> bool:
        """Return True if this replica writes to the object with this UID."""
        if not self.is_allowed or not self.views:
            return False
        if not all(places and owner_of(uid, places) == self.own for places in self.views):
            return False
        return not any(owner_of(uid, doubt.places) in doubt.silent for doubt in self.doubts)

    def owner(self, uid: str) -> int | None:
        """Return the replica that decides about the object and gets its load; None if there is none."""
        return owner_of(uid, self.views[0]) if self.views and self.views[0] else None


ALONE: Final = Writers(0, ((0,),))  # the only replica
