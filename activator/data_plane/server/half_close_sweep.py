"""The sweep that detects clients that disconnected, or closed their side, while their connection was not read.

Rules
  1. No end of file is reported for a socket that is not read, so the kernel is asked once per second.
  2. At most SWEPT_PER_TURN_MAX connections are checked per turn of the loop, because clients determine their number.
"""

from __future__ import annotations

from typing import Final

from activator.data_plane.server.registry import TCP_CLOSE, ConnectionRegistry, RegisteredConnection
from activator.runtime.clock import Periodic

HALF_CLOSE_SWEEP_S: Final = 1.0  # interval of the sweep
SWEPT_PER_TURN_MAX: Final = 128  # per turn; a check takes 2 us, or up to 50 us if it ends a request

_TCP_CLOSE_WAIT: Final = 8


class HalfCloseSweep(Periodic):
    """The sweep of one worker's connections; it starts with `arm`."""

    def __init__(self, registry: ConnectionRegistry) -> None:
        super().__init__(HALF_CLOSE_SWEEP_S)
        self._registry = registry
        self._remaining: list[RegisteredConnection] = []  # not swept yet in this round
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True
        self._remaining.clear()
        self._registry.wheel.cancel(self)

    def arm(self) -> None:
        self._registry.wheel.arm(self, self._registry.now() + HALF_CLOSE_SWEEP_S)

    def expired(self, now_s: float) -> None:
        self._remaining = list(self._registry.paused)
        self._sweep_batch()

    def _sweep_batch(self) -> None:
        """Check up to SWEPT_PER_TURN_MAX connections in this turn."""
        remaining = self._remaining
        batch = remaining[-SWEPT_PER_TURN_MAX:]
        del remaining[-SWEPT_PER_TURN_MAX:]
        try:
            for connection in batch:
                if connection not in self._registry.paused:
                    continue
                state = connection.socket_state()
                # In a tunnel, an end of file ends one direction only, and is read in its turn.
                if state == TCP_CLOSE or (state == _TCP_CLOSE_WAIT and not connection.is_tunnel()):
                    connection.peer_has_ended(state == TCP_CLOSE)
        finally:  # an exception does not end the sweep; the others are checked in this round or the next
            if remaining:
                self._registry.batcher.defer(self._sweep_batch)
            elif not self._stopped:
                self.arm()
