"""Responses that their clients do not read: the memory that they hold is counted and bounded.

Rules
  1. While a client takes nothing, its connection holds the written bytes: one read from the pod, encrypted where
     there is TLS. The pod is not read meanwhile, so that this does not grow.
  2. All of them may hold half of `limits.held_bytes`. Beyond that the response is cut that has waited for its client
     longest, if that is STALLED_MIN_S at least: a client that is only slow takes some from time to time.
  3. Beyond all of `limits.held_bytes` that response is cut however short the time.
"""

from __future__ import annotations

from typing import Final

from activator.data_plane.request import RequestRecord
from activator.data_plane.throttle.budget import HeldBudget

STALLED_MIN_S: Final = 5.0


class StalledResponses:
    """The responses of one worker that wait for their clients."""

    def __init__(self, held: HeldBudget) -> None:
        """`held` has the bound; its own count is separate."""
        self._held = held
        self._since_s: dict[RequestRecord, float] = {}  # the one that has waited longest first
        self.bytes: int = 0
        self.shed_total: int = 0

    def begin(self, response: RequestRecord, count: int, now_s: float) -> bool:
        """Count `count` bytes for a response whose client takes no more for now.

        Others may be cut for that. Return False if it was this one.
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

    def end(self, response: RequestRecord) -> None:
        """Stop counting a response: its client takes more, or it is over. Harmless if it is not counted."""
        if self._since_s.pop(response, 0.0) > 0.0:
            self.bytes -= response.stalled_bytes
            response.stalled_bytes = 0
