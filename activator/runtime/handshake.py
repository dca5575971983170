"""TLS on a connection that stands: the handshake as a step of its own, the same for clients and for pods.

Rules
  1. The descriptor belongs to the loop's transport from the moment in which it is opened or accepted until the loop
     closes it. No Python socket refers to it, so no other code can close it, or close its number after it was reused.
  2. A caller that waits for a handshake holds the bare connection: it is counted from its first moment, and `abort`
     ends it.
  3. A handshake ends in exactly one call of `on_done`: with a transport that can be used, or with the reason why there
     is none. It has a time limit, so that it always ends.
  4. `loop.start_tls` is entered within `connection_made`. In a task of its own it would miss what the peer sends until
     the next turn of the loop, and it would start even on a connection that is lost until then.
"""

from __future__ import annotations

import ssl
from asyncio import AbstractEventLoop, Future
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from typing import Any, Final

from activator.runtime.client_hello import ON_ALERT
from activator.runtime.transport import Transport

TLS_HANDSHAKE_TIMEOUT_S: Final = 10.0


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
        copy_context().run(self._begin, transport)

    def _begin(self, transport: Transport) -> None:
        ON_ALERT.set(self._alert_on_its_way)
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
        if self._early:
            self._loop.call_soon(self._feed)  # behind the beginning of TLS, and before anything more is read

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

    def _feed(self) -> None:
        """What came before TLS was begun is its beginning (BufferedProtocol, as a transport delivers it)."""
        early, self._early = self._early, b""
        bare: Any = self.bare
        if bare is None or bare.is_closing():
            return
        protocol = bare.get_protocol()
        while early:
            buffer = protocol.get_buffer(len(early))
            count = min(len(buffer), len(early))
            buffer[:count] = early[:count]
            protocol.buffer_updated(count)
            early = early[count:]

    def _alert_on_its_way(self) -> None:
        """The handshake has failed: close when the alert is sent."""
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
        if secured is not None and secured.is_closing():
            secured = None  # aborted, or closed by the peer, in the moment in which it was ready
            error = HandshakeLostError("the connection was closed during the TLS handshake")
        self._on_done(self, secured, error)
        self.bare = None
