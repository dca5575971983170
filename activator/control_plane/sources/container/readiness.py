"""The readiness of a container.

It is ready as `readiness` defines; without that, when the image's own HEALTHCHECK succeeds, which the activator runs at
the interval of `readiness`; without that, when its port accepts. A published port may be a proxy of the engine, which
accepts before the program does, and closes if it cannot connect: the kernel is asked whether the program listens
(listening.py), and if that is unknown, a connection has to stay open for a moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from activator.config.file import readiness_probe
from activator.config.model.pods import PROBE_TCP
from activator.config.model.revision import Revision
from activator.control_plane.probes.probe import PROBE_TIMEOUT_S, ProbeOutcome, ProbeRequest, probe_once
from activator.control_plane.sources.container.listening import program_listens
from activator.control_plane.sources.container.state import health_test, state_of
from activator.control_plane.sources.process.readiness import until_answered, until_command, until_set
from activator.control_plane.sources.process.unit import Unit
from activator.runtime.clock import Now
from activator.runtime.sockets import split_address

# How long a connection to a published port has to stay open to count as the program's, not a proxy's.
OPEN_S: Final = 0.05
UNSEEN_OPEN_S: Final = 1.0  # if the kernel knows of no listener
UNSEEN_S: Final = 5.0  # from the first check; before that nothing is connected to a port without a known listener


class ContainerReadiness:
    """The readiness of one container. `inspected`: the container; `port`: in it."""

    def __init__(
        self, unit: Unit, revision: Revision, inspected: Mapping[str, Any], port: int | None, now: Now
    ) -> None:
        assert revision.container is not None
        self._unit = unit
        self._revision = revision
        self._settings = revision.container.readiness
        self._inspected = inspected
        self._port = port
        self._now = now
        self._began_s = now()

    async def until_ready(self, timeout_s: float) -> str:
        """Wait until it is ready; return why it does not get ready, or an empty string."""
        unit, readiness, now = self._unit, self._settings, self._now
        interval_s = float(readiness.interval)
        if readiness.log:
            if await until_set(unit.output.ready, timeout_s, now):
                return ""
            return f"the program wrote no line with {readiness.log!r} within {timeout_s:g} s"
        if readiness.command:
            if await until_command(unit, readiness.command, interval_s, timeout_s, now):
                return ""
            word = readiness.command[0]
            return f"{word} (`readiness.command`) did not end with exit code 0 within {timeout_s:g} s"
        test = health_test(self._inspected)
        if test and not readiness.http_get and readiness.grpc is None:
            if await until_command(unit, test, interval_s, timeout_s, now):
                return ""
            return f"the HEALTHCHECK of its image did not succeed within {timeout_s:g} s"
        if await until_answered(self._answers, interval_s, timeout_s, now):
            return ""
        return f"the program did not answer on port {self._port} within {timeout_s:g} s"

    async def _answers(self) -> bool:
        probe = readiness_probe(self._revision)
        if probe.kind == PROBE_TCP:
            return await self._accepts()
        return await probe_once(ProbeRequest(self._unit.address, probe), PROBE_TIMEOUT_S) is ProbeOutcome.ANSWERED

    async def _accepts(self) -> bool:
        """Return True if the program listens, as the kernel or a connection that stays open shows."""
        assert self._port is not None
        listens = await asyncio.to_thread(program_listens, state_of(self._inspected).process, self._port)
        if listens is None:
            return await stays_open(self._unit.address, OPEN_S)
        if listens:
            return await stays_open(self._unit.address, 0.0)
        if self._now() - self._began_s < UNSEEN_S:
            return False
        return await stays_open(self._unit.address, UNSEEN_OPEN_S)  # it may listen where the kernel does not show it


async def stays_open(address: str, open_s: float) -> bool:
    """Return True if a connection is made, and not closed within `open_s`."""
    host, port = split_address(address)
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host, port)
        if open_s <= 0.0:
            return True
        try:
            async with asyncio.timeout(open_s):
                return bool(await reader.read(1))
        except TimeoutError:
            return True
    except OSError:  # includes the timeout
        return False
    finally:
        if writer is not None:
            writer.transport.abort()
