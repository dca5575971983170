"""A check in /proc/net whether a program on this machine listens, if the kernel does not answer sock_diag(7).

Some sandboxes have only /proc/net. It lists all sockets as text, so it takes more time than sock_diag.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

_TCP_LISTEN: Final = "0A"
_LOOPBACK_NET: Final = 127
_LOOPBACK_6: Final = [0, 0, 0, 1]
_MAPPED: Final = [0, 0, 0xFFFF]  # the prefix of an IPv4-mapped address
_ACCEPTS: Final = 0x10000  # __SO_ACCEPTCON, in the flags of /proc/net/unix


def port_listens(port: int, folder: str = "/proc/net", loopback: bool = True) -> bool:
    """Return True if a program listens on the port; with `loopback` False, loopback addresses are ignored."""
    for name in ("tcp", "tcp6"):
        for words in _rows(f"{folder}/{name}"):
            if len(words) > 3 and words[3] == _TCP_LISTEN:
                address, _, number = words[1].partition(":")
                if int(number, 16) == port and (loopback or not _is_loopback(address)):
                    return True
    return False


def listening_ports(folder: str = "/proc/net") -> dict[int, int]:
    """Return the ports that are listened on in this network namespace, by the inode of the socket."""
    found = {}
    for name in ("tcp", "tcp6"):
        for words in _rows(f"{folder}/{name}"):
            if len(words) > 9 and words[3] == _TCP_LISTEN:
                found[int(words[9])] = int(words[1].rpartition(":")[2], 16)
    return found


def _is_loopback(address: str) -> bool:
    """Return True for a loopback address, which is written as words of 32 bits in the byte order of this machine."""
    words = [int.from_bytes(bytes.fromhex(address[at : at + 8]), sys.byteorder) for at in range(0, len(address), 8)]
    return words[-1] >> 24 == _LOOPBACK_NET if words[:-1] in ([], _MAPPED) else words == _LOOPBACK_6


def socket_listens(path: str, folder: str = "/proc/net") -> bool:
    """Return True if a program listens on a Unix socket that was bound to exactly this path."""
    for words in _rows(f"{folder}/unix"):
        if len(words) > 7 and int(words[3], 16) & _ACCEPTS and " ".join(words[7:]) == path:
            return True
    return False


def _rows(file: str) -> list[list[str]]:
    """Return the words of each line behind the first; empty if the file cannot be read."""
    try:
        text = os.fsdecode(Path(file).read_bytes())
    except OSError:
        return []
    return [line.split() for line in text.splitlines()[1:]]
