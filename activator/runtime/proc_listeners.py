"""Whether a program of this machine listens, as /proc/net shows it: where the kernel does not answer sock_diag(7).

Some sandboxes have the one and not the other. It is text of all sockets, so it costs more than a question.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_TCP_LISTEN: Final = "0A"
_ACCEPTS: Final = 0x10000  # __SO_ACCEPTCON, in the flags of /proc/net/unix


def port_listens(port: int, folder: str = "/proc/net") -> bool:
    """On any address of this machine."""
    wanted = f":{port:04X}"
    for name in ("tcp", "tcp6"):
        for words in _rows(f"{folder}/{name}"):
            if len(words) > 3 and words[3] == _TCP_LISTEN and words[1].endswith(wanted):
                return True
    return False


def socket_listens(path: str, folder: str = "/proc/net") -> bool:
    """On this path, as it was bound."""
    for words in _rows(f"{folder}/unix"):
        if len(words) > 7 and int(words[3], 16) & _ACCEPTS and " ".join(words[7:]) == path:
            return True
    return False


def _rows(file: str) -> list[list[str]]:
    try:
        text = os.fsdecode(Path(file).read_bytes())
    except OSError:
        return []
    return [line.split() for line in text.splitlines()[1:]]
