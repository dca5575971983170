"""A transport that writes down what is done to it; how much the peer takes is the test's affair."""

from __future__ import annotations

import socket
from typing import Any


class WrittenTransport:
    """What is written counts as sent while `takes`; otherwise it stays in the buffer."""

    def __init__(self, half_closes: bool = True) -> None:
        self.takes = True
        self.sent = b""
        self.buffer = b""
        self.eof = False
        self.closed = False
        self.aborted = False
        self.paused = False
        self.tcp_state = 1  # as the kernel numbers them: established
        self._half_closes = half_closes

    def is_aborted(self) -> bool:
        """A method, since mypy takes what was asserted of an attribute to stay so."""
        return self.aborted

    def is_paused(self) -> bool:
        return self.paused

    def is_closed(self) -> bool:
        return self.closed

    def take(self, count: int) -> None:
        """The peer reads."""
        self.sent += self.buffer[:count]
        self.buffer = self.buffer[count:]

    # --- Transport ---

    def write(self, data: bytes) -> None:
        assert not self.eof and not self.aborted
        if self.takes:
            self.sent += data
        else:
            self.buffer += data

    def write_eof(self) -> None:
        assert self._half_closes
        self.eof = True

    def can_write_eof(self) -> bool:
        return self._half_closes

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = True

    def is_closing(self) -> bool:
        return self.closed or self.aborted

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return len(self.buffer)

    def set_protocol(self, protocol: Any) -> None:
        pass

    def get_extra_info(self, name: str) -> Any:
        return _Socket(self) if name == "socket" else None


class _Socket:
    family = socket.AF_INET

    def __init__(self, transport: WrittenTransport) -> None:
        self._transport = transport

    def fileno(self) -> int:
        return -1

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        assert (level, option) == (6, 11) and size > 0  # TCP_INFO, of which there is no more than the state
        return bytes([self._transport.tcp_state])
