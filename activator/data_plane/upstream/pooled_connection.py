"""A connection to a pod and the pool that it belongs to, as they see each other, whatever is spoken on it."""

from __future__ import annotations

from mypy_extensions import mypyc_attr, trait

from activator.data_plane.exchange import PodStream, PodUser
from activator.runtime.transport import Transport


@trait
class PooledConnection:
    """A connection, as its pool sees it; an asyncio protocol by its other methods.

    `bare`: over TLS the connection beneath it, until `connection_made`. `fresh`: no byte of an answer has ever come.
    `last_read_s`: when it last read something, or was opened. `retiring`: it takes no more exchanges.
    """

    bare: Transport | None
    fresh: bool
    last_read_s: float
    is_closed: bool
    retiring: bool

    def connection_made(self, transport: Transport) -> None:
        raise NotImplementedError

    def serve(self, exchange: PodUser) -> PodStream:
        """Carry this exchange from now on; there must be room. The caller says so to the exchange."""
        raise NotImplementedError

    def watch(self) -> None:
        """Notice where the pod is gone without a word (`transport.watch`)."""
        raise NotImplementedError

    def close(self) -> None:
        """Close in order; for a connection that carries nothing."""
        raise NotImplementedError

    def cut(self) -> None:
        """Close at once, whatever it carries; nobody is told."""
        raise NotImplementedError


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
        """It may take more requests than before, or none any more, though none has ended."""

    def wrong_protocol(self, connection: PooledConnection, words: str) -> None:
        """The pod does not speak the protocol that it is said to speak."""

    def cut(self, connection: PooledConnection) -> None:
        """The pod has closed it under a request."""
        raise NotImplementedError

    def closed(self, connection: PooledConnection) -> None:
        """The connection is gone, for whatever reason; said once."""
        raise NotImplementedError

    def close_idle_one(self) -> bool:
        """Close the connection that has been idle the longest; False where none is."""
        raise NotImplementedError

    def leaving(self, transport: Transport) -> None:
        """It is being closed, and something is still to be sent: the pod must take it in time."""
        raise NotImplementedError
