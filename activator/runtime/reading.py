"""Whether a connection is read, and how much of it in one turn of the loop.

Rules
  1. A connection is not read while there is any reason against it; the reasons are independent of each other.
  2. A connection gets its share of a turn and no more. The loop reads a socket again and again while its buffer of
     256,000 bytes is filled: 8 MB in one turn, if the peer is fast. After FULL_READS_PER_TURN_MAX such reads in a row
     the connection waits for the next turn: 1 MB, half a millisecond. (After each of them: a megabyte costs 1.07 times
     the CPU. A smaller buffer of our own would bound a read more tightly; with 64 KiB a megabyte costs 1.6 times the
     CPU and a small request 1.06 times: measured, not done.)
  3. What a parser leaves unparsed since it has had its share is parsed in the next turn, or in one soon after it where
     many wait for theirs (turn_queue.py); until then nothing is read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from activator.runtime.clock import Defer
from activator.runtime.last_reads import keep_last_reads
from activator.runtime.transport import Transport

READ_FULL_BYTES: Final = 250_000  # a read of so much has filled the loop's buffer, nearly: more is there …
FULL_READS_PER_TURN_MAX: Final = 4  # … and after so many in a row the connection waits for the next turn

# Reasons not to read.
SLOW_READER: Final = 1  # what is read has to wait for the other side of the exchange
UNPARSED: Final = 2  # what was read has not been parsed
SHARE_USED: Final = 4  # it has had its share of this turn


class Reading:
    """Of one connection. `go_on` is called in the next turn after `wait_for_turn`, and after a share was used up."""

    def __init__(self, defer: Defer, go_on: Callable[[], None]) -> None:
        self._defer = defer
        self._go_on = go_on
        self._transport: Transport | None = None
        self._reasons: int = 0
        self._deferred: bool = False
        self._full_reads: int = 0  # in a row

    def start(self, transport: Transport) -> None:
        """The connection stands. Over TLS: the bare one.

        A TLS transport that is paused goes on reading, and where the peer then closes, it drops what it has not handed
        over. If the bare one is paused nothing is read, the end neither, and what was read has been handed over.
        """
        self._transport = transport

    def keep_last_reads(self) -> None:
        """Over TLS: deliver what the kernel holds when a write fails."""
        keep_last_reads(self._transport)

    def stop(self) -> None:
        """It is gone."""
        self._transport = None
        self._go_on = _nothing  # no cycle is left for the collector

    def is_paused(self) -> bool:
        return self._reasons != 0

    def is_paused_by(self, reason: int) -> bool:
        return self._reasons & reason != 0

    def pause(self, reason: int) -> None:
        before = self._reasons
        self._reasons = before | reason
        if before == 0 and self._transport is not None:
            self._transport.pause_reading()

    def resume(self, reason: int) -> None:
        before = self._reasons
        self._reasons = before & ~reason
        if before != 0 and self._reasons == 0 and self._transport is not None:
            self._transport.resume_reading()

    def set(self, reason: int, holds: bool) -> None:
        if holds:
            self.pause(reason)
        else:
            self.resume(reason)

    def took(self, count: int) -> None:
        """So many bytes came in one read."""
        if count < READ_FULL_BYTES:
            self._full_reads = 0  # and the loop has read all there was
            return
        self._full_reads += 1
        if self._full_reads >= FULL_READS_PER_TURN_MAX:
            self._full_reads = 0
            self.pause(SHARE_USED)
            self.wait_for_turn()

    def wait_for_turn(self) -> None:
        """Call `go_on` in the next turn."""
        if not self._deferred:
            self._deferred = True
            self._defer(self._next_turn)

    def _next_turn(self) -> None:
        self._deferred = False
        if self._transport is not None:
            self.resume(SHARE_USED)
            self._go_on()


def _nothing() -> None:
    pass
