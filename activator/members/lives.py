"""Incarnation numbers: a revision that is removed and added again under the same name is a different revision.

Rules
  1. The first revision of a name has the number 0; one that is set after a drop has the next number.
  2. Replicas of a group exchange the numbers of the revisions that they have, and of those that they have dropped, so
     that a replica that starts later, or between a drop and the return, continues from there.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from activator.members.messages import RevisionLives
from activator.messages import DropRevision, Effect, RebuildRevision, SetRevision

DROPPED_MAX: Final = 10_000  # dropped names that are remembered; beyond that, the oldest is forgotten


class Lives:
    """The numbers of one program. `changes` counts the changes of what `announced` returns."""

    def __init__(self) -> None:
        self.changes: int = 0
        self._present: dict[str, int] = {}
        self._next: dict[str, int] = {}  # next numbers of names that were dropped, or that others have

    def with_life(self, effect: Effect) -> Effect:
        """Record a revision that the effect sets or drops; return the effect, with the number of a revision it sets."""
        if type(effect) is DropRevision:
            life = self._present.pop(effect.key, None)
            if life is not None:
                self._remember(effect.key, life + 1)
        elif type(effect) is SetRevision or type(effect) is RebuildRevision:
            life = self._present.get(effect.key)
            if life is None:
                life = self._present[effect.key] = self._next.pop(effect.key, 0)
                self.changes += life > 0
            return replace(effect, life=life)
        return effect

    def learn(self, others: RevisionLives) -> list[str]:
        """Take over the numbers of another replica.

        Return the names that have a lower number here: there, the name stands for another revision.
        """
        for key, life in [*others.present.items(), *others.dropped.items()]:
            if key not in self._present and life > self._next.get(key, 0):
                self._remember(key, life)
        return [key for key, life in others.present.items() if self._present.get(key, life) < life]

    def announced(self) -> RevisionLives:
        """Return the numbers that other replicas need: those above 0."""
        return RevisionLives({key: life for key, life in self._present.items() if life}, dict(self._next))

    def _remember(self, key: str, life: int) -> None:
        self.changes += 1
        self._next.pop(key, None)
        self._next[key] = life
        if len(self._next) > DROPPED_MAX:
            del self._next[next(iter(self._next))]
