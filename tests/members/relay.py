"""A TCP relay between members, as whoever is on the way and has no key: it delays, closes in order, resets."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from typing import Final

_READ_BYTES: Final = 65_536


class Relay:
    """Forwards from its own port to that of one member. `dial_delay_s`: before it connects to the member."""

    def __init__(self) -> None:
        self.target: tuple[str, int] = ("", 0)
        self.dial_delay_s = 0.0
        self.chunk_delay_s = 0.0
        self.carried: list[bytes] = []  # from those who connect, in order of arrival
        self._server: asyncio.Server | None = None
        self._pairs: list[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(self) -> str:
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    @property
    def links(self) -> int:
        """How many connections are open."""
        return len(self._pairs)

    def close_links(self, resets: bool = False, half: bool = False) -> int:
        """End all connections: with FIN or RST, in both directions or only towards the member."""
        pairs = [*self._pairs]
        for near, far in pairs:
            for writer in (far,) if half else (near, far):
                if resets:
                    sock = writer.get_extra_info("socket")
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    writer.transport.abort()
                elif half:
                    writer.write_eof()
                else:
                    writer.close()
        return len(pairs)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in [*self._tasks]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _carry(self, reader: asyncio.StreamReader, near: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            await asyncio.sleep(self.dial_delay_s)
            far_reader, far = await asyncio.open_connection(*self.target)
        except (OSError, asyncio.CancelledError):
            near.transport.abort()
            return
        pair = (near, far)
        self._pairs.append(pair)
        try:
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await asyncio.gather(self._pump(reader, far, keeps=True), self._pump(far_reader, near, keeps=False))
        finally:
            self._pairs.remove(pair)
            near.close()
            far.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, keeps: bool) -> None:
        while data := await reader.read(_READ_BYTES):
            if keeps:
                self.carried.append(data)
            await asyncio.sleep(self.chunk_delay_s)
            writer.write(data)
        if not writer.is_closing():
            writer.write_eof()
