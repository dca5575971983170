"""Failures of the state worker: how many, how long ago, the changes set aside, and the backoff.

Rules
  1. All times are monotonic seconds as float. Mixed units here once made a worker restart without end.
  2. Each revision has a backoff of its own, and so has the worker itself (`WORKER`). A backoff grows with each panic in
     a row and starts small again after `PANIC_RESET_AFTER_S` without one.
  3. Everything is bounded: dead letters by number, records by the present revisions that have panicked.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

from activator.runtime.backoff import Backoff
from activator.runtime.clock import Now
from lb.rng import Rng

DEAD_LETTERS_MAX: Final = 100  # changes set aside after an exception, kept for /debug
PANIC_BACKOFF_INITIAL_S: Final = 0.1
PANIC_BACKOFF_MAX_S: Final = 60.0
PANIC_RESET_AFTER_S: Final = 300.0  # without a panic for this time, the backoff starts small again
PANIC_BUDGET: Final = 5  # panics in a row of one owner; with more, of enough owners, the activator is not ready

log = logging.getLogger("activator.state")

TASK: Final = "task:"  # prefix of the key of a task of the control plane
WORKER: Final = ""  # key of the worker's own failures
_LETTER_CHARS_MAX: Final = 2_000  # a full list of thousands of pods would fill the page


class DeadLetter(msgspec.Struct, frozen=True):
    """A change that raised."""

    change: str
    error: str
    at_s: float


class Panics:
    """The panics in a row of one revision, or of the worker itself."""

    __slots__ = ("backoff", "beyond_s", "last_s")

    def __init__(self, rng: Rng | None) -> None:
        self.backoff = Backoff(PANIC_BACKOFF_INITIAL_S, PANIC_BACKOFF_MAX_S, rng, jitter=(0.75, 1.25))
        self.last_s = 0.0
        self.beyond_s = 0.0  # since when there have been more than PANIC_BUDGET; 0.0: there are not more


class Supervision:
    """The counts of panics and the backoffs that follow. `rng` draws the jitter; without one there is none."""

    def __init__(self, rng: Rng | None = None) -> None:
        self._rng = rng
        self._panics: dict[str, Panics] = {}
        self.panics_total: int = 0
        self.last_panic_s: float | None = None
        self.dead_letters: deque[DeadLetter] = deque(maxlen=DEAD_LETTERS_MAX)

    def panicked(self, key: str, work: object, error: object, now_s: float) -> float:
        """Note a panic of `work`, such as a change; return how many seconds the owner `key` has to pause."""
        self.panics_total += 1
        self.last_panic_s = now_s
        self.dead_letters.append(DeadLetter(repr(work)[:_LETTER_CHARS_MAX], repr(error)[:_LETTER_CHARS_MAX], now_s))
        panics = self._recent(key, now_s)
        if panics is None:
            panics = self._panics[key] = Panics(self._rng)
        panics.last_s = now_s
        pause_s = panics.backoff.next_s()
        if panics.backoff.failures > PANIC_BUDGET and panics.beyond_s == 0.0:
            panics.beyond_s = now_s
        return pause_s

    def error_handler_of_task(self, name: str, now: Now) -> Callable[[Exception], float]:
        """Return the error handler of a task of the control plane, for `keep_running`."""
        key = name if name == WORKER else TASK + name

        def failed(error: Exception) -> float:
            backoff_s = self.panicked(key, _owner_name(key), error, now())
            log.error("%s failed; it restarts in %.1f s", _owner_name(key), backoff_s, exc_info=error)
            return backoff_s

        return failed

    def forget(self, key: str) -> None:
        """Forget a revision that was removed."""
        self._panics.pop(key, None)

    def failing_revisions(self) -> set[str]:
        """Return the present revisions that have panicked."""
        return {key for key in self._panics if not _is_own(key)}

    def in_a_row(self, key: str, now_s: float) -> int:
        """Return the panics of this key in a row, each within PANIC_RESET_AFTER_S of the one before."""
        recent = self._recent(key, now_s)
        return 0 if recent is None else recent.backoff.failures

    def worst_in_a_row(self, now_s: float) -> int:
        return max((self.in_a_row(key, now_s) for key in self._panics), default=0)

    def next_backoff_s(self, now_s: float) -> float:
        """Return the longest backoff of any owner at its next panic, without jitter; 0.0 without a recent panic."""
        recent = [panics for key in self._panics if (panics := self._recent(key, now_s)) is not None]
        return max((panics.backoff.ceiling_s for panics in recent), default=0.0)

    def since_last_s(self, now_s: float) -> float | None:
        """Return the age of the last panic; None if there was none."""
        return None if self.last_panic_s is None else now_s - self.last_panic_s

    def over_budget(self, revisions: int, now_s: float) -> list[str]:
        """Return the owners that have panicked more than PANIC_BUDGET times in a row, as reasons not to be ready.

        Fewer than half of the revisions are not a reason: every replica gets the same bad change, and all would become
        unready at once.
        """
        failing = {key: count for key in self._panics if (count := self.in_a_row(key, now_s)) > PANIC_BUDGET}
        own = [key for key in failing if _is_own(key)]
        reported = failing if _are_half(len(failing) - len(own), revisions) else own
        return [f"{_owner_name(key)} has failed {failing[key]} times in a row" for key in reported]

    def is_hopeless(self, revisions: int, grace_s: float, now_s: float) -> bool:
        """Return True if an owner beyond its budget has failed for `grace_s`, and the activator should be restarted.

        A restart affects all revisions: so it takes the worker itself or a task of the control plane, or half of the
        revisions.
        """
        failing = 0
        for key in self._panics:
            recent = self._recent(key, now_s)
            if recent is not None and recent.beyond_s > 0.0 and recent.last_s - recent.beyond_s >= grace_s:
                if _is_own(key):
                    return True
                failing += 1
        return _are_half(failing, revisions)

    def _recent(self, key: str, now_s: float) -> Panics | None:
        last = self._panics.get(key)
        return last if last is not None and now_s - last.last_s < PANIC_RESET_AFTER_S else None


def _is_own(key: str) -> bool:
    """Return True for the key of the worker or of a task: every revision depends on them."""
    return key == WORKER or key.startswith(TASK)


def _are_half(failing: int, revisions: int) -> bool:
    return failing > 0 and 2 * failing >= revisions


def _owner_name(key: str) -> str:
    if key == WORKER:
        return "the state worker"
    return f"the task {key.removeprefix(TASK)}" if key.startswith(TASK) else f"the state of {key}"
