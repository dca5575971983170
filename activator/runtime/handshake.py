"""TLS on a connection that stands: the handshake as a step of its own, the same for clients and for pods.

Rules
  1. The descriptor belongs to the loop's transport from the moment in which it is opened or accepted until the loop
     closes it. No Python socket refers to it, so no other code can close it, or close its number after it was reused.
  2. A caller that waits for a handshake holds the bare connection: it is counted from its first moment, and `abort`
     ends it.
  3. A handshake ends in exactly one call of `on_done`: with a transport that can be used, or with the reason why there
     is none. It has a time limit, so that it always ends.
  4. A handshake of a client that fails ends at once, when its alert is on its way (client_hello.py).
  5. `loop.start_tls` is entered within `connection_made`. In a task of its own it would miss what the peer sends until
     the next turn of the loop, and it would start even on a connection that is lost until then.
"""

from __future__ import annotations

import ssl
from asyncio import AbstractEventLoop, BufferedProtocol, Future
from collections.abc import Callable, Coroutine
from typing import Any, Final

from activator.runtime.client_hello import failures
from activator.runtime.transport import Transport

TLS_HANDSHAKE_TIMEOUT_S: Final = 10.0
HELD_READ_BYTES: Final = 16 * 1024  # a read before TLS has begun


class HandshakeLostError(ConnectionResetError):
    """The connection was closed before the handshake was over."""


class Handshake:
    """An asyncio protocol by its methods, until TLS stands. `on_connected`: the bare connection has been made."""

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
        """`server_name`: of the pod that is dialled; None: we are the server. `early`: what has been read already."""
        self._loop = loop
        self._context = context
        self._server_name = server_name
        self._shutdown_timeout_s = shutdown_timeout_s
        self._on_done = on_done
        self._on_connected = on_connected
        self._early = early
        self.bare: Transport | None = None  # the connection beneath TLS
        self._upgrade: Coroutine[Any, Any, Any] | None = None
        self._watch: _Watch | None = None

    def stands(self) -> bool:
        """The bare connection stands, and the handshake is not over."""
        return self.bare is not None and self._upgrade is not None

    def abort(self) -> None:
        """Close the connection at once; `on_done` is called in a later turn."""
        if self.bare is not None:
            self.bare.abort()

    # --- asyncio protocol ---

    def connection_made(self, transport: Transport) -> None:
        self.bare = transport
        self._on_connected(self)
        bare: Any = transport
        protocol: Any = self
        self._upgrade = self._loop.start_tls(
            bare,
            protocol,
            self._context,
            server_side=self._server_name is None,
            server_hostname=self._server_name,
            ssl_handshake_timeout=TLS_HANDSHAKE_TIMEOUT_S,
            ssl_shutdown_timeout=self._shutdown_timeout_s,
        )
        self._step(None)
        if self.stands() and (self._server_name is None or self._early):
            self._watch = _Watch(bare.get_protocol(), self._early, self._failed)
            bare.set_protocol(self._watch)
            self._loop.call_soon(self._tls_begun)  # behind the beginning of TLS, and before anything more is read

    def data_received(self, data: bytes) -> None:
        pass  # nothing is delivered before the protocol is another one

    def eof_received(self) -> None:
        pass

    def connection_lost(self, error: Exception | None) -> None:
        pass  # `start_tls` reports it

    def pause_writing(self) -> None:
        pass

    def resume_writing(self) -> None:
        pass

    # --- within ---

    def _tls_begun(self) -> None:
        if self._watch is not None and self.bare is not None and not self.bare.is_closing():
            self._watch.begin()

    def _failed(self) -> None:
        """Close when the alert is sent."""
        if self.bare is not None:
            self._loop.call_soon(self.bare.close)

    def _step(self, waited_for: Future[Any] | None) -> None:
        """Run `start_tls` up to the next future that it waits for."""
        upgrade = self._upgrade
        if upgrade is None:
            return
        try:
            future: Future[Any] = upgrade.send(None)
        except StopIteration as stop:
            self._done(stop.value, None)
        except Exception as error:
            self._done(None, error)
        else:
            future.add_done_callback(self._step)

    def _done(self, secured: Transport | None, error: Exception | None) -> None:
        self._upgrade = None
        bare: Any = self.bare
        if self._watch is not None and bare is not None and not bare.is_closing():
            bare.set_protocol(self._watch.tls)
        self._watch = None
        if secured is not None and secured.is_closing():
            secured = None  # aborted, or closed by the peer, in the moment in which it was ready
            error = HandshakeLostError("the connection was closed during the TLS handshake")
        self._on_done(self, secured, error)
        self.bare = None


class _Watch(BufferedProtocol):
    """Between the transport and `tls`, the loop's own protocol, during a handshake.

    It sees whether the handshake fails by the bytes that came just now (`failures`). What comes before TLS has begun,
    in the same turn, is held back until then, behind `early`: else it would fail where nobody looks.
    """

    def __init__(self, tls: BufferedProtocol, early: bytes, on_failed: Callable[[], None]) -> None:
        self.tls = tls
        self._held = early
        self._on_failed = on_failed
        self._begun = False
        self._buffer = bytearray()

    def begin(self) -> None:
        """TLS has begun."""
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
