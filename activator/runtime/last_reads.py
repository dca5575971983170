"""Reading of the data that a peer sent before a write to it failed.

A server may respond to a request without reading all of it, and close the connection. The next write then fails, and
the loop reports the connection as lost without having read the response, which is still in the kernel.
"""

from __future__ import annotations

import os
from asyncio import BufferedProtocol
from collections.abc import Iterator
from typing import Any, Final

from activator.runtime.transport import Transport
from activator.runtime.units import KIB, MIB

LAST_READ_BYTES_MAX: Final = 1 * MIB  # per lost connection
_READ_BYTES: Final = 64 * KIB


def last_reads(transport: Transport | None) -> Iterator[bytes]:
    """Yield the data that the kernel still holds for a connection. Must be called within its `connection_lost`."""
    sock = None if transport is None else transport.get_extra_info("socket")
    fd = -1 if sock is None else sock.fileno()
    left = LAST_READ_BYTES_MAX if fd >= 0 else 0
    while left > 0:
        try:
            data = os.read(fd, _READ_BYTES)
        except OSError:  # no data, or a reset of the peer
            return
        if not data:
            return
        left -= len(data)
        yield data


def keep_last_reads(bare: Transport | None) -> None:
    """Pass the bytes that the kernel still holds to the TLS above `bare` before its `connection_lost`."""
    transport: Any = bare
    if transport is not None and not transport.is_closing():
        tls = transport.get_protocol()
        if hasattr(tls, "get_buffer"):  # uvloop's class does not derive from BufferedProtocol
            transport.set_protocol(_LastReads(tls, transport))


class _LastReads(BufferedProtocol):
    """A wrapper of the loop's TLS protocol that replaces only `connection_lost`."""

    def __init__(self, tls: BufferedProtocol, transport: Transport) -> None:
        # Attributes instead of methods, so that reads call the loop's protocol directly.
        self.get_buffer = tls.get_buffer  # type: ignore[method-assign]
        self.buffer_updated = tls.buffer_updated  # type: ignore[method-assign]
        self.eof_received = tls.eof_received  # type: ignore[method-assign]
        self.pause_writing = tls.pause_writing  # type: ignore[method-assign]
        self.resume_writing = tls.resume_writing  # type: ignore[method-assign]
        self._tls = tls
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            for data in last_reads(self._transport):
                rest = data
                while rest:
                    buffer: Any = self._tls.get_buffer(len(rest))
                    count = min(len(buffer), len(rest))
                    buffer[:count] = rest[:count]
                    self._tls.buffer_updated(count)
                    rest = rest[count:]
        self._tls.connection_lost(exc)
