"""The interfaces between a connection to a pod and its pool, independent of the protocol."""

from __future__ import annotations

from typing import final

from mypy_extensions import mypyc_attr

from activator.data_plane.connection import Connection
from activator.data_plane.streams import PodStream, PodUser
from activator.runtime.buffered_writer import WriteBatcher
from activator.runtime.clock import Now
from activator.runtime.last_reads import last_reads
from activator.runtime.transport import Transport, enable_keepalive


@mypyc_attr(allow_interpreted_subclasses=True)
class PooledConnection(Connection):
    """The base class of the connections of both protocols, and the interface for their pool."""

    def __init__(self, owner: ConnectionOwner, now: Now, batcher: WriteBatcher, authority: bytes) -> None:
        super().__init__(batcher)
        self._owner = owner
        self._now = now
        self.authority = authority  # the default Host: that of the pod
        self.is_new: bool = True  # it counts as new in the window of the pod (window.py)
        self.last_read_s: float = 0.0  # time of the last read, or of the opening
        self.is_closed: bool = False
        self.retiring: bool = False  # it takes no more exchanges, and closes when it is idle

    # --- implemented by subclasses ---

    def serve(self, exchange: PodUser) -> PodStream:
        """Serve this exchange; the connection must have capacity. The caller calls `connected` of the exchange."""
        raise NotImplementedError

    def cut(self) -> None:
        """Close at once, without reporting it to the exchanges."""
        raise NotImplementedError

    def _parse_on(self) -> bool:
        """Parse the next share of the last read; return False if all of it has been parsed."""
        raise NotImplementedError

    # --- the pool's side ---

    def watch(self) -> None:
        """Detect a pod that has disappeared without closing the connection (`transport.enable_keepalive`)."""
        if self._transport is not None:
            enable_keepalive(self._transport)

    def close(self) -> None:
        """Close a connection that carries nothing, in order."""
        if not self.is_closed:
            self._mark_and_report_closed()
            self._close_in_time()

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
        """Record a read of `count` bytes; return the time."""
        if self.is_new:
            self.is_new = False
            self._owner.answered(self)
        now_s = self.last_read_s = self._now()
        self._reading.took(count)
        return now_s

    def _parse_all(self) -> None:
        """Parse the rest of the last read, in as many shares as necessary, because no more data arrives."""
        while self._parse_on():
            pass

    def _parse_last_reads(self) -> bool:
        """Parse the data that the kernel still holds; return True if there was any."""
        has_data = False
        for data in last_reads(self._transport):
            has_data = True
            self.data_received(data)
            self._parse_all()
        return has_data

    def _mark_and_report_closed(self) -> None:
        self.is_closed = True
        self._owner.closed(self)

    def _close_in_time(self) -> None:
        """Close after all written data has been sent, for which the pod has a time limit."""
        writer = self._writer
        transport = self._transport
        if writer is not None and transport is not None:
            writer.close()
            if transport.get_write_buffer_size() > 0:
                self._owner.limit_close(transport)


@mypyc_attr(allow_interpreted_subclasses=True)  # because tests derive from the pool
class ConnectionOwner:
    """The interface of the pool to its connections, which report their events to it."""

    def opened(self, connection: PooledConnection) -> None:
        """Handle a successful dial."""
        raise NotImplementedError

    def answered(self, connection: PooledConnection) -> None:
        """Handle the first byte of the first response."""
        raise NotImplementedError

    def finished(self, connection: PooledConnection, reusable: bool) -> None:
        """Use or close a connection after a complete response; if `reusable`, it may take another request."""
        raise NotImplementedError

    def room_changed(self, connection: PooledConnection) -> None:
        """Handle a change of how many requests the connection takes, although none has ended."""

    def wrong_protocol(self, connection: PooledConnection, words: str) -> None:
        """Handle a pod that does not speak the protocol of this pool."""

    def pod_closed(self, connection: PooledConnection) -> None:
        """Handle a connection that the pod has closed during a request."""
        raise NotImplementedError

    def closed(self, connection: PooledConnection) -> None:
        """Handle the end of a connection, whatever the cause; called once."""
        raise NotImplementedError

    def close_idle_one(self) -> bool:
        """Close the connection that has been idle longest; return False if none is idle."""
        raise NotImplementedError

    def limit_close(self, transport: Transport) -> None:
        """Limit the time for which a closing connection may send its unsent data; then abort it."""
        raise NotImplementedError
