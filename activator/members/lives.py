"""Which revision of a name is meant: one that is dropped and comes back under its name is another one.

Rules
  1. Of a name the first revision has the number 0; one that comes after a drop has the next number.
  2. Replicas of a group tell each other the numbers of what they have, and of what they have dropped, so that one that
     starts later, or between a drop and the return, counts on from there.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from activator.members.messages import RevisionLives
from activator.messages import DropRevision, Effect, RebuildRevision, SetRevision

DROPPED_MAX: Final = 10_000  # names that are remembered after a drop; of more the oldest are forgotten


class Lives:
    """Of one program. `changes`: how often that has changed what is told."""

    def __init__(self) -> None:
        self.changes: int = 0
        self._present: dict[str, int] = {}
        self._next: dict[str, int] = {}  # of names that were dropped, or that others have

    def with_life(self, effect: Effect) -> Effect:
        """The effect with the number of its revision, where it makes one."""
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
        """What another replica has. The names that are here with a lower number: the two are not the same revision."""
        for key, life in [*others.present.items(), *others.dropped.items()]:
            if key not in self._present and life > self._next.get(key, 0):
                self._remember(key, life)
        return [key for key, life in others.present.items() if self._present.get(key, life) < life]

    def told(self) -> RevisionLives:
        """What other replicas need to know: the numbers above 0."""
        return RevisionLives({key: life for key, life in self._present.items() if life}, dict(self._next))

    def _remember(self, key: str, life: int) -> None:
        self.changes += 1
        self._next.pop(key, None)
        self._next[key] = life
        if len(self._next) > DROPPED_MAX:
            del self._next[next(iter(self._next))]
