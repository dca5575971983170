"""Which replica of the activator writes for which object: one at a time, whatever the views of the group do.

Rules
  1. A replica writes for an object that it owns, by rendezvous hash, in each view that counts: the one in effect, and
     the one that it has accepted. A view takes effect when all its replicas have accepted it, so a former owner has
     stopped by then.
  2. It waits where a former owner may still write: one that is silent, for as long as it takes to stop by itself.
  3. Nobody writes without a view, and nobody whom no majority reaches (`is_allowed`).
  4. Everything here is frozen; what it follows from, `members/writer_gate.py` has.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from activator.runtime.rendezvous import owner_of

Places = tuple[int, ...]  # seats of replicas that write


class Doubt(NamedTuple):
    """Those of a former view's writers that are silent, and may not have stopped yet."""

    places: Places
    silent: frozenset[int]


class Writers(msgspec.Struct, frozen=True):
    """As one replica sees them. `views`: that in effect first. `present`: replicas that may have requests."""

    own: int = 0
    views: tuple[Places, ...] = ()
    doubts: tuple[Doubt, ...] = ()
    is_allowed: bool = True
    present: frozenset[int] = frozenset()

    def writes(self, uid: str) -> bool:
        """Whether this replica writes for the object with this UID."""
        if not self.is_allowed or not self.views:
            return False
        if not all(places and owner_of(uid, places) == self.own for places in self.views):
            return False
        return not any(owner_of(uid, doubt.places) in doubt.silent for doubt in self.doubts)

    def owner(self, uid: str) -> int | None:
        """Who decides on it, and is to know of its load; None: nobody."""
        return owner_of(uid, self.views[0]) if self.views and self.views[0] else None


ALONE: Final = Writers(0, ((0,),))  # there is no other replica
