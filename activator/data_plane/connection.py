"""The base of all connections: reading in turns of the loop, writing, and the end.

Rules
  1. A connection is an asyncio protocol by its methods, because a native class cannot derive from asyncio.Protocol.
  2. A parser that has used its share of a turn continues in a later one (`_turn_came`); until then nothing is read.
  3. A connection that the loop has closed drops all references, to avoid reference cycles.
"""

from __future__ import annotations

from mypy_extensions import mypyc_attr

from activator.runtime.buffered_writer import BufferedWriter, WriteBatcher
from activator.runtime.reading import UNPARSED, Reading
from activator.runtime.transport import WRITE_HIGH_WATER_BYTES, WRITE_LOW_WATER_BYTES, Transport


@mypyc_attr(allow_interpreted_subclasses=True)
class Connection:
    """The base class of the four connections: of clients and to pods, over HTTP/1.1 and HTTP/2."""

    def __init__(self, batcher: WriteBatcher) -> None:
        self.batcher = batcher
        self.bare: Transport | None = None  # with TLS: the plain transport, until `connection_made`
        self._transport: Transport | None = None
        self._writer: BufferedWriter | None = None
        self._reading = Reading(batcher.shares.add, self._turn_came)

    # --- asyncio protocol ---

    def connection_made(self, transport: Transport) -> None:
        """Start with an open socket; over TLS, the handshake has ended."""
        raise NotImplementedError

    def data_received(self, data: bytes) -> None:
        raise NotImplementedError

    def eof_received(self) -> bool | None:
        """Return True if the other direction stays open; otherwise the transport closes."""
        raise NotImplementedError

    def connection_lost(self, error: Exception | None) -> None:
        """Deliver the last reads after an error, report the end, and drop all references."""
        if error is not None:
            self._read_last()
        self._lost(error)
        self._release()

    def pause_writing(self) -> None:
        raise NotImplementedError

    def resume_writing(self) -> None:
        raise NotImplementedError

    # --- implemented by subclasses ---

    def _turn_came(self) -> None:
        """Continue to parse the last read, which was longer than the share of one turn."""
        raise NotImplementedError

    def _new_writer(self, transport: Transport) -> BufferedWriter:
        return BufferedWriter(self.batcher, transport)

    def _read_last(self) -> None:
        """Deliver the bytes that the kernel still holds, which the loop does not read after a failed write."""

    def _lost(self, error: Exception | None) -> None:
        """Report that the connection has ended."""
        raise NotImplementedError

    # --- for subclasses ---

    def _start(self, transport: Transport) -> None:
        """Use an open transport from now on."""
        self._transport = transport
        self._writer = self._new_writer(transport)
        self._reading.start(transport if self.bare is None else self.bare)
        self.bare = None
        transport.set_write_buffer_limits(WRITE_HIGH_WATER_BYTES, WRITE_LOW_WATER_BYTES)

    def half_closes(self) -> bool:
        """Return True if one direction can end before the other; TLS connections cannot do that."""
        return self._transport is not None and self._transport.can_write_eof()

    def _parse_later(self) -> None:
        """Parse the rest of the last read in another turn, and read nothing until then."""
        self._reading.pause(UNPARSED)
        self._reading.wait_for_turn()

    def _release(self) -> None:
        self._reading.stop()
        if self._writer is not None:
            self._writer.stop()
        self._transport = None
        self._writer = None
