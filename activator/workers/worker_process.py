"""One worker as the parent sees it, from the fork to its end."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterable
from typing import Any

from activator.runtime.wire import DESCRIPTORS_AT_ONCE_MAX, Wire
from activator.workers.messages import ToWorker, encode


class WorkerProcess:
    """`number` is given to no other one here, `member` is its number as a member; `place` has one worker after the
    other.
    """

    def __init__(self, number: int, member: int, place: int, started_s: float) -> None:
        self.number = number
        self.member = member
        self.place = place
        self.started_s = started_s
        self.heard_s = started_s
        self.process = 0  # its pid
        self.pidfd = -1  # by which its end is known; -1: not forked yet, or ended
        self.wire: Wire | None = None
        self.is_ready = False  # it has said `Begun`
        self.begun = asyncio.Event()  # it takes part: it is ready, and its end will be known
        self.listening = asyncio.Event()  # on all that it was given
        self.listens_awaited = 0
        self.ended = asyncio.Event()
        self.given: set[int] = set()  # sockets that it has
        self.snapshot: dict[str, dict[str, Any]] = {}
        self.is_killed = False
        self._loop = asyncio.get_running_loop()
        self._outgoing: list[ToWorker] = []
        self._descriptors: list[int] = []

    def send(self, message: ToWorker, descriptors: Iterable[int] = ()) -> None:
        """At the end of this turn. The descriptors are closed here when they are sent."""
        given = [*descriptors]
        if len(self._descriptors) + len(given) > DESCRIPTORS_AT_ONCE_MAX:
            self._flush()
        if not self._outgoing:
            self._loop.call_soon(self._flush)
        self._outgoing.append(message)
        self._descriptors.extend(given)

    def kill(self) -> None:
        """Whatever it is doing."""
        self.is_killed = True
        if self.pidfd >= 0:
            try:
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
            except ProcessLookupError:  # it has ended by itself meanwhile
                pass

    def forked(self, process: int, pidfd: int) -> None:
        """It is a process now."""
        self.process = process
        self.pidfd = pidfd
        if self.is_killed:
            self.kill()

    def close(self) -> None:
        """It has ended."""
        self.ended.set()
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1
        if self.wire is not None:
            self.wire.close()

    def _flush(self) -> None:
        outgoing, self._outgoing = self._outgoing, []
        descriptors, self._descriptors = self._descriptors, []
        if outgoing:
            assert self.wire is not None, "the wire comes first"
            self.wire.send_now(encode(outgoing), descriptors)


class Place:
    """Where one worker after the other serves."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.worker: WorkerProcess | None = None
        self.short_lives = 0  # workers in a row that ended soon
        self.waits_until_s = 0.0  # the next worker is not started before
        self.restarts_total = 0
