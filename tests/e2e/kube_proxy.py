"""What kube-proxy is to a client: an address of a Service, whose connections go to the endpoints that it knows of.

Each learns of a write of EndpointSlices after a time of its own, in the order of the writes, as a watch delivers them.
A new connection goes to a ready endpoint, by chance; where there is none, to one that terminates and still serves;
where there is none at all it is reset. A connection that is open stays where it is, whatever the slices say.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections import deque
from typing import NamedTuple

from tests.e2e.slice_feeds import Json, SliceFeed

CHUNK_BYTES = 65_536
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close with a reset


class Choice(NamedTuple):
    """The endpoints of one port of a Service, as (address, port): ready ones, and those that only serve still."""

    ready: tuple[tuple[str, int], ...]
    leaving: tuple[tuple[str, int], ...]


class KubeProxy:
    """Of one node, for one port of one Service. `delays_s`: between a write and its being known here, at the least and
    at the most. To be used on the loop of the cluster.
    """

    def __init__(
        self,
        feed: SliceFeed,
        service: str,
        port_name: str,
        address: tuple[str, int],
        delays_s: tuple[float, float] = (0.0, 0.0),
        seed: int = 1,
    ) -> None:
        self._feed = feed
        self._service = service
        self._port_name = port_name
        self._address = address
        self._delays_s = delays_s
        self._rng = random.Random(seed)
        self._slices: dict[str, Json] = {}
        self._coming: deque[tuple[str, Json | None]] = deque()  # writes that are not known yet, the oldest first
        self._known_s = 0.0  # when the last write so far is known
        self._server: asyncio.Server | None = None
        self._carrying: set[asyncio.Task[None]] = set()
        self.endpoints = Choice((), ())
        self.went_to: dict[str, int] = {}  # connections by address
        self.refused_total = 0  # connections for which there was no endpoint, or one that refused

    async def start(self) -> None:
        for name, one in (await self._feed.start(self._written)).items():
            self._take(name, one)
        self._server = await asyncio.start_server(self._accepted, *self._address)

    async def stop(self) -> None:
        await self._feed.stop()
        assert self._server is not None
        self._server.close()
        for task in list(self._carrying):
            task.cancel()
        await asyncio.gather(*self._carrying, return_exceptions=True)
        await asyncio.sleep(0)  # what was closed is, a turn later

    # --- what it knows ---

    def _written(self, name: str, one: Json | None) -> None:
        loop = asyncio.get_running_loop()
        due_s = loop.time() + self._rng.uniform(*self._delays_s)
        self._known_s = max(self._known_s, due_s)
        self._coming.append((name, one))
        loop.call_at(self._known_s, self._next)  # timers of one time run in any order: each takes the oldest

    def _next(self) -> None:
        self._take(*self._coming.popleft())

    def _take(self, name: str, one: Json | None) -> None:
        self._slices.pop(name, None)
        if one is not None and (one["metadata"].get("labels") or {}).get("kubernetes.io/service-name") == self._service:
            self._slices[name] = one
        ready: set[tuple[str, int]] = set()
        leaving: set[tuple[str, int]] = set()
        for known in self._slices.values():
            numbers = [port["port"] for port in known.get("ports") or () if port.get("name", "") == self._port_name]
            for endpoint in known.get("endpoints") or ():
                conditions = endpoint.get("conditions") or {}
                found = {(endpoint["addresses"][0], number) for number in numbers}
                if conditions.get("ready") is not False:
                    ready |= found
                elif conditions.get("serving") and conditions.get("terminating"):
                    leaving |= found
        self.endpoints = Choice(tuple(sorted(ready)), tuple(sorted(leaving)))

    # --- connections ---

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._carry(reader, writer))
        self._carrying.add(task)
        task.add_done_callback(self._carrying.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._forward(reader, writer)
        except OSError:
            self.refused_total += 1
            sock: socket.socket = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            writer.transport.abort()
        finally:
            writer.close()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Raises OSError where no endpoint takes it."""
        choice = self.endpoints.ready or self.endpoints.leaving
        if not choice:
            raise ConnectionRefusedError
        address = self._rng.choice(choice)
        self.went_to[address[0]] = self.went_to.get(address[0], 0) + 1
        there_reader, there_writer = await asyncio.open_connection(*address)
        try:
            await asyncio.gather(_copy(reader, there_writer), _copy(there_reader, writer))
        finally:
            there_writer.close()


async def _copy(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
    """Bytes, and then the end of file; a reset on either side ends it."""
    try:
        while data := await source.read(CHUNK_BYTES):
            to.write(data)
            await to.drain()
        to.write_eof()
    except OSError:
        to.transport.abort()
