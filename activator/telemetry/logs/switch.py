"""The switch of the access log: off, or one format; it can be changed while requests are served."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Final

from activator.runtime.clock import Defer, Later, Now
from activator.runtime.line_writer import LineWriter
from activator.runtime.units import MIB
from activator.telemetry.logs.access_log import AccessLog
from activator.telemetry.request_hooks import RequestHooks

ACCESS_LOG_BACKLOG_BYTES_MAX: Final = 4 * MIB  # waiting to be written; lines beyond are dropped and counted
ACCESS_LOG_CLOSE_S: Final = 2.0  # how long the shutdown waits for the last lines

log = logging.getLogger("activator.access_log")


class AccessLogSwitch:
    """The switch of the access log on standard output, which other processes also write if `shared`.

    See AccessLog for `wall`, `defer` and `later`.
    """

    def __init__(
        self,
        proxy: RequestHooks,
        wall: Now,
        defer: Defer,
        later: Later,
        failed: Callable[[Exception], None],
        shared: bool = False,
    ) -> None:
        self._proxy = proxy
        self._wall = wall
        self._defer = defer
        self._later = later
        self._failed = failed
        self._shared = shared
        self._current: AccessLog | None = None
        self._writer: LineWriter | None = None
        self._dropped_before = 0  # lines dropped by earlier logs

    @property
    def lost_total(self) -> int:
        """The number of lines that are missing in the output."""
        lost = self._dropped_before
        if self._current is not None:
            lost += self._current.dropped_total
        if self._writer is not None:
            lost += self._writer.lost_lines
        return lost

    def set(self, log_format: bool | str) -> None:
        """Switch the log off (False) or to a valid format, from the next request that ends."""
        former = self._current
        if former is not None:
            if former.kind == log_format:
                return
            former.flush()
            self._dropped_before += former.dropped_total
            self._current = self._proxy.observer = None
        if isinstance(log_format, str):
            if self._writer is None:
                self._writer = LineWriter(
                    "the access log", sys.stdout.fileno(), ACCESS_LOG_BACKLOG_BYTES_MAX, log, self._shared
                )
            self._current = AccessLog(log_format, self._wall, self._defer, self._later, self._writer, self._failed)
            self._proxy.observer = self._current

    def close(self) -> None:
        """Write the buffered lines, for a bounded time, because the reader may have stopped."""
        self.set(False)
        if self._writer is not None and not self._writer.close(ACCESS_LOG_CLOSE_S):
            log.warning("the last lines of the access log could not be written within %g s", ACCESS_LOG_CLOSE_S)
