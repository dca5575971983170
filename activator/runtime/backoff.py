"""Exponential backoff: the pause before the next attempt grows with each failure, up to a maximum."""

from __future__ import annotations

from math import log2
from typing import Final

from lb.rng import Rng

RETRY_AFTER_MAX_S: Final = 120.0  # the longest Retry-After that is honoured

_GRAIN: Final = 1 << 20
_DOUBLINGS_MAX: Final = 1000  # more would overflow; any maximum is reached long before


class Backoff:
    """The pauses between the attempts of one operation.

    Each pause is `factor` times as long as the one before, up to `maximum_s`, until `reset`. `rng` draws a jitter
    between the two factors of `jitter`; without one the pauses are exact.
    """

    __slots__ = ("_factor", "_initial_s", "_jitter", "_maximum_s", "_rng", "ceiling_s", "failures", "is_asked_for")

    def __init__(
        self,
        initial_s: float,
        maximum_s: float,
        rng: Rng | None = None,
        *,
        factor: float = 2.0,
        jitter: tuple[float, float] = (0.5, 1.0),
    ) -> None:
        self._initial_s = initial_s
        self._maximum_s = maximum_s
        self._rng = rng
        self._factor = factor
        self._jitter = jitter
        self.ceiling_s = initial_s  # the next pause, without jitter
        self.failures = 0  # pauses since the last reset
        self.is_asked_for = False  # the server requested the last pause (Retry-After)

    def reset(self) -> None:
        """Begin again with the first pause, because an attempt was successful."""
        self.ceiling_s = self._initial_s
        self.failures = 0

    def lower(self, ceiling_s: float) -> None:
        """Continue with a pause of at most `ceiling_s`."""
        self.ceiling_s = min(self.ceiling_s, ceiling_s)

    def next_s(self, retry_after_s: float | None = None) -> float:
        """Return the pause before the next attempt, in seconds, and lengthen the one after it.

        A server's Retry-After is waited for in full, and up to a quarter longer, so that clients that received the same
        value do not return at the same time.
        """
        pause_s = self.ceiling_s
        if self._rng is not None:
            least, most = self._jitter
            pause_s *= least + (most - least) * fraction(self._rng)
        self.ceiling_s = min(self._factor * self.ceiling_s, self._maximum_s)
        self.failures += 1
        self.is_asked_for = retry_after_s is not None and retry_after_s > 0
        if retry_after_s is not None and retry_after_s > 0:
            spread = 0.0 if self._rng is None else 0.25 * fraction(self._rng)
            pause_s = max(pause_s, min(retry_after_s, RETRY_AFTER_MAX_S) * (1 + spread))
        return pause_s


def grown_s(initial_s: float, times: int, maximum_s: float, factor: float = 2.0) -> float:
    """Return `initial_s` multiplied `times` times by `factor`, at most `maximum_s`, for callers with own counters."""
    if times * log2(factor) > _DOUBLINGS_MAX:
        return maximum_s
    return float(min(initial_s * factor**times, maximum_s))


def fraction(rng: Rng) -> float:
    """Return a random number from 0 to less than 1."""
    return float(rng.below(_GRAIN)) / _GRAIN
