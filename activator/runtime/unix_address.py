"""Addresses of Unix sockets as text: `unix:/run/app.sock`.

Rules
  1. A path must be absolute, because a relative one depends on the process that uses it.
  2. The kernel accepts 107 bytes of a path. A longer path is refused, never truncated.
  3. Abstract sockets (`@name`) are refused: they have no file and therefore no owner and no permissions, and every
     program in the network namespace may connect to one, or bind its name first.
"""

from __future__ import annotations

import os
from typing import Final

UNIX: Final = "unix:"
UNIX_PATH_BYTES_MAX: Final = 107  # sun_path of sockaddr_un without the final null byte


def is_unix(address: str) -> bool:
    return address.startswith(UNIX)


def path_of(address: str) -> str:
    """Return the normalised path of `unix:/path`; `unix:///path` is the same."""
    path = os.path.normpath(address.removeprefix(UNIX))
    return "/" + path.lstrip("/") if path.startswith("/") else path


def problem_with(address: str) -> str:
    """Return why the address of a Unix socket is not valid, and what to do; empty if it is valid."""
    text = address.removeprefix(UNIX)
    if text.startswith(("@", "\0")):
        return "abstract sockets have no permissions: use a path, such as unix:/run/app.sock"
    if not text.startswith("/") or text.endswith("/") or not text.isprintable():
        return "use an absolute path, such as unix:/run/app.sock"
    length = len(os.fsencode(path_of(address)))
    if length > UNIX_PATH_BYTES_MAX:
        return f"the path has {length} bytes, and the kernel takes {UNIX_PATH_BYTES_MAX}: use a shorter one"
    return ""
