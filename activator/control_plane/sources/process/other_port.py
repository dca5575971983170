"""The search for the port of a program that listens on another one than it was given."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from activator.control_plane.sources.process.ports import listens, ports_of
from activator.control_plane.sources.process.process_tree import ProcessTree
from activator.runtime.backoff import Backoff
from activator.runtime.local_listeners import LOOPBACK_4
from activator.runtime.sockets import join_address
from activator.runtime.tasks import pause

OTHER_PORT_INITIAL_S: Final = 1.0  # from a start to the first check for another port; doubles
OTHER_PORT_MAX_S: Final = 60.0  # between two such checks

log = logging.getLogger("activator.process")


class OtherPort:
    """The search for the other port of a program that was given `port`; 0: it was given none."""

    def __init__(self, identity: str, port: int, tree: ProcessTree | None) -> None:
        self.found = ""  # a sentence about the other port, with the remedy
        self._identity = identity
        self._port = port
        self._tree = tree

    async def find(self) -> None:
        """Report once if the program, while it starts, listens on one other port and not on the one it was given.

        A port counts if two checks in a row find it alone: a program may open others first, such as one for metrics.
        """
        port, last_other = self._port, 0
        checks = Backoff(OTHER_PORT_INITIAL_S, OTHER_PORT_MAX_S)
        while port and self._tree is not None:
            await pause(checks.next_s())
            if listens(join_address(LOOPBACK_4, port)):
                return
            ports = await asyncio.to_thread(ports_of, await self._tree.living())
            if port in ports:  # on ::1, or where the kernel does not answer `listens`
                return
            other = next(iter(ports)) if len(ports) == 1 else 0
            if other and other == last_other:
                remedy = f"pass it `{{port}}` in the command or $PORT, or set `port: {other}`"
                self.found = f"pid {ports[other]} listens on {other}, not on {port}: if that is its port, {remedy}"
                log.warning("%s: %s", self._identity, self.found)
                return
            last_other = other
