"""The upstream if nginx is missing: uvloop and httptools, three fixed responses, nothing else.

python -m bench.upstream HOST,HOST:PORT
"""

from __future__ import annotations

import asyncio
import sys
from typing import cast

import httptools
import uvloop

BODY_BYTES = {"small": 100, "10k": 10 * 1024, "1m": 1024 * 1024}


def body(name: str) -> bytes:
    """Return the body of `/name`, which is the same for every upstream."""
    return b"x" * BODY_BYTES[name]


def _answer(status: bytes, content: bytes) -> bytes:
    fields = b"Server: bench\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n" % len(content)
    return b"HTTP/1.1 " + status + b"\r\n" + fields + b"\r\n" + content


ANSWERS = {f"/{name}".encode(): _answer(b"200 OK", body(name)) for name in BODY_BYTES}
NOT_FOUND = _answer(b"404 Not Found", b"")


class Connection(asyncio.Protocol):
    """A keep-alive connection; responses are in the order of the requests."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._target = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's type is not a subclass

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.transport.close()

    def on_message_begin(self) -> None:
        self._target = b""

    def on_url(self, fragment: bytes) -> None:
        self._target += fragment

    def on_message_complete(self) -> None:
        self.transport.write(ANSWERS.get(self._target, NOT_FOUND))
        if not self._parser.should_keep_alive():
            self.transport.close()


async def serve(hosts: list[str], port: int) -> None:
    """Serve until the process is terminated."""
    server = await asyncio.get_running_loop().create_server(Connection, hosts, port, backlog=1024)
    await server.serve_forever()


def main() -> None:
    hosts, _, port = sys.argv[1].rpartition(":")
    uvloop.run(serve(hosts.split(","), int(port)))


if __name__ == "__main__":
    main()
