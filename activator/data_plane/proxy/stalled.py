"""The bound on the memory of responses that clients do not read.

Rules
  1. While a client reads nothing, its connection holds the bytes of one read from the pod, encrypted under TLS. The pod
     is not read during that time, so the amount does not grow.
  2. All of them together may hold half of `limits.held_bytes`. Above that, the response that has been stalled longest
     is aborted if that is STALLED_MIN_S or longer: a client that is only slow reads something within that time.
  3. Above `limits.held_bytes` it is aborted regardless of how long it has been stalled.
"""

from __future__ import annotations

from typing import Final

from activator.data_plane.exchange import Exchange
from activator.data_plane.throttle.budget import HeldBudget

STALLED_MIN_S: Final = 5.0


class StalledResponses:
    """The stalled responses of one worker. The bound is that of `held`, which does not count their bytes."""

    def __init__(self, held: HeldBudget) -> None:
        self._held = held
        self._since_s: dict[Exchange, float] = {}  # insertion order: the longest stalled first
        self.bytes: int = 0
        self.shed_total: int = 0

    def begin(self, response: Exchange, count: int, now_s: float) -> bool:
        """Count `count` bytes of a response whose client takes no more for now.

        Aborts other responses, or this one, if that exceeds the bound; return False if this one was aborted.
        """
        self.end(response)
        if count <= 0:
            return True
        response.stalled_bytes = count
        self._since_s[response] = now_s
        self.bytes += count
        while self.bytes > self._held.bytes_max // 2:
            longest, since_s = next(iter(self._since_s.items()))
            if now_s - since_s < STALLED_MIN_S and self.bytes <= self._held.bytes_max:
                break
            self.end(longest)
            self.shed_total += 1
            longest.shed()
            if longest is response:
                return False
        return True

    def end(self, response: Exchange) -> None:
        """Stop counting a response that is read again or has ended. No effect if it is not counted."""
        if self._since_s.pop(response, 0.0) > 0.0:
            self.bytes -= response.stalled_bytes
            response.stalled_bytes = 0
