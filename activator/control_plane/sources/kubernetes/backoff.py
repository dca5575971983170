"""How long to wait before the next attempt: growing, jittered, never shorter than what the server asked for."""

from __future__ import annotations

from typing import Final

from lb.rng import Rng

KUBE_BACKOFF_INITIAL_S: Final = 0.25
KUBE_BACKOFF_MAX_S: Final = 30.0
KUBE_WOKEN_S: Final = 1.0  # the first pause, at the most, where the attempt fails that the end of an outage brought
KUBE_RETRY_AFTER_MAX_S: Final = 120.0  # however long a server asks for

_GRAIN: Final = 1 << 20


class Backoff:
    """Doubles from the first failure to a maximum; `reset` after something has held."""

    def __init__(
        self, rng: Rng, initial_s: float = KUBE_BACKOFF_INITIAL_S, maximum_s: float = KUBE_BACKOFF_MAX_S
    ) -> None:
        self._rng = rng
        self._initial_s = initial_s
        self._maximum_s = maximum_s
        self._ceiling_s = initial_s
        self.failures = 0  # in a row
        self.is_asked_for = False  # the server has asked for the last pause

    def reset(self) -> None:
        self._ceiling_s = self._initial_s
        self.failures = 0

    def lower(self, ceiling_s: float) -> None:
        """The next pauses begin at this ceiling at the most."""
        self._ceiling_s = min(self._ceiling_s, ceiling_s)

    def next_s(self, retry_after_s: float | None = None) -> float:
        """The pause before the next attempt, seconds: between half of the ceiling and all of it.

        What the server asks for is waited for in full, and up to a quarter longer, so that clients that were all sent
        the same do not all come back at the same time.
        """
        pause_s = self._ceiling_s * (0.5 + 0.5 * self.fraction())
        self._ceiling_s = min(2 * self._ceiling_s, self._maximum_s)
        self.failures += 1
        self.is_asked_for = retry_after_s is not None and retry_after_s > 0
        if retry_after_s is not None and retry_after_s > 0:
            asked_s = min(retry_after_s, KUBE_RETRY_AFTER_MAX_S)
            pause_s = max(pause_s, asked_s * (1 + 0.25 * self.fraction()))
        return pause_s

    def fraction(self) -> float:
        """A number in 0 … 1."""
        return self._rng.below(_GRAIN) / _GRAIN
