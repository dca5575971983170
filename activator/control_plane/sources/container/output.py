"""The output of a container, read as long as it runs, with the rate limit of processes.

It is read from the engine's log, not from the container's own pipe: reading never blocks the container, and output that
is written faster is read later. After a broken connection, reading resumes after the last message that was read
(`LogPosition`), also if the container ended while the engine was unreachable.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from activator.control_plane.sources.container.engine import Engine, EngineAwayError, EngineError
from activator.control_plane.sources.container.streams import Demultiplexer, LogPosition, NoStreamError, TerminalLines
from activator.control_plane.sources.process.output import LINES_KEPT, READ_BYTES, Output, OutputRateLimiter
from activator.runtime.clock import Now
from activator.runtime.tasks import pause, wait_for

AGAIN_S: Final = 1.0  # after a broken connection

log = logging.getLogger("activator.container")


class OutputReader:
    """The reader of one container's output; `ended` is set when the container has ended."""

    def __init__(
        self,
        engine: Engine,
        container: str,
        output: Output,
        is_terminal: bool,
        ended: asyncio.Event,
        now: Now,
        wall_clock: Now,
        since_s: float | None = None,
    ) -> None:
        """Make a reader. `since_s`: Unix seconds; None: from the first line on."""
        self._engine = engine
        self._container = container
        self._output = output
        self._is_terminal = is_terminal
        self._ended = ended
        self._now = now
        self._wall_clock = wall_clock
        self._position = LogPosition()
        self._since_s = since_s
        self._may_read = asyncio.Event()
        self._may_read.set()
        self._suspensions = 0  # how often `suspend` was called, each of which ends the connection

    def suspend(self) -> tuple[float | None, dict[str, tuple[int, int, int]]]:
        """Read nothing until `resume`. Return the `since_s` and the position with which another process continues."""
        self._suspensions += 1
        self._may_read.clear()
        self._since_s = self._position.since_s() or self._since_s
        return self._since_s, self._position.handed()

    def resume(self) -> None:
        """Continue after `suspend`."""
        self._may_read.set()

    def restore(self, positions: Mapping[str, tuple[int, int, int]]) -> None:
        """Continue, before `run`, at the position that a former process has handed over."""
        self._position.restore(positions)

    async def run(self) -> None:
        """Read until the container has ended."""
        try:
            while True:
                await self._may_read.wait()
                suspensions = self._suspensions
                try:
                    await self._read(self._since_s)
                    is_cut = False
                except EngineAwayError:
                    is_cut = True  # the task that watches the container logs it
                if suspensions == self._suspensions:
                    self._since_s = self._position.since_s() or self._wall_clock()
                self._position.resume()
                if is_cut and self._ended.is_set():
                    await pause(AGAIN_S)  # its last lines are still in the log; `end` of the container bounds the wait
                elif await wait_for(self._ended, AGAIN_S) and not is_cut and suspensions == self._suspensions:
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
        """Return the end of the log of an ended container, for one whose output has not been read completely."""
        last = Output()
        query = {"stdout": "1", "stderr": "1", "tail": str(LINES_KEPT)}
        messages = self._messages()
        try:
            async with (
                asyncio.timeout(AGAIN_S),
                self._engine.streamed("GET", f"/containers/{self._container}/logs", query) as content,
            ):
                while data := await content.read(READ_BYTES):
                    for piece in messages.feed(data):
                        last.feed(piece.stream, piece.data)
        except (TimeoutError, EngineAwayError, EngineError, NoStreamError) as error:
            log.debug("the last lines of the container %s: %s", self._container[:12], error)
        return last.lines()

    def _messages(self) -> Demultiplexer | TerminalLines:
        return TerminalLines() if self._is_terminal else Demultiplexer()

    async def _read(self, since_s: float | None) -> None:
        query = {"follow": "1", "stdout": "1", "stderr": "1", "timestamps": "1"}
        if since_s is not None:
            query["since"] = f"{since_s:.6f}"
        messages, suspensions = self._messages(), self._suspensions
        limiter = OutputRateLimiter(self._now)
        async with self._engine.streamed("GET", f"/containers/{self._container}/logs", query) as content:
            while (data := await content.read(READ_BYTES)) and suspensions == self._suspensions:
                lines = 0
                for piece in messages.feed(data):
                    lines += self._output.feed(piece.stream, self._position.unread_part(piece))
                await pause(limiter.wait_s(len(data), lines))
