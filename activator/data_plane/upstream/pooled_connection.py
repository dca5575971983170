"""A connection to a pod and the pool that it belongs to, as they see each other, whatever is spoken on it."""

from __future__ import annotations

from typing import final

from mypy_extensions import mypyc_attr

from activator.data_plane.connection import Connection
from activator.data_plane.exchange import PodStream, PodUser
from activator.runtime.buffered_writer import WriteBatcher
from activator.runtime.clock import Now
from activator.runtime.last_reads import last_reads
from activator.runtime.transport import Transport, watch


@mypyc_attr(allow_interpreted_subclasses=True)
class PooledConnection(Connection):
    """A connection, as its pool sees it; one for each protocol derives from it."""

    def __init__(self, owner: ConnectionOwner, now: Now, turn: WriteBatcher, authority: bytes) -> None:
        super().__init__(turn)
        self._owner = owner
        self._now = now
        self.authority = authority  # the Host of requests that name none: the pod's
        self.fresh: bool = True  # no byte of a response has ever come
        self.last_read_s: float = 0.0  # when it last read something, or was opened
        self.is_closed: bool = False
        self.retiring: bool = False  # it takes no more exchanges

    # --- what a subclass does ---

    def serve(self, exchange: PodUser) -> PodStream:
        """Carry this exchange from now on; there must be room. The caller notifies the exchange (`connected`)."""
        raise NotImplementedError

    def cut(self) -> None:
        """Close at once, whatever it carries, and report that to no exchange."""
        raise NotImplementedError

    def _parse_on(self) -> bool:
        """Parse the next share of the last read; return False if all of it has been parsed."""
        raise NotImplementedError

    # --- the pool's side ---

    def watch(self) -> None:
        """Notice where the pod is gone without a word (`transport.watch`)."""
        if self._transport is not None:
            watch(self._transport)

    def close(self) -> None:
        """Close in order; for a connection that carries nothing."""
        if not self.is_closed:
            self._gone()
            self._leave()

    # --- asyncio protocol ---

    def connection_made(self, transport: Transport) -> None:
        self._start(transport)
        self._owner.opened(self)

    def _start(self, transport: Transport) -> None:
        super()._start(transport)
        self.last_read_s = self._now()

    # --- for subclasses ---

    @final
    def _note_read(self, count: int) -> float:
        """Note that so many bytes have been read; return the time."""
        if self.fresh:
            self.fresh = False
            self._owner.answered(self)
        now_s = self.last_read_s = self._now()
        self._reading.took(count)
        return now_s

    def _parse_all(self) -> None:
        """Parse the rest of the last read, in as many shares as it takes: nothing more comes."""
        while self._parse_on():
            pass

    def _parse_last_reads(self) -> bool:
        """Parse what the kernel still holds; return whether that was anything."""
        has_data = False
        for data in last_reads(self._transport):
            has_data = True
            self.data_received(data)
            self._parse_all()
        return has_data

    def _gone(self) -> None:
        self.is_closed = True
        self._owner.closed(self)

    def _leave(self) -> None:
        """Close when all that was written is sent, for which the pod has a time limit."""
        writer = self._writer
        transport = self._transport
        if writer is not None and transport is not None:
            writer.close()
            if transport.get_write_buffer_size() > 0:
                self._owner.leaving(transport)


@mypyc_attr(allow_interpreted_subclasses=True)  # since the pool does, whose subclasses are the tests'
class ConnectionOwner:
    """The pool, as a connection sees it."""

    def opened(self, connection: PooledConnection) -> None:
        """The dial has succeeded."""
        raise NotImplementedError

    def answered(self, connection: PooledConnection) -> None:
        """The first byte of the first response has come."""
        raise NotImplementedError

    def finished(self, connection: PooledConnection, reusable: bool) -> None:
        """A response is complete; where `reusable`, the connection may take another request."""
        raise NotImplementedError

    def room_changed(self, connection: PooledConnection) -> None:
        """The connection may take more requests than before, or none any more, though none has ended."""

    def wrong_protocol(self, connection: PooledConnection, words: str) -> None:
        """The pod does not speak the protocol of this pool."""

    def cut(self, connection: PooledConnection) -> None:
        """The pod has closed it under a request."""
        raise NotImplementedError

    def closed(self, connection: PooledConnection) -> None:
        """The connection is gone, for whatever reason; called once."""
        raise NotImplementedError

    def close_idle_one(self) -> bool:
        """Close the connection that has been idle the longest; False where none is."""
        raise NotImplementedError

    def leaving(self, transport: Transport) -> None:
        """The connection closes with bytes unsent: abort it if the pod has not taken them in time."""
        raise NotImplementedError
