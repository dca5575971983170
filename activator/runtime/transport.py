"""The interface of an event loop's stream transport, and operations on its socket.

The interface is a Protocol, because uvloop's transports do not derive from `asyncio.Transport`.
"""

from __future__ import annotations

import ctypes
import fcntl
import select
import socket
import struct
import sys
import termios
from socket import AF_UNIX, AF_UNSPEC, IPPROTO_TCP, SO_LINGER, SOL_SOCKET, TCP_INFO
from typing import Any, Final, Protocol

from activator.runtime.units import KIB

WRITE_HIGH_WATER_BYTES: Final = 64 * KIB  # per transport; above it the sender is paused
WRITE_LOW_WATER_BYTES: Final = 16 * KIB
# Data are passed to TLS in pieces, because its buffer keeps the size of the largest write. In addition to unsent data,
# a stalled connection then takes up to TLS_BUFFERS_BYTES: the TLS object, its read buffer, and encrypted data.
TLS_PIECE_BYTES: Final = 32 * KIB
TLS_BUFFERS_BYTES: Final = 384 * KIB
FLUSH_S: Final = 30.0  # the peer of a closing connection must read some data within this time

KEEPALIVE_S: Final = 1  # the interval of TCP keepalive probes
KEEPALIVE_PROBES: Final = 3  # unanswered probes after which the connection is closed

_ACKNOWLEDGED_AT: Final = 120  # the offset of tcpi_bytes_acked in a struct tcp_info (linux/tcp.h)
_NO_LINGERING: Final = struct.pack("ii", 1, 0)
_NOWHERE: Final = struct.pack("=H14x", AF_UNSPEC)  # a struct sockaddr, which Python's `connect` does not accept
_TCP_CLOSE: Final = 7
_TCP_CLOSE_WAIT: Final = 8
_LIBC: Final = ctypes.CDLL(None)
_KEEPALIVE: Final = {
    getattr(socket, name): value  # some systems lack some of them
    for name, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_S),
        ("TCP_KEEPINTVL", KEEPALIVE_S),
        ("TCP_KEEPCNT", KEEPALIVE_PROBES),
    )
    if hasattr(socket, name)
}


class Transport(Protocol):
    """A stream transport of asyncio or uvloop."""

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


def taken_bytes(transport: Transport) -> int:
    """Return a number that grows as the peer receives written data; only differences between numbers are meaningful.

    The size of the transport's buffer is not enough: the kernel buffers megabytes, and accepts more only when a third
    of them is free, so the progress of a peer that reads 10 KB per second would not show for two minutes.
    """
    acknowledged = 0
    sock = transport.get_extra_info("socket")
    if sock is not None:
        try:
            info: bytes = sock.getsockopt(IPPROTO_TCP, TCP_INFO, _ACKNOWLEDGED_AT + 8)
        except OSError:
            info = b""  # a Unix socket, or a closed socket
        if len(info) >= _ACKNOWLEDGED_AT + 8:
            acknowledged = int.from_bytes(info[_ACKNOWLEDGED_AT:], sys.byteorder)
        elif sock.family == AF_UNIX:
            acknowledged = -_unread_bytes(sock.fileno())
    return acknowledged - transport.get_write_buffer_size()


def is_unix_socket(transport: Transport) -> bool:
    sock = transport.get_extra_info("socket")
    return sock is not None and sock.family == AF_UNIX


def unix_socket_state(transport: Transport) -> int:
    """Return the state of a Unix socket as a TCP state: 7: closed, 8: the peer has shut down its side, 0: neither.

    Unlike with TCP, the kernel distinguishes the two: the peer of a closed socket receives nothing any more.
    """
    sock = transport.get_extra_info("socket")
    if sock is None or sock.family != AF_UNIX or sock.fileno() < 0:
        return 0
    poll = select.poll()
    poll.register(sock.fileno(), select.POLLRDHUP)
    events = poll.poll(0)
    if not events:
        return 0
    return _TCP_CLOSE if events[0][1] & (select.POLLHUP | select.POLLERR) else _TCP_CLOSE_WAIT


def _unread_bytes(fd: int) -> int:
    """Return how many bytes the peer of a Unix socket has not read yet, as counted by the kernel."""
    try:
        return int.from_bytes(fcntl.ioctl(fd, termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    except OSError:
        return 0


def reset(transport: Transport) -> None:
    """Abort by a TCP reset, so that the peer notices at once that the data are incomplete.

    An orderly close would be delayed by data that the peer does not read, and would look like the end of a body that is
    delimited by the connection's end.
    """
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.fileno() >= 0:
        try:
            sock.setsockopt(SOL_SOCKET, SO_LINGER, _NO_LINGERING)
        except OSError:
            pass  # the peer has already closed the connection
    transport.abort()


def cut(transport: Transport) -> None:
    """Reset the connection immediately: the RST is sent before this returns.

    An event loop closes sockets at the end of its turn. If the pod's slot were granted to another request in this turn,
    that request would arrive first, and the pod would have both. A FIN does not help if the pod does not read, because
    it waits behind unread data. Connecting a TCP socket to AF_UNSPEC resets it at once (connect(2)). A Unix socket has
    no reset; but after a shutdown its peer sees the end at once, and cannot send any more.
    """
    sock = transport.get_extra_info("socket")
    if sock is not None:
        fd = sock.fileno()
        if fd >= 0 and _LIBC.connect(fd, _NOWHERE, len(_NOWHERE)) == 0:
            transport.abort()
            return
        if fd >= 0 and sock.family == AF_UNIX:
            _LIBC.shutdown(fd, socket.SHUT_RDWR)
    reset(transport)  # the peer has already closed the connection, or it is no TCP socket


def shut(transport: Transport) -> None:
    """Shut down the socket before this returns, so that the peer sees the end before the loop closes the socket."""
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.fileno() >= 0:
        _LIBC.shutdown(sock.fileno(), socket.SHUT_RDWR)


def enable_keepalive(transport: Transport) -> None:
    """Enable TCP keepalive, to detect within seconds that the peer has disappeared without closing the connection.

    Another host with the peer's address answers a probe with a reset, and without such a host there is no answer; the
    kernel of an existing peer answers, however slow its program is.
    """
    sock = transport.get_extra_info("socket")
    if sock is None or sock.fileno() < 0:
        return
    try:
        sock.setsockopt(SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE.items():
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
    except OSError:
        pass  # a closed socket, or no TCP socket
