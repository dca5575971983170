"""A writer of lines to a file descriptor in its own thread, so that a slow reader or a full disk never blocks the loop.

Rules
  1. The loop queues batches, and only the thread makes system calls. The queue is bounded in bytes by its user, who
     drops whole lines that do not fit and counts them.
  2. If other processes write to the same pipe, a write consists of whole lines of at most LOG_ATOMIC_BYTES, which the
     kernel does not interleave (pipe(7)); a longer line is a write of its own, and may be interleaved.
  3. A batch that cannot be written (the reader has closed, the disk is full) is lost and counted; of consecutive
     failures only the first is logged.
"""

from __future__ import annotations

import logging
import os
from queue import SimpleQueue
from threading import Thread
from typing import Final

LOG_ATOMIC_BYTES: Final = 4096  # PIPE_BUF of Linux


class LineWriter:
    """A writer of lines, which must be closed or the last lines may be missing.

    `output` names the output in messages, `log` receives failures. `shared`: other processes also write to the output.
    """

    def __init__(self, output: str, descriptor: int, bytes_max: int, log: logging.Logger, shared: bool = False) -> None:
        self._output = output
        self._log = log
        self._descriptor = descriptor
        self._shared = shared
        self._bytes_max = bytes_max
        self._batches: SimpleQueue[bytes | bytearray | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._failing = False
        # Each counter is written by only one of the two threads, so none needs a lock.
        self._given_bytes = 0
        self._taken_bytes = 0
        self.lost_lines = 0  # lines that could not be written

    @property
    def backlog_bytes(self) -> int:
        """The bytes in the queue."""
        return self._given_bytes - self._taken_bytes

    @property
    def room_bytes(self) -> int:
        """The bytes that may still be queued; negative if there are too many."""
        return self._bytes_max - self.backlog_bytes

    def write(self, batch: bytes | bytearray) -> None:
        """Queue whole lines; the caller must not change `batch` afterwards. Never blocks.

        Raises RuntimeError if the thread cannot be started; the next call tries again.
        """
        if self._thread is None:
            thread = Thread(target=self._run, name=self._output, daemon=True)
            thread.start()
            self._thread = thread
        self._given_bytes += len(batch)
        self._batches.put(batch)

    def close(self, timeout_s: float) -> bool:
        """Write the queue, for at most `timeout_s`. Return True if it is empty. The writer may be used again."""
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
        """Write a batch, or count its lines as lost."""
        rest = memoryview(batch)
        try:
            while rest:
                end = atomic_end(batch, len(batch) - len(rest)) if self._shared else len(batch)
                rest = rest[os.write(self._descriptor, rest[: end - len(batch) + len(rest)]) :]
        except OSError as error:
            self.lost_lines += bytes(rest).count(b"\n")
            if not self._failing:
                self._log.error("%s cannot be written (%s); lines are lost until it can", self._output, error)
            self._failing = True
        else:
            self._failing = False


def atomic_end(lines: bytes | bytearray, begin: int) -> int:
    """Return the end of a write that begins at `begin`: behind the whole lines that fit, or behind the first line."""
    if len(lines) - begin <= LOG_ATOMIC_BYTES:
        return len(lines)
    end = lines.rfind(b"\n", begin, begin + LOG_ATOMIC_BYTES)
    if end < 0:
        end = lines.find(b"\n", begin)
    return len(lines) if end < 0 else end + 1
