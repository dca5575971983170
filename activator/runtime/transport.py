"""What we use of an event loop's stream transport.

A protocol of its own, since uvloop's transports do not derive from `asyncio.Transport`.
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

WRITE_HIGH_WATER_BYTES: Final = 64 * KIB  # of each transport; above it the sender is paused
WRITE_LOW_WATER_BYTES: Final = 16 * KIB
# Over TLS: a write goes to the library in pieces, since its buffer keeps the size of the largest one. Beside what is
# unsent, a stalled connection then takes up to this: TLS itself, its read buffer, and what has been encrypted.
TLS_PIECE_BYTES: Final = 32 * KIB
TLS_BUFFERS_BYTES: Final = 384 * KIB
FLUSH_S: Final = 30.0  # in which a connection that is being closed must take some of what was written to it

KEEPALIVE_S: Final = 1  # between two questions to a peer that may be gone …
KEEPALIVE_PROBES: Final = 3  # … which is given up after so many without an answer

_ACKNOWLEDGED_AT: Final = 120  # of tcpi_bytes_acked in a struct tcp_info (linux/tcp.h)
_NO_LINGERING: Final = struct.pack("ii", 1, 0)
_NOWHERE: Final = struct.pack("=H14x", AF_UNSPEC)  # a struct sockaddr; Python's own `connect` does not take it
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
    """A number that grows with what the peer takes of what was written; good only to be compared with an earlier one.

    The size of the transport's buffer alone does not do: the kernel has megabytes in front of it, and lets more in only
    when a third of them is free. A peer that takes 10 KB a second would not be seen to take anything for two minutes.
    """
    acknowledged = 0
    sock = transport.get_extra_info("socket")
    if sock is not None:
        try:
            info: bytes = sock.getsockopt(IPPROTO_TCP, TCP_INFO, _ACKNOWLEDGED_AT + 8)
        except OSError:
            info = b""  # a Unix socket, or it is closed already
        if len(info) >= _ACKNOWLEDGED_AT + 8:
            acknowledged = int.from_bytes(info[_ACKNOWLEDGED_AT:], sys.byteorder)
        elif sock.family == AF_UNIX:
            acknowledged = -_unread_bytes(sock.fileno())
    return acknowledged - transport.get_write_buffer_size()


def is_unix_socket(transport: Transport) -> bool:
    sock = transport.get_extra_info("socket")
    return sock is not None and sock.family == AF_UNIX


def unix_socket_state(transport: Transport) -> int:
    """The state of a Unix socket in the numbers of TCP's: 7: closed, 8: the peer has ended its side; 0: neither.

    Here the kernel tells one from the other: the peer of a socket that is closed takes nothing any more.
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
    """What the peer of a Unix socket has not read yet, as the kernel counts it."""
    try:
        return int.from_bytes(fcntl.ioctl(fd, termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    except OSError:
        return 0


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
    waits behind what has not been read. A TCP socket that is connected to no address is reset at once (connect(2)). A
    Unix socket has no reset; but once it is shut down its peer sees that at once, and can send nothing any more.
    """
    sock = transport.get_extra_info("socket")
    if sock is not None:
        fd = sock.fileno()
        if fd >= 0 and _LIBC.connect(fd, _NOWHERE, len(_NOWHERE)) == 0:
            transport.abort()
            return
        if fd >= 0 and sock.family == AF_UNIX:
            _LIBC.shutdown(fd, socket.SHUT_RDWR)
    reset(transport)  # the peer was faster, or it is no TCP socket


def shut(transport: Transport) -> None:
    """Shut the socket down before this returns: the peer is sent the end, whenever the event loop closes the socket."""
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.fileno() >= 0:
        _LIBC.shutdown(sock.fileno(), socket.SHUT_RDWR)


def watch(transport: Transport) -> None:
    """From now on, notice within some seconds where the peer is gone and no end of the connection has come from it.

    The kernel asks (TCP keepalive). A host that has the peer's address now answers with a reset, and nobody does where
    there is none; a peer that is there answers, however long its program takes.
    """
    sock = transport.get_extra_info("socket")
    if sock is None or sock.fileno() < 0:
        return
    try:
        sock.setsockopt(SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE.items():
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
    except OSError:
        pass  # it is closed already, or no TCP socket
