"""The sweep that closes HTTP/2 connections of dedicated ports that traffic no longer uses (`RoutingSpec.is_left`).

HTTP/1 connections need no sweep: they close with their next response, so that no request is lost. An HTTP/2 connection
gets `drain` repeatedly, because its end takes two steps with a round trip between them.
"""

from __future__ import annotations

from typing import Final

from activator.data_plane.server.registry import ConnectionRegistry, RegisteredConnection
from activator.runtime.clock import Periodic

ENTRY_SWEEP_S: Final = 0.5  # interval of the sweep
ENTRIES_SWEPT_MAX: Final = 128  # connections per turn


class EntrySweep(Periodic):
    """The sweep of one worker's connections; it starts with `arm`."""

    def __init__(self, registry: ConnectionRegistry) -> None:
        super().__init__(ENTRY_SWEEP_S)
        self._registry = registry
        self._remaining: list[RegisteredConnection] = []  # not swept yet in this round

    def arm(self) -> None:
        self._registry.wheel.arm(self, self._registry.now() + ENTRY_SWEEP_S)

    def expired(self, now_s: float) -> None:
        registry = self._registry
        if registry.leaving:
            self._remaining = [
                connection for connection, entry in registry.entered.items() if entry in registry.leaving
            ]
        self._sweep_batch()

    def _sweep_batch(self) -> None:
        """Drain up to ENTRIES_SWEPT_MAX connections in this turn."""
        remaining = self._remaining
        batch = remaining[-ENTRIES_SWEPT_MAX:]
        del remaining[-ENTRIES_SWEPT_MAX:]
        try:
            for connection in batch:
                if connection in self._registry.entered:
                    connection.drain()
        finally:  # an exception does not end the sweep
            if remaining:
                self._registry.batcher.defer(self._sweep_batch)
            else:
                self.arm()
