"""One end of a stream between two processes of the program, which carries frames of bytes, with descriptors, in order.

Rules
  1. Frames that are sent in one turn of the loop are written together at its end.
  2. A frame consists of its length, the number of its descriptors, and the bytes. Descriptors are sent with the first
     byte of their frame (SCM_RIGHTS), and closed after they were sent; the receiver owns those that it gets. An end
     without `takes_descriptors` does not read them, and the kernel drops them.
  3. A turn reads at most READ_BYTES, into a shared buffer: the data passed to `received` are valid until it returns.
     The backlog of sent frames is bounded: a peer that does not read loses the connection.
  4. `closed` is called once, when the other end is closed or an error occurs; not after `close`. Frames that the other
     process had sent before it closed its end are received first, also if sending fails in the meantime. After a reset
     uvloop reports the socket once and never again (libuv stops to watch it), even if not all data has been read:
     so the error of the socket is checked RESET_CHECK_S after data, and the rest is read in the next turns.
  5. Between machines a frame is signed (`seal`), and has no descriptors. A wrong signature ends the connection. Such a
     connection has lower limits: SEALED_BYTES_MAX for a received frame and for the backlog.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

WIRE_BACKLOG_BYTES_MAX: Final = 256 * 1024 * 1024  # sent frames that the other process has not read
WIRE_FRAME_BYTES_MAX: Final = 256 * 1024 * 1024  # larger than any table
SEALED_BYTES_MAX: Final = 32 * 1024 * 1024
READ_BYTES: Final = 64 * 1024
RESET_CHECK_S: Final = 1.0  # at most so often per connection
DESCRIPTORS_AT_ONCE_MAX: Final = 64  # in one frame; the kernel takes 253

CODE_BYTES: Final = 16  # the length of a signature

_HEADER: Final = struct.Struct("<II")
_RESETS: Final = struct.pack("ii", 1, 0)  # SO_LINGER: drop unsent data, and send a reset
_ANCILLARY_BYTES: Final = socket.CMSG_LEN(DESCRIPTORS_AT_ONCE_MAX * 4)
_read = bytearray(READ_BYTES)  # shared by all wires, because allocating it takes 18 us and a read 3 us
_view = memoryview(_read)

Received = Callable[[memoryview, list[int]], None]


class FrameSeal(Protocol):
    """The signatures of frames, each valid for one position in their order (members/handshake.py)."""

    def code(self, data: bytes) -> bytes:
        """Return the signature of the next frame to send."""

    def fits(self, data: memoryview, code: memoryview) -> bool:
        """Return True if `code` is the signature of the next received frame."""


class Wire:
    """One end of a stream; `received(data, descriptors)` is called for each frame, `failed` with its exceptions."""

    def __init__(
        self,
        sock: socket.socket,
        received: Received,
        closed: Callable[[], None],
        failed: Callable[[Exception], None],
        seal: FrameSeal | None = None,
        takes_descriptors: bool = True,
    ) -> None:
        self._seal = seal
        self._takes_descriptors = takes_descriptors and seal is None
        self._code_bytes = 0 if seal is None else CODE_BYTES
        self._backlog_bytes_max = WIRE_BACKLOG_BYTES_MAX if seal is None else SEALED_BYTES_MAX
        self._frame_bytes_max = WIRE_FRAME_BYTES_MAX if seal is None else SEALED_BYTES_MAX
        self._loop = asyncio.get_running_loop()
        self._socket = sock
        self._received = received
        self._closed = closed
        self._report_error = failed
        self._incoming = bytearray()
        self._descriptors: deque[int] = deque()
        self._outgoing: deque[tuple[memoryview, list[int]]] = deque()
        self._is_writing = False  # waits until the socket is writable
        self._is_flushing = False  # a flush is scheduled for the end of this turn
        self.is_open = True
        self._is_reading_rest = False  # `_read_rest` is scheduled
        self._check_timer: asyncio.TimerHandle | None = None  # the next check, after data, for a reset
        self._is_peer_closed = False  # the other end is closed, but its last frames may not be read yet
        self.has_ended = False  # the other end was closed orderly, by its process or by the process's end
        self.backlog_bytes = 0
        sock.setblocking(False)
        self._loop.add_reader(sock.fileno(), self._readable)

    def send(self, data: bytes, descriptors: list[int] | None = None) -> None:
        """Send one frame at the end of this turn. The descriptors are closed after they were sent, or on failure."""
        passed = descriptors or []
        assert len(passed) <= DESCRIPTORS_AT_ONCE_MAX, "too many descriptors for one frame"
        if not self.is_open or self._is_peer_closed:
            _close_all(passed)
            return
        frame = _HEADER.pack(len(data), len(passed)) + data
        if self._seal is not None:
            frame += self._seal.code(data)
        self.backlog_bytes += len(frame)
        self._outgoing.append((memoryview(frame), passed))
        if self.backlog_bytes > self._backlog_bytes_max:
            self._disconnect()
        elif not self._is_writing and not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self._flush_soon)

    def send_now(self, data: bytes, descriptors: list[int] | None = None) -> None:
        """Send one frame at once."""
        self.send(data, descriptors)
        if not self._is_writing:
            self._flush()

    def flush(self) -> None:
        """Send as much as possible now."""
        if not self._is_writing:
            self._flush()

    def reset(self) -> None:
        """Close so that the other side sees a failure instead of an end."""
        if self.is_open:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESETS)
            self.close()

    def close(self) -> None:
        """Close, and drop unsent frames."""
        if not self.is_open:
            return
        self.is_open = False
        if self._check_timer is not None:
            self._check_timer.cancel()
        self._loop.remove_reader(self._socket.fileno())
        if self._is_writing:
            self._loop.remove_writer(self._socket.fileno())
        self._socket.close()
        self._drop_unsent()
        _close_all(self._descriptors)
        self._descriptors.clear()

    # --- internals ---

    def _drop_unsent(self) -> None:
        """Drop the frames to send, now and later: the other end is closed."""
        self._is_peer_closed = True
        for _, descriptors in self._outgoing:
            _close_all(descriptors)
        self._outgoing.clear()
        self.backlog_bytes = 0

    def _disconnect(self) -> None:
        """Reset the connection, and call `closed` in the next turn."""
        if self.is_open:
            self.reset()
            self._loop.call_soon(self._closed)

    def _readable(self) -> None:
        """Read once, and deliver the complete frames."""
        try:
            size = self._read_with_descriptors() if self._takes_descriptors else self._socket.recv_into(_read)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._disconnect()
            return
        if size == 0:
            self.has_ended = not self._is_peer_closed  # else a failure was seen before
            self._disconnect()
        elif self._incoming:
            whole = self._incoming
            whole += _view[:size]
            with memoryview(whole) as view:
                position = self._take_frames(view)
            if position:
                self._incoming = whole[position:]
        else:
            position = self._take_frames(_view[:size])
            self._incoming += _view[position:size]
        if self.is_open and size:
            if self._is_peer_closed:
                self._read_rest_soon()
            elif self._check_timer is None:
                self._check_timer = self._loop.call_later(RESET_CHECK_S, self._check_reset)

    def _check_reset(self) -> None:
        """Read the rest if the other end has reset the connection."""
        self._check_timer = None
        if self.is_open and self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._drop_unsent()
            self._read_rest_soon()

    def _read_rest_soon(self) -> None:
        """Read the rest in the next turns, without a report of the loop."""
        if not self._is_reading_rest:
            self._is_reading_rest = True
            self._loop.call_soon(self._read_rest)

    def _read_rest(self) -> None:
        self._is_reading_rest = False
        if self.is_open:
            self._readable()

    def _read_with_descriptors(self) -> int:
        """Read into the shared buffer, and keep received descriptors. Return the number of bytes."""
        size, ancillary, _, _ = self._socket.recvmsg_into([_read], _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC)
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                self._descriptors.extend(struct.unpack(f"={len(data) // 4}i", data[: len(data) // 4 * 4]))
        return size

    def _take_frames(self, incoming: memoryview) -> int:
        """Deliver the complete frames. Return the position behind them."""
        position = 0
        while self.is_open and len(incoming) - position >= _HEADER.size:
            length, count = _HEADER.unpack_from(incoming, position)
            begin = position + _HEADER.size
            if length > self._frame_bytes_max or count > DESCRIPTORS_AT_ONCE_MAX:
                self._report_error(ValueError(f"a frame of {length} bytes and {count} descriptors"))
                self._disconnect()
                break
            if len(incoming) - begin < length + self._code_bytes:
                break
            end = begin + length
            position = end + self._code_bytes
            if self._seal is not None and (count or not self._seal.fits(incoming[begin:end], incoming[end:position])):
                self._report_error(ValueError("a frame that the other side has not signed"))
                self._disconnect()
                break
            if len(self._descriptors) < count:
                self._report_error(ValueError("a frame without its descriptors"))
                self._disconnect()
                break
            descriptors = [self._descriptors.popleft() for _ in range(count)]
            try:
                self._received(incoming[begin:end], descriptors)
            except Exception as error:
                self._report_error(error)
        return position

    def _flush_soon(self) -> None:
        self._is_flushing = False
        if not self._is_writing:
            self._flush()

    def _flush(self) -> None:
        while self.is_open and self._outgoing:
            data, descriptors = self._outgoing[0]
            try:
                if descriptors:
                    sent = socket.send_fds(self._socket, [data], descriptors)
                else:
                    sent = self._socket.send(data)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                self._drop_unsent()  # the other end is closed: its last frames are still read
                self._read_rest_soon()
                break
            _close_all(descriptors)
            self.backlog_bytes -= sent
            if sent < len(data):
                self._outgoing[0] = (data[sent:], [])
                break
            self._outgoing.popleft()
        if self.is_open and bool(self._outgoing) != self._is_writing:
            self._is_writing = not self._is_writing
            if self._is_writing:
                self._loop.add_writer(self._socket.fileno(), self._flush)
            else:
                self._loop.remove_writer(self._socket.fileno())


def pair() -> tuple[socket.socket, socket.socket]:
    """Return two connected sockets."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)


def _close_all(descriptors: list[int] | deque[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
