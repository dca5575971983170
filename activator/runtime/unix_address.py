"""Addresses of Unix sockets as text: `unix:/run/app.sock`.

Rules
  1. A path is absolute: what a relative one means depends on who reads it.
  2. The kernel takes 107 bytes of a path. A longer one is refused, never cut.
  3. Abstract sockets (`@name`) are refused: they have no file, so no owner and no permissions, and every program of the
     network namespace may connect to one, or take its name first.
"""

from __future__ import annotations

import os
from typing import Final

UNIX: Final = "unix:"
UNIX_PATH_BYTES_MAX: Final = 107  # sockaddr_un, with the null byte at its end


def is_unix(address: str) -> bool:
    return address.startswith(UNIX)


def path_of(address: str) -> str:
    """The path in `unix:/path`, in the one way in which it is compared. `unix:///path` is the same."""
    path = os.path.normpath(address.removeprefix(UNIX))
    return "/" + path.lstrip("/") if path.startswith("/") else path


def problem_with(address: str) -> str:
    """What is wrong with the address of a Unix socket, and what to do; empty: nothing."""
    text = address.removeprefix(UNIX)
    if text.startswith(("@", "\0")):
        return "abstract sockets have no permissions: use a path, such as unix:/run/app.sock"
    if not text.startswith("/") or text.endswith("/") or not text.isprintable():
        return "use an absolute path, such as unix:/run/app.sock"
    length = len(os.fsencode(path_of(address)))
    if length > UNIX_PATH_BYTES_MAX:
        return f"the path has {length} bytes, and the kernel takes {UNIX_PATH_BYTES_MAX}: use a shorter one"
    return ""
