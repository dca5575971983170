"""What went wrong in the state worker: how often, how long ago, what was set aside, and how long to wait now.

Rules
  1. One unit: monotonic seconds as float. The seed of this project stored this very time in one unit and read it in
     another, and restarted its worker for ever.
  2. Each revision has a backoff of its own, and the worker itself has one too (`WORKER`). A backoff grows with each
     panic in a row and starts small again after `PANIC_RESET_AFTER_S` without one.
  3. Everything is bounded: letters by number, records by revisions that have panicked and are still there.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import msgspec

from activator.config import (
    DEAD_LETTERS_MAX,
    PANIC_BACKOFF_FACTOR,
    PANIC_BACKOFF_INITIAL_S,
    PANIC_BACKOFF_MAX_S,
    PANIC_BUDGET,
    PANIC_RESET_AFTER_S,
)
from lb.rng import Rng

WORKER: Final = ""  # the key under which the worker's own failures stand
_LETTER_CHARS_MAX: Final = 2_000  # a full list of thousands of pods would fill the page


class DeadLetter(msgspec.Struct, frozen=True):
    """A change that raised."""

    change: str
    error: str
    at_s: float


class Panics(msgspec.Struct, frozen=True):
    """Of one revision, or of the worker itself."""

    last_s: float
    in_a_row: int
    backoff_s: float  # without jitter, so that it grows by its factor


class Supervision:
    """Counts panics and says how long to wait. `rng` draws the jitter; without one there is none."""

    def __init__(self, rng: Rng | None = None) -> None:
        self._rng = rng
        self._panics: dict[str, Panics] = {}
        self.panics_total: int = 0
        self.last_panic_s: float | None = None
        self.dead_letters: deque[DeadLetter] = deque(maxlen=DEAD_LETTERS_MAX)

    def panicked(self, key: str, what: object, error: object, now_s: float) -> float:
        """Something of this revision raised; how many seconds to leave it alone."""
        self.panics_total += 1
        self.last_panic_s = now_s
        self.dead_letters.append(DeadLetter(repr(what)[:_LETTER_CHARS_MAX], repr(error)[:_LETTER_CHARS_MAX], now_s))
        last = self._recent(key, now_s)
        if last is None:
            panics = Panics(now_s, 1, PANIC_BACKOFF_INITIAL_S)
        else:
            backoff_s = min(last.backoff_s * PANIC_BACKOFF_FACTOR, PANIC_BACKOFF_MAX_S)
            panics = Panics(now_s, last.in_a_row + 1, backoff_s)
        self._panics[key] = panics
        return panics.backoff_s * self._jitter()

    def forget(self, key: str) -> None:
        """The revision has gone."""
        self._panics.pop(key, None)

    def in_a_row(self, key: str, now_s: float) -> int:
        """Panics of this key, none of them longer than PANIC_RESET_AFTER_S after the one before."""
        recent = self._recent(key, now_s)
        return 0 if recent is None else recent.in_a_row

    def worst_in_a_row(self, now_s: float) -> int:
        return max((self.in_a_row(key, now_s) for key in self._panics), default=0)

    def next_backoff_s(self, now_s: float) -> float:
        """What the longest backoff would be if its owner panicked now, without jitter; 0.0: nobody has lately."""
        recent = [one for key in self._panics if (one := self._recent(key, now_s)) is not None]
        if not recent:
            return 0.0
        return min(max(one.backoff_s for one in recent) * PANIC_BACKOFF_FACTOR, PANIC_BACKOFF_MAX_S)

    def since_last_s(self, now_s: float) -> float | None:
        """How long ago the last panic was; None: there was none."""
        return None if self.last_panic_s is None else now_s - self.last_panic_s

    def over_budget(self, now_s: float) -> list[str]:
        """Who has panicked more than PANIC_BUDGET times in a row, as reasons not to be ready."""
        reasons = []
        for key in self._panics:
            count = self.in_a_row(key, now_s)
            if count > PANIC_BUDGET:
                whose = "the state worker" if key == WORKER else f"the state of {key}"
                reasons.append(f"{whose} has failed {count} times in a row")
        return reasons

    def _recent(self, key: str, now_s: float) -> Panics | None:
        last = self._panics.get(key)
        return last if last is not None and now_s - last.last_s < PANIC_RESET_AFTER_S else None

    def _jitter(self) -> float:
        return 1.0 if self._rng is None else 0.75 + float(self._rng.below(512)) / 1024.0
