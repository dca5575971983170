"""Queries of the kernel about sockets (sock_diag(7))."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from typing import Final

# linux/netlink.h, linux/sock_diag.h
_NETLINK_SOCK_DIAG: Final = 4
_SOCK_DIAG_BY_FAMILY: Final = 20
_NLM_F_REQUEST_DUMP: Final = 0x301
_NLMSG_ERROR: Final = 2
_NLMSG_DONE: Final = 3

_HEADER: Final = struct.Struct("=IHHII")
_ANSWER_BYTES: Final = 64 * 1024
_TIMEOUT_S: Final = 0.1  # the kernel answers at once or not at all


def dump(request: bytes) -> Iterator[bytes]:
    """Yield the messages that answer a request, without their headers. Raises OSError if the kernel refuses it."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _NETLINK_SOCK_DIAG) as sock:
        sock.settimeout(_TIMEOUT_S)
        head = _HEADER.pack(_HEADER.size + len(request), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST_DUMP, 1, 0)
        sock.sendto(head + request, (0, 0))
        while True:
            answer = sock.recv(_ANSWER_BYTES)
            position = 0
            while position + _HEADER.size <= len(answer):
                length, kind, _, _, _ = _HEADER.unpack_from(answer, position)
                if kind == _NLMSG_DONE:
                    return
                if kind == _NLMSG_ERROR or length < _HEADER.size:
                    raise OSError("the kernel does not list its listening sockets")
                yield answer[position + _HEADER.size : position + length]
                position += (length + 3) & ~3
