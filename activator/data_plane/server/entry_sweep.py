"""Ends HTTP/2 connections whose clients do better without this program: those that came to a port of its own which the
traffic does not go to any more (`RevisionSpec.is_left`).

HTTP/1 connections need no sweep: they are asked to end with their next answer, so that no request is lost. An HTTP/2
connection is asked at once and again: its end takes two steps, between which the client is heard.
"""

from __future__ import annotations

from typing import Final

from activator.data_plane.server.registry import ConnectionRegistry, RegisteredConnection
from activator.runtime.clock import Periodic

ENTRY_SWEEP_S: Final = 0.5  # how often connections that are to end are asked to
ENTRIES_SWEPT_MAX: Final = 128  # of them in one turn


class EntrySweep(Periodic):
    """Of one worker's connections; begins with `arm`."""

    def __init__(self, registry: ConnectionRegistry) -> None:
        super().__init__(ENTRY_SWEEP_S)
        self._registry = registry
        self._left: list[RegisteredConnection] = []  # of this round

    def arm(self) -> None:
        self._registry.wheel.arm(self, self._registry.now() + ENTRY_SWEEP_S)

    def expired(self, now_s: float) -> None:
        registry = self._registry
        if registry.leaving:
            self._left = [one for one, entry in registry.entered.items() if entry in registry.leaving]
        self._look()

    def _look(self) -> None:
        left = self._left
        now = left[-ENTRIES_SWEPT_MAX:]
        del left[-ENTRIES_SWEPT_MAX:]
        try:
            for connection in now:
                if connection in self._registry.entered:
                    connection.drain()
        finally:  # one that raises does not end the sweep
            if left:
                self._registry.turn.defer(self._look)
            else:
                self.arm()
