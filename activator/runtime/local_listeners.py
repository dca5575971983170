"""A query of the kernel whether a program on this machine listens at an address, without a connection to it.

A connection as a probe has side effects: a server that accepts once (`nc -l`) ends after it, and one that handles a
single connection at a time is blocked. The kernel lists its listening sockets (sock_diag(7)); a query takes some 40 us.

Rules
  1. Only loopback addresses are supported, because others may belong to another machine.
  2. The result NO is not certain: a packet filter may redirect the port, which only a connection can show.
  3. If the kernel does not answer, as in some sandboxes, the result is unknown.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from enum import Enum
from typing import Final, NamedTuple

from activator.runtime.netlink import dump

# linux/inet_diag.h
_INODE_AT: Final = 68  # the offset in a struct inet_diag_msg
_INET_DIAG_SKV6ONLY: Final = 11
_TCP_LISTEN: Final = 10

_REQUEST: Final = struct.Struct("=BBBBI")
_ATTRIBUTE: Final = struct.Struct("=HH")
_FIXED_BYTES: Final = 72  # the size of a struct inet_diag_msg

LOOPBACK_4: Final = "127.0.0.1"
LOOPBACK_6: Final = "::1"


class Listening(Enum):
    """The answer to whether a program listens at an address."""

    YES = "yes"
    FULL = "full"  # it listens, but its accept queue is full
    NO = "no"


class _Listener(NamedTuple):
    """A listening socket. `only_ipv6`: it accepts no IPv4 connections."""

    host: str
    only_ipv6: bool
    is_full: bool
    inode: int


def is_loopback(host: str) -> bool:
    return host == LOOPBACK_6 or host.startswith("127.")


def listening(host: str, port: int) -> Listening | None:
    """Return whether a program listens at a loopback address of this machine; None if it is unknown."""
    try:
        found = [*_listeners(socket.AF_INET, port), *_listeners(socket.AF_INET6, port)]
    except OSError:
        return None
    at_host = [listener for listener in found if _accepts(listener, host)]
    if not at_host:
        return Listening.NO
    return Listening.FULL if all(listener.is_full for listener in at_host) else Listening.YES


def loopback_inodes(port: int) -> frozenset[int] | None:
    """Return the inodes of the sockets that listen on this port at 127.0.0.1 or ::1; None if they are unknown."""
    try:
        found = [*_listeners(socket.AF_INET, port), *_listeners(socket.AF_INET6, port)]
    except OSError:
        return None
    return frozenset(one.inode for one in found if _accepts(one, LOOPBACK_4) or _accepts(one, LOOPBACK_6))


def _accepts(listener: _Listener, host: str) -> bool:
    """Return True if the socket accepts connections to this loopback address."""
    if listener.host in {host, f"::ffff:{host}"}:
        return True
    if ":" in host:
        return listener.host == "::"
    return listener.host == "0.0.0.0" or (listener.host == "::" and not listener.only_ipv6)


def _listeners(family: int, port: int) -> Iterator[_Listener]:
    """Yield the listening sockets of one port. Raises OSError if the kernel does not answer."""
    request = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, 0, 1 << _TCP_LISTEN)
    request += struct.pack(">HH", port, 0) + bytes(36) + b"\xff" * 8  # any address, interface and cookie
    for message in dump(request):
        yield _listener(family, message)


def _listener(family: int, message: bytes) -> _Listener:
    """Return the listening socket that a message (a struct inet_diag_msg with attributes) describes."""
    host = socket.inet_ntop(family, message[8:12] if family == socket.AF_INET else message[8:24])
    waiting, backlog = struct.unpack_from("=II", message, 56)
    only_ipv6 = False
    position = _FIXED_BYTES
    while position + _ATTRIBUTE.size <= len(message):
        length, kind = _ATTRIBUTE.unpack_from(message, position)
        if kind == _INET_DIAG_SKV6ONLY:
            only_ipv6 = message[position + _ATTRIBUTE.size] != 0
        position += max((length + 3) & ~3, _ATTRIBUTE.size)
    (inode,) = struct.unpack_from("=I", message, _INODE_AT)
    return _Listener(host, only_ipv6, waiting > backlog, inode)
