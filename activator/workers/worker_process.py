"""One worker as its parent has it, from the fork to its end."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterable
from typing import Any

from activator.runtime.wire import DESCRIPTORS_AT_ONCE_MAX, Wire
from activator.workers.messages import ToWorker, encode


class WorkerProcess:
    """A worker. `number` is unique in this parent; `member` is its number as a member; `place` is an index."""

    def __init__(self, number: int, member: int, place: int, started_s: float) -> None:
        self.number = number
        self.member = member
        self.place = place
        self.started_s = started_s
        self.silent_since_s = started_s  # time of its last frame, plus later pauses of this process
        self.process = 0  # PID
        self.pidfd = -1  # -1: not forked yet, or ended
        self.wire: Wire | None = None
        self.is_ready = False  # it has reported `WorkerStarted`
        self.begun = asyncio.Event()  # it takes part: it is ready, and its pidfd is known
        self.listening = asyncio.Event()  # it accepts on all sockets that it was sent
        self.listens_awaited = 0  # messages `Listen` that it has not answered
        self.ended = asyncio.Event()
        self.given: set[int] = set()  # numbers of the sockets that it has
        self.snapshot: dict[str, dict[str, Any]] = {}
        self.is_killed = False
        self.is_former = False  # a former process of the activator started it: it finishes its requests and ends
        self.is_over = False  # it was asked to end
        self.joined = asyncio.Event()  # it has reported `WorkerStarted`: a former one when it has reported its loads
        self._loop = asyncio.get_running_loop()
        self._outgoing: list[ToWorker] = []
        self._descriptors: list[int] = []

    def send(self, message: ToWorker, descriptors: Iterable[int] = ()) -> None:
        """Send a message at the end of this turn. The descriptors are closed here once they are sent."""
        given = [*descriptors]
        if len(self._descriptors) + len(given) > DESCRIPTORS_AT_ONCE_MAX:
            self._flush()
        if not self._outgoing:
            self._loop.call_soon(self._flush)
        self._outgoing.append(message)
        self._descriptors.extend(given)

    def kill(self) -> None:
        """Send SIGKILL, now or as soon as the worker is forked."""
        self.is_killed = True
        if self.pidfd >= 0:
            try:
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
            except ProcessLookupError:  # it has just ended by itself
                pass

    def forked(self, process: int, pidfd: int) -> None:
        """Record the process of the worker; kill it if that was requested before."""
        self.process = process
        self.pidfd = pidfd
        if self.is_killed:
            self.kill()

    def close(self) -> None:
        """Record the end of the worker, and close its pidfd and its wire."""
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


class WorkerSlot:
    """A place, which has one worker at a time."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.worker: WorkerProcess | None = None
        self.short_lives = 0  # workers in a row that ended soon after their start
        self.waits_until_s = 0.0  # time before which the next worker is not started
        self.restarts_total = 0
