"""What we use of an event loop's stream transport.

A protocol of its own, since uvloop's transports do not derive from `asyncio.Transport`.
"""

from __future__ import annotations

import struct
from socket import SO_LINGER, SOL_SOCKET
from typing import Any, Final, Protocol

_NO_LINGERING: Final = struct.pack("ii", 1, 0)


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

    def get_extra_info(self, name: str) -> Any: ...


def reset(transport: Transport) -> None:
    """Abort so that the peer notices at once, and takes what it has got for cut short.

    An orderly close would stand in line behind data that a peer does not read, and would look like the end of a body
    that nothing else ends.
    """
    try:
        transport.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_LINGER, _NO_LINGERING)
    except OSError:
        pass  # the peer was faster: the socket is closed already
    transport.abort()
