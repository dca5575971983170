"""A connected socket that is read through a file: what both sides of a conversation, client and pod, do with theirs."""

from __future__ import annotations

import errno
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

    def end_sending(self) -> None:
        """The other side gets an end of file, and can go on sending.

        ConnectionResetError: it had reset the connection before, of which the kernel only says that it is "not
        connected" (ENOTCONN, a plain OSError).
        """
        try:
            self.socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            if error.errno != errno.ENOTCONN:
                raise
            raise ConnectionResetError(*error.args) from error

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
