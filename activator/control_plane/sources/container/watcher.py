"""Refreshes the list of an engine's containers after every change, and every REFRESH_INTERVAL_S in any case.

Events of the engine only trigger a new list; their content is not used. So a lost event costs a late refresh, many
events cost one refresh per REFRESH_PAUSE_S, and a broken connection needs no catching up.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from activator.control_plane.sources.container.engine import Engine, EngineAwayError, EngineError
from activator.control_plane.sources.container.streams import JsonLines, NoStreamError
from activator.runtime.backoff import Backoff
from activator.runtime.tasks import TaskGroupOwner, keep_running, pause, wait_for

REFRESH_INTERVAL_S: Final = 60.0  # without an event
REFRESH_PAUSE_S: Final = 0.25  # between two refreshes
AGAIN_INITIAL_S: Final = 0.5  # after a broken connection; grows up to the maximum
AGAIN_MAX_S: Final = 5.0
ACTIONS: Final = frozenset(
    {"create", "start", "die", "died", "stop", "destroy", "remove", "rename", "pause", "unpause", "restart"}
)
_READ_BYTES: Final = 64 * 1024

log = logging.getLogger("activator.container")


class Watcher:
    """Calls `refresh` on events of the engine and every REFRESH_INTERVAL_S; an error is logged, and retried."""

    def __init__(self, engine: Engine, tasks: TaskGroupOwner, refresh: Callable[[], Awaitable[None]]) -> None:
        self._engine = engine
        self._tasks = tasks
        self._refresh = refresh
        self._changed = asyncio.Event()
        self._refresh_backoff = Backoff(AGAIN_INITIAL_S, AGAIN_MAX_S)
        self._listen_backoff = Backoff(AGAIN_INITIAL_S, AGAIN_MAX_S)
        self._is_away = False
        self.refreshes_total = 0
        self.problem = ""  # why the last refresh failed

    def expedite(self) -> None:
        """Refresh now."""
        self._changed.set()

    async def run(self) -> None:
        """Run until cancelled."""
        events = self._tasks.start("container events", keep_running(self._listen, self._listen_failed))
        try:
            await keep_running(self._refresh_and_pause, self._refresh_failed)
        finally:
            events.cancel()

    async def _refresh_and_pause(self) -> None:
        self._changed.clear()
        self.refreshes_total += 1
        await self._refresh()
        if self._is_away:
            log.info("the container engine at %s answers again", self._engine.path)
        self._is_away, self.problem = False, ""
        self._refresh_backoff.reset()
        await wait_for(self._changed, REFRESH_INTERVAL_S)
        await pause(REFRESH_PAUSE_S)

    def _refresh_failed(self, error: Exception) -> float:
        if isinstance(error, EngineAwayError | EngineError):
            if not self._is_away:
                log.warning("containers cannot be discovered at the moment: %s", error)
            self._is_away, self.problem = True, str(error)
        else:  # a bug, or an unexpected answer: the next attempt may succeed
            self._tasks.on_error("discovery of containers", error)
        return self._refresh_backoff.next_s()

    async def _listen(self) -> None:
        query = {"filters": json.dumps({"type": ["container"]})}
        lines = JsonLines()
        async with self._engine.streamed("GET", "/events", query) as content:
            self._changed.set()  # for changes before the stream was open
            self._listen_backoff.reset()
            while data := await content.read(_READ_BYTES):
                if any(_matters(event) for event in lines.feed(data)):
                    self._changed.set()
        self._changed.set()
        await pause(self._listen_backoff.next_s())

    def _listen_failed(self, error: Exception) -> float:
        if isinstance(error, EngineAwayError | EngineError | NoStreamError):
            log.debug("no events of containers: %s", error)
        else:  # a bug, or an unexpected answer
            self._tasks.on_error("container events", error)
        self._changed.set()
        return self._listen_backoff.next_s()


def _matters(event: dict[str, Any]) -> bool:
    return str(event.get("Action") or event.get("status")) in ACTIONS
