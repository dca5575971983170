"""Looks at the containers of an engine again whenever one of them has changed, and every LOOK_S in any case.

The events of the engine say only that something happened: what there is now is listed. So a lost event costs a late
look, a flood of events one look in LOOK_PAUSE_S, and after a break nothing has to be caught up.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from activator.control_plane.sources.container.engine import Engine, EngineAwayError, EngineError
from activator.control_plane.sources.container.streams import JsonLines, NoStreamError
from activator.runtime.tasks import TaskGroupOwner, pause, wait_for

LOOK_S: Final = 60.0  # without an event
LOOK_PAUSE_S: Final = 0.25  # between two looks
AGAIN_INITIAL_S: Final = 0.5  # after a break, growing …
AGAIN_MAX_S: Final = 5.0
ACTIONS: Final = frozenset(
    {"create", "start", "die", "died", "stop", "destroy", "remove", "rename", "pause", "unpause", "restart"}
)
_READ_BYTES: Final = 64 * 1024

log = logging.getLogger("activator.container")


class Watcher:
    """Calls `look`, one call at a time; an error of the engine in it is logged, and the next look comes."""

    def __init__(self, engine: Engine, tasks: TaskGroupOwner, look: Callable[[], Awaitable[None]]) -> None:
        self._engine = engine
        self._tasks = tasks
        self._look = look
        self._changed = asyncio.Event()
        self.looks_total = 0
        self.problem = ""  # why the last look failed

    def hurry(self) -> None:
        """Look again."""
        self._changed.set()

    async def run(self) -> None:
        """Until cancelled."""
        events = self._tasks.start("container events", self._listen())
        is_away, again_s = False, AGAIN_INITIAL_S
        try:
            while True:
                self._changed.clear()
                self.looks_total += 1
                try:
                    await self._look()
                    if is_away:
                        log.info("the container engine at %s answers again", self._engine.path)
                    is_away, again_s, self.problem = False, AGAIN_INITIAL_S, ""
                except (EngineAwayError, EngineError) as error:
                    if not is_away:
                        log.warning("containers are not found at the moment: %s", error)
                    is_away, self.problem = True, str(error)
                    await pause(again_s)
                    again_s = min(again_s * 2.0, AGAIN_MAX_S)
                    continue
                except Exception as error:  # A defect, or an unexpected answer: the next attempt may succeed.
                    self._tasks.on_error("discovery of containers", error)
                    await pause(again_s)
                    again_s = min(again_s * 2.0, AGAIN_MAX_S)
                    continue
                await wait_for(self._changed, LOOK_S)
                await pause(LOOK_PAUSE_S)
        finally:
            events.cancel()

    async def _listen(self) -> None:
        query = {"filters": json.dumps({"type": ["container"]})}
        again_s = AGAIN_INITIAL_S
        while True:
            lines = JsonLines()
            try:
                async with self._engine.streamed("GET", "/events", query) as content:
                    self._changed.set()  # what happened before
                    again_s = AGAIN_INITIAL_S
                    while data := await content.read(_READ_BYTES):
                        if any(_matters(event) for event in lines.feed(data)):
                            self._changed.set()
            except (EngineAwayError, EngineError, NoStreamError) as error:
                log.debug("no events of containers: %s", error)
            except Exception as error:  # as in `run`
                self._tasks.on_error("container events", error)
            self._changed.set()
            await pause(again_s)
            again_s = min(again_s * 2.0, AGAIN_MAX_S)


def _matters(event: dict[str, Any]) -> bool:
    return str(event.get("Action") or event.get("status")) in ACTIONS
