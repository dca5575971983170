"""A query of the kernel whether a program listens on a Unix socket, without a connection to it.

The rules of `local_listeners.py` apply. The kernel reports the inode of a listening socket's file, so a program that
has bound a relative path, or sees the file under another name, is found as well. It also reports the path that was
bound, which is needed for file systems that show programs other inode numbers than the kernel's (btrfs, overlayfs).
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from typing import Final

from activator.runtime.local_listeners import Listening
from activator.runtime.netlink import dump

# linux/unix_diag.h
_STATES: Final = 1 << 10  # TCP_LISTEN, which the kernel uses for all families
_SHOW: Final = 0x01 | 0x02 | 0x10  # UDIAG_SHOW_NAME, UDIAG_SHOW_VFS, UDIAG_SHOW_RQLEN
_UNIX_DIAG_NAME: Final = 0
_UNIX_DIAG_VFS: Final = 1
_UNIX_DIAG_RQLEN: Final = 4
_REQUEST: Final = struct.Struct("=BBHIIIII")
_FIXED_BYTES: Final = 16  # the size of a struct unix_diag_msg
_ATTRIBUTE: Final = struct.Struct("=HH")
_PAIR: Final = struct.Struct("=II")
_INODE_MASK: Final = 0xFFFF_FFFF  # the kernel reports 32 bits of an inode number


def listening_at(path: str) -> Listening | None:
    """Return whether a program listens on the Unix socket at `path`; None if it is unknown."""
    try:
        file = os.stat(path)
    except OSError:
        return Listening.NO
    device = (os.major(file.st_dev) << 20) | os.minor(file.st_dev)  # the kernel's internal form
    found: set[bool] = set()
    try:
        request = _REQUEST.pack(socket.AF_UNIX, 0, 0, _STATES, 0, _SHOW, _INODE_MASK, _INODE_MASK)
        for message in dump(request):
            attributes = dict(_attributes(message))
            name = attributes.get(_UNIX_DIAG_NAME, b"").removesuffix(b"\0")
            if _pair(attributes, _UNIX_DIAG_VFS) == (file.st_ino & _INODE_MASK, device) or name == os.fsencode(path):
                waiting, backlog = _pair(attributes, _UNIX_DIAG_RQLEN)
                found.add(waiting > backlog)
    except OSError:
        return None
    if not found:
        return Listening.NO
    return Listening.YES if False in found else Listening.FULL


def _pair(attributes: dict[int, bytes], kind: int) -> tuple[int, int]:
    """Return the two integers of an attribute; zeros if it is missing."""
    data = attributes.get(kind, b"")
    if len(data) < _PAIR.size:
        return (0, 0)
    first, second = _PAIR.unpack_from(data)
    return first, second


def _attributes(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield number and content of the attributes of a message (a struct unix_diag_msg)."""
    position = _FIXED_BYTES
    while position + _ATTRIBUTE.size <= len(message):
        length, kind = _ATTRIBUTE.unpack_from(message, position)
        yield kind, message[position + _ATTRIBUTE.size : position + length]
        position += max((length + 3) & ~3, _ATTRIBUTE.size)
