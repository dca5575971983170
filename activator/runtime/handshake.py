"""The TLS handshake on an established connection, with a client or with a pod.

Rules
  1. The descriptor belongs to the loop's transport from its opening or acceptance until the loop closes it. No Python
     socket refers to it, so no other code can close it, or close its number after it was reused.
  2. A caller that waits for a handshake has the bare connection: it is counted from the start, and `abort` ends it.
  3. A handshake ends with exactly one call of `on_done`: with a usable transport, or with the error. It has a timeout,
     so that it always ends.
  4. A failed handshake of a client ends as soon as the alert was sent (client_hello.py).
  5. `loop.start_tls` is entered within `connection_made`. In a task it would miss the data that arrive before the next
     turn of the loop, and would start even if the connection is lost in between.
"""

from __future__ import annotations

import ssl
from asyncio import AbstractEventLoop, BufferedProtocol, Future
from collections.abc import Callable, Coroutine
from typing import Any, Final

from activator.runtime.client_hello import failures
from activator.runtime.transport import Transport

TLS_HANDSHAKE_TIMEOUT_S: Final = 10.0
HELD_READ_BYTES: Final = 16 * 1024  # the buffer of a read before TLS has begun


class HandshakeLostError(ConnectionResetError):
    """The connection was closed before the handshake was over."""


class Handshake:
    """The asyncio protocol of a connection during its handshake."""

    def __init__(
        self,
        loop: AbstractEventLoop,
        context: ssl.SSLContext,
        server_name: str | None,
        shutdown_timeout_s: float,
        on_done: Callable[[Handshake, Transport | None, Exception | None], None],
        on_connected: Callable[[Handshake], None],
        early: bytes = b"",
    ) -> None:
        """Make a handshake.

        `server_name` is the name of the pod that is dialled, None in the server's role. `on_connected` is called when
        the bare connection has been made. `early` holds the data that were already read from it.
        """
        self._loop = loop
        self._context = context
        self._server_name = server_name
        self._shutdown_timeout_s = shutdown_timeout_s
        self._on_done = on_done
        self._on_connected = on_connected
        self._early = early
        self.bare: Transport | None = None  # the connection beneath TLS
        self._start_tls: Coroutine[Any, Any, Any] | None = None
        self._watch: _FailureWatch | None = None

    def is_under_way(self) -> bool:
        """Return True if the bare connection is established and the handshake has not ended."""
        return self.bare is not None and self._start_tls is not None

    def abort(self) -> None:
        """Close the connection at once; `on_done` is called in a later turn."""
        if self.bare is not None:
            self.bare.abort()

    # --- asyncio protocol ---

    def connection_made(self, transport: Transport) -> None:
        self.bare = transport
        self._on_connected(self)
        if transport.is_closing():  # it was aborted at once
            self._done(None, HandshakeLostError("the connection was refused before the TLS handshake"))
            return
        bare: Any = transport
        protocol: Any = self
        self._start_tls = self._loop.start_tls(
            bare,
            protocol,
            self._context,
            server_side=self._server_name is None,
            server_hostname=self._server_name,
            ssl_handshake_timeout=TLS_HANDSHAKE_TIMEOUT_S,
            ssl_shutdown_timeout=self._shutdown_timeout_s,
        )
        self._step(None)
        if self.is_under_way() and (self._server_name is None or self._early):
            self._watch = _FailureWatch(bare.get_protocol(), self._early, self._handshake_failed)
            bare.set_protocol(self._watch)
            self._loop.call_soon(self._tls_begun)  # after TLS has begun, and before more data are read

    def data_received(self, data: bytes) -> None:
        pass  # no data are delivered until the protocol has been replaced

    def eof_received(self) -> None:
        pass

    def connection_lost(self, error: Exception | None) -> None:
        pass  # `start_tls` reports it

    def pause_writing(self) -> None:
        pass

    def resume_writing(self) -> None:
        pass

    # --- internals ---

    def _tls_begun(self) -> None:
        """Pass the data that were read before TLS had begun to TLS."""
        if self._watch is not None and self.bare is not None and not self.bare.is_closing():
            self._watch.begin()

    def _handshake_failed(self) -> None:
        """Close the connection after the alert was sent."""
        if self.bare is not None:
            self._loop.call_soon(self.bare.close)

    def _step(self, waited_for: Future[Any] | None) -> None:
        """Run `start_tls` up to the next future that it waits for."""
        start_tls = self._start_tls
        if start_tls is None:
            return
        try:
            future: Future[Any] = start_tls.send(None)
        except StopIteration as stop:
            self._done(stop.value, None)
        except Exception as error:
            self._done(None, error)
        else:
            future.add_done_callback(self._step)

    def _done(self, secured: Transport | None, error: Exception | None) -> None:
        self._start_tls = None
        bare: Any = self.bare
        if self._watch is not None and bare is not None and not bare.is_closing():
            bare.set_protocol(self._watch.tls)
        self._watch = None
        if secured is not None and secured.is_closing():
            secured = None  # aborted, or closed by the peer, just when it was ready
            error = HandshakeLostError("the connection was closed during the TLS handshake")
        self._on_done(self, secured, error)
        self.bare = None


class _FailureWatch(BufferedProtocol):
    """A protocol between the transport and `tls`, the loop's own protocol, during a handshake.

    It detects whether the bytes just received make the handshake fail (`failures`). Data that arrive before TLS has
    begun, in the same turn, are buffered behind `early`: otherwise their failure would not be detected.
    """

    def __init__(self, tls: BufferedProtocol, early: bytes, on_failed: Callable[[], None]) -> None:
        self.tls = tls
        self._held = early
        self._on_failed = on_failed
        self._begun = False
        self._buffer = bytearray()

    def begin(self) -> None:
        """Pass the buffered data to TLS, which has begun."""
        self._begun = True
        held, self._held = self._held, b""
        while held:
            buffer: Any = self.tls.get_buffer(len(held))
            count = min(len(buffer), len(held))
            buffer[:count] = held[:count]
            self.buffer_updated(count)
            held = held[count:]

    def get_buffer(self, sizehint: int) -> Any:
        if self._begun:
            return self.tls.get_buffer(sizehint)
        self._buffer = bytearray(HELD_READ_BYTES)
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if not self._begun:
            self._held += self._buffer[:nbytes]
            return
        before = failures.total
        self.tls.buffer_updated(nbytes)
        if failures.total != before:
            self._on_failed()

    def eof_received(self) -> Any:
        return self.tls.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self.tls.connection_lost(exc)

    def pause_writing(self) -> None:
        self.tls.pause_writing()

    def resume_writing(self) -> None:
        self.tls.resume_writing()
