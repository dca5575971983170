"""Read control of a connection: whether it is read, and how much per iteration of the event loop.

Rules
  1. A connection is not read while there is any reason against it; the reasons are independent of each other.
  2. A connection gets a bounded share of each turn. The loop reads a socket repeatedly while its buffer of 256,000
     bytes is filled: 8 MB in one turn, if the peer is fast. After FULL_READS_PER_TURN_MAX such reads in a row the
     connection waits for the next turn: 1 MB, half a millisecond. (With a wait after each such read, a megabyte takes
     1.07 times the CPU time. With a buffer of 64 KiB, a megabyte would take 1.6 times the CPU time, and a small request
     1.06 times.)
  3. Data that a parser leaves because its share is used up are parsed in the next turn, or in a later one if many
     connections wait (turn_queue.py); until then nothing is read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from activator.runtime.clock import Defer
from activator.runtime.last_reads import keep_last_reads
from activator.runtime.transport import Transport

READ_FULL_BYTES: Final = 250_000  # a read of this size has nearly filled the loop's buffer, so more data are available
FULL_READS_PER_TURN_MAX: Final = 4  # after this many in a row, the connection waits for the next turn

# Reasons not to read.
SLOW_READER: Final = 1  # the other side of the exchange does not read fast enough
UNPARSED: Final = 2  # received data have not been parsed
SHARE_USED: Final = 4  # the share of this turn is used up


class Reading:
    """The reading of one connection.

    `on_turn` is called in the next turn after `wait_for_turn`, and after the share of a turn was used up.
    """

    def __init__(self, defer: Defer, on_turn: Callable[[], None]) -> None:
        self._defer = defer
        self._on_turn = on_turn
        self._transport: Transport | None = None
        self._reasons: int = 0
        self._deferred: bool = False
        self._full_reads: int = 0  # reads in a row that have filled the buffer

    def start(self, transport: Transport) -> None:
        """Begin with an established connection; with TLS, `transport` is the bare one.

        A TLS transport continues to read while it is paused, and if the peer then closes, it drops the data that it has
        not delivered. If the bare transport is paused, neither data nor the end are read, and all data that were read
        have been delivered.
        """
        self._transport = transport

    def keep_last_reads(self) -> None:
        """Deliver the data that the kernel still holds when a write over TLS fails."""
        keep_last_reads(self._transport)

    def stop(self) -> None:
        """Release the references of a closed connection."""
        self._transport = None
        self._on_turn = _nothing  # leaves no reference cycle

    def is_paused(self) -> bool:
        return self._reasons != 0

    def is_paused_by(self, reason: int) -> bool:
        return self._reasons & reason != 0

    def pause(self, reason: int) -> None:
        """Add a reason not to read."""
        before = self._reasons
        self._reasons = before | reason
        if before == 0 and self._transport is not None:
            self._transport.pause_reading()

    def resume(self, reason: int) -> None:
        """Remove a reason; with the last one, reading resumes."""
        before = self._reasons
        self._reasons = before & ~reason
        if before != 0 and self._reasons == 0 and self._transport is not None:
            self._transport.resume_reading()

    def set(self, reason: int, holds: bool) -> None:
        """Add the reason if it `holds`, otherwise remove it."""
        if holds:
            self.pause(reason)
        else:
            self.resume(reason)

    def took(self, count: int) -> None:
        """Record that one read returned `count` bytes."""
        if count < READ_FULL_BYTES:
            self._full_reads = 0  # the loop has read all available data
            return
        self._full_reads += 1
        if self._full_reads >= FULL_READS_PER_TURN_MAX:
            self._full_reads = 0
            self.pause(SHARE_USED)
            self.wait_for_turn()

    def wait_for_turn(self) -> None:
        """Call `on_turn` in the next turn."""
        if not self._deferred:
            self._deferred = True
            self._defer(self._next_turn)

    def _next_turn(self) -> None:
        self._deferred = False
        if self._transport is not None:
            self.resume(SHARE_USED)
            self._on_turn()


def _nothing() -> None:
    pass
