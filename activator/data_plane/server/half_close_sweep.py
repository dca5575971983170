"""Notices clients that have gone, or have ended their side, while their connection was not read.

Rules
  1. On a socket that is not read, an end of file is not reported: the kernel is asked, once a second.
  2. At most SWEPT_PER_TURN_MAX connections are asked in one turn of the loop: clients decide how many there are.
"""

from __future__ import annotations

from typing import Final

from activator.data_plane.server.registry import TCP_CLOSE, ConnectionRegistry, RegisteredConnection
from activator.runtime.clock import Periodic

HALF_CLOSE_SWEEP_S: Final = 1.0  # how often paused clients are asked whether they are still there
SWEPT_PER_TURN_MAX: Final = 128  # of them in one turn: one costs 2 us, or up to 50 where its request ends with it

_TCP_CLOSE_WAIT: Final = 8


class HalfCloseSweep(Periodic):
    """Of one worker's connections; begins with `arm`."""

    def __init__(self, registry: ConnectionRegistry) -> None:
        super().__init__(HALF_CLOSE_SWEEP_S)
        self._registry = registry
        self._left: list[RegisteredConnection] = []  # of this round
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True
        self._left.clear()
        self._registry.wheel.cancel(self)

    def arm(self) -> None:
        self._registry.wheel.arm(self, self._registry.now() + HALF_CLOSE_SWEEP_S)

    def expired(self, now_s: float) -> None:
        self._left = list(self._registry.paused)
        self._look()

    def _look(self) -> None:
        left = self._left
        now = left[-SWEPT_PER_TURN_MAX:]
        del left[-SWEPT_PER_TURN_MAX:]
        try:
            for connection in now:
                if connection not in self._registry.paused:
                    continue
                state = connection.socket_state()
                # In a tunnel, an end of file ends one direction, and is read when its turn comes.
                if state == TCP_CLOSE or (state == _TCP_CLOSE_WAIT and not connection.is_tunnel()):
                    connection.peer_has_ended(state == TCP_CLOSE)
        finally:  # one that raises does not end the sweep: the others are met in this round or the next
            if left:
                self._registry.turn.defer(self._look)
            elif not self._stopped:
                self.arm()
