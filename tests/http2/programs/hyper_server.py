"""A server by httpunk, which is hyper (Rust) for Python: HTTP/2 by prior knowledge; echoes bodies.

python hyper_server.py PORT FOLDER
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import httpunk.asyncio

FILES = {"/": Path(sys.argv[2], "index.html"), "/large": Path(sys.argv[2], "large")}


class Server(httpunk.asyncio.AutoServerProtocol):
    """A file for GET, the request's body for POST."""

    async def handle(self, request: Any) -> None:
        body = await request.read()
        path = FILES.get(request.path)
        if str(request.method) in {"GET", "HEAD"}:
            body = b"" if path is None else path.read_bytes()
        await request.respond(200 if path is not None else 404, headers={"content-type": "text/plain"}, body=body)


async def main() -> None:
    server = await asyncio.get_running_loop().create_server(Server, "127.0.0.1", int(sys.argv[1]))
    await server.serve_forever()


asyncio.run(main())
