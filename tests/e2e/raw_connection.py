"""A connected socket that is read through a file: what both sides of a conversation, client and pod, do with theirs."""

from __future__ import annotations

import socket
import struct
from io import BufferedReader


class RawConnection:
    """Sends, and ends in the ways that there are."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self._file: BufferedReader = sock.makefile("rb")

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def is_closed(self) -> bool:
        """The other side closes, in whatever way, without another byte."""
        try:
            return self._file.read(1) == b""
        except ConnectionError:
            return True

    def reset(self) -> None:
        """Close so that the other side gets a reset."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def close(self) -> None:
        self._file.close()
        self.socket.close()
