"""Whether the program of a container listens on its port, as the kernel of this machine has it.

A published port is often a proxy of the engine's, which accepts before the program does. The sockets of the container's
own network are listed under the number of its first process.

Rules
  1. It is known only where that number means a process with a network that is not ours. Elsewhere (an engine in a
     virtual machine, the host's network, processes that are not shown to us) the answer is "unknown".
  2. Only listeners that other machines could reach count: a proxy may not reach a program on the container's loopback.
"""

from __future__ import annotations

import os

from activator.runtime.proc_listeners import port_listens

_OURS = "/proc/self/ns/net"


def program_listens(process: int, port: int) -> bool | None:
    """None: unknown. It reads all sockets of that network, which may be many: not for the loop."""
    if process <= 0:
        return None
    folder = f"/proc/{process}"
    try:
        if os.readlink(f"{folder}/ns/net") == os.readlink(_OURS):
            return None
        return port_listens(port, f"{folder}/net", loopback=False)
    except OSError:
        return None
