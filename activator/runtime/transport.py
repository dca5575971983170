"""What we use of an event loop's stream transport.

A protocol of its own, since uvloop's transports do not derive from `asyncio.Transport`.
"""

from __future__ import annotations

import ctypes
import struct
from socket import AF_UNSPEC, SO_LINGER, SOL_SOCKET
from typing import Any, Final, Protocol

from activator.runtime.units import KIB

WRITE_HIGH_WATER_BYTES: Final = 64 * KIB  # of each transport; above it the sender is paused
WRITE_LOW_WATER_BYTES: Final = 16 * KIB
FLUSH_S: Final = 30.0  # in which a connection that is being closed must take some of what was written to it

_NO_LINGERING: Final = struct.pack("ii", 1, 0)
_NOWHERE: Final = struct.pack("=H14x", AF_UNSPEC)  # a struct sockaddr; Python's own `connect` does not take it
_LIBC: Final = ctypes.CDLL(None)


class Transport(Protocol):
    def write(self, data: bytes) -> None: ...

    def write_eof(self) -> None: ...

    def can_write_eof(self) -> bool: ...

    def close(self) -> None: ...

    def abort(self) -> None: ...

    def is_closing(self) -> bool: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def set_write_buffer_limits(self, high: int, low: int) -> None: ...

    def get_write_buffer_size(self) -> int: ...

    def set_protocol(self, protocol: Any) -> None: ...

    def get_extra_info(self, name: str) -> Any: ...


def reset(transport: Transport) -> None:
    """Abort so that the peer notices at once, and knows that what it has got is incomplete.

    An orderly close would wait behind data that a peer does not read, and would look like the end of a body
    that nothing else ends.
    """
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.fileno() >= 0:
        try:
            sock.setsockopt(SOL_SOCKET, SO_LINGER, _NO_LINGERING)
        except OSError:
            pass  # the peer was faster: the socket is closed already
    transport.abort()


def cut(transport: Transport) -> None:
    """`reset`, and the peer is sent the reset before this returns.

    An event loop closes sockets at the end of its turn. If the peer's slot were given to another request in this turn,
    that request would arrive first, and the peer would have both. A FIN does not help where the peer reads nothing: it
    waits behind what has not been read. A TCP socket that is connected to no address is reset at once (connect(2)).
    """
    sock = transport.get_extra_info("socket")
    if sock is not None:
        fd = sock.fileno()
        if fd >= 0:
            _LIBC.connect(fd, _NOWHERE, len(_NOWHERE))  # fails where the peer was faster: nothing is left
    transport.abort()
