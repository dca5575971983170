"""Lines to a file descriptor, from a thread of its own: a reader that is slow, or a full disk, never holds the loop up.

Rules
  1. The loop hands over batches; the thread alone calls the system. What waits is bounded in bytes, and what does not
     fit is dropped whole and counted.
  2. Where other processes write to the same pipe, a write is whole lines of LOG_ATOMIC_BYTES at most, which the system
     does not mix with others (pipe(7)); a longer line is a write of its own, and may be mixed.
  3. A batch that cannot be written (the reader has gone, the disk is full) is lost and counted; the first of a row of
     failures is logged.
"""

from __future__ import annotations

import logging
import os
from queue import SimpleQueue
from threading import Thread
from typing import Final

LOG_ATOMIC_BYTES: Final = 4096  # PIPE_BUF of Linux


class LineWriter:
    """`close` it, or the last lines may be missing. `what` is written, in words for people; `shared`: other processes
    write to it, too; `log` is told of failures.
    """

    def __init__(self, what: str, descriptor: int, bytes_max: int, log: logging.Logger, shared: bool = False) -> None:
        self._what = what
        self._log = log
        self._descriptor = descriptor
        self._shared = shared
        self._bytes_max = bytes_max
        self._batches: SimpleQueue[bytes | bytearray | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._failing = False
        # Each is written by one of the two threads only, so neither needs a lock.
        self._given_bytes = 0
        self._taken_bytes = 0
        self.lost_lines = 0  # that could not be written

    @property
    def backlog_bytes(self) -> int:
        """What has been handed over and not been dealt with."""
        return self._given_bytes - self._taken_bytes

    @property
    def room_bytes(self) -> int:
        """How many more may wait; below 0: too many do."""
        return self._bytes_max - self.backlog_bytes

    def write(self, batch: bytes | bytearray) -> None:
        """Whole lines, which are the writer's from now on. Never blocks.

        Raises RuntimeError where the system has no thread for it; the next batch tries again.
        """
        if self._thread is None:
            thread = Thread(target=self._run, name=self._what, daemon=True)
            thread.start()
            self._thread = thread
        self._given_bytes += len(batch)
        self._batches.put(batch)

    def close(self, timeout_s: float) -> bool:
        """Write what waits, for at most so long; whether all of it was dealt with. It may be written to again."""
        thread = self._thread
        if thread is None:
            return True
        self._thread = None
        self._batches.put(None)
        thread.join(timeout_s)
        return not thread.is_alive()

    def _run(self) -> None:
        while True:
            batch = self._batches.get()
            if batch is None:
                return
            self._write(batch)
            self._taken_bytes += len(batch)

    def _write(self, batch: bytes | bytearray) -> None:
        rest = memoryview(batch)
        try:
            while rest:
                end = atomic_end(batch, len(batch) - len(rest)) if self._shared else len(batch)
                rest = rest[os.write(self._descriptor, rest[: end - len(batch) + len(rest)]) :]
        except OSError as error:
            self.lost_lines += bytes(rest).count(b"\n")
            if not self._failing:
                self._log.error("%s cannot be written (%s); lines are lost until it can", self._what, error)
            self._failing = True
        else:
            self._failing = False


def atomic_end(lines: bytes | bytearray, begin: int) -> int:
    """Where a write that begins here must end: behind as many whole lines as fit, or behind the first."""
    if len(lines) - begin <= LOG_ATOMIC_BYTES:
        return len(lines)
    end = lines.rfind(b"\n", begin, begin + LOG_ATOMIC_BYTES)
    if end < 0:
        end = lines.find(b"\n", begin)
    return len(lines) if end < 0 else end + 1
