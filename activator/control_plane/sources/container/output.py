"""The output of a container, read for as long as it runs, at the pace at which that of processes is read.

What the engine has written down is read, not the container's own pipe: a container is never held up by us, and one
that writes faster than we read is read later. After a break the reading goes on where it ended, by time.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from activator.control_plane.sources.container.engine import Engine, EngineAwayError, EngineError
from activator.control_plane.sources.container.streams import Demultiplexer, NoStreamError
from activator.control_plane.sources.process.output import LINES_KEPT, READ_BYTES, Output, Pace
from activator.runtime.clock import Now
from activator.runtime.tasks import pause, wait_for

AGAIN_S: Final = 1.0  # after a break

log = logging.getLogger("activator.container")


class OutputReader:
    """Of one container; `ended` is set when it has ended."""

    def __init__(
        self,
        engine: Engine,
        container: str,
        output: Output,
        is_terminal: bool,
        ended: asyncio.Event,
        now: Now,
        wall_clock: Now,
    ) -> None:
        self._engine = engine
        self._container = container
        self._output = output
        self._is_terminal = is_terminal
        self._ended = ended
        self._now = now
        self._wall_clock = wall_clock

    async def run(self, since_s: float | None) -> None:
        """Until the container has ended. `since_s`: Unix seconds; None: from its first line on."""
        try:
            while True:
                try:
                    await self._read(since_s)
                except EngineAwayError:
                    pass  # the one who watches the container tells it
                since_s = self._wall_clock()
                if await wait_for(self._ended, AGAIN_S):
                    return
        except EngineError as error:
            if error.status != 404 and not self._ended.is_set():
                log.warning("the output of the container %s cannot be read: %s", self._container[:12], error.message)
        except NoStreamError as error:
            log.warning("the output of the container %s is not read any more: %s", self._container[:12], error)
        finally:
            for stream in ("stdout", "stderr"):
                self._output.end(stream)

    async def last_lines(self) -> list[str]:
        """Of a container that has ended, of whose output much is not read yet."""
        last = Output()
        query = {"stdout": "1", "stderr": "1", "tail": str(LINES_KEPT)}
        frames = Demultiplexer()
        try:
            async with (
                asyncio.timeout(AGAIN_S),
                self._engine.streamed("GET", f"/containers/{self._container}/logs", query) as content,
            ):
                while data := await content.read(READ_BYTES):
                    for stream, piece in [("stdout", data)] if self._is_terminal else frames.feed(data):
                        last.feed(stream, piece)
        except (TimeoutError, EngineAwayError, EngineError, NoStreamError) as error:
            log.debug("the last lines of the container %s: %s", self._container[:12], error)
        return last.lines()

    async def _read(self, since_s: float | None) -> None:
        query = {"follow": "1", "stdout": "1", "stderr": "1"}
        if since_s is not None:
            query["since"] = f"{since_s:.6f}"
        frames = Demultiplexer()
        pace = Pace(self._now)
        async with self._engine.streamed("GET", f"/containers/{self._container}/logs", query) as content:
            while data := await content.read(READ_BYTES):
                lines = 0
                pieces = [("stdout", data)] if self._is_terminal else frames.feed(data)
                for stream, piece in pieces:
                    lines += self._output.feed(stream, piece)
                await pause(pace.wait_s(len(data), lines))
