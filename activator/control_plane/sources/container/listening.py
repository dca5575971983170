"""The kernel's view of whether the program of a container listens on its port.

A published port is often a proxy of the engine, which accepts before the program does. The sockets of the container's
own network are listed under the number of its first process.

Rules
  1. The answer is known only if that number is a process with a network other than the activator's. Otherwise (an
     engine in a virtual machine, the host's network, processes that are hidden) the answer is "unknown".
  2. Only listeners that other machines could reach count: a proxy may not reach a program on the container's loopback.
"""

from __future__ import annotations

import os

from activator.runtime.proc_listeners import port_listens

_OURS = "/proc/self/ns/net"


def program_listens(process: int, port: int) -> bool | None:
    """Return whether the program listens; None: unknown. It reads all sockets of the network, so use a thread."""
    if process <= 0:
        return None
    folder = f"/proc/{process}"
    try:
        if os.readlink(f"{folder}/ns/net") == os.readlink(_OURS):
            return None
        return port_listens(port, f"{folder}/net", loopback=False)
    except OSError:
        return None
