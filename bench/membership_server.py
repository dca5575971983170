"""The fake API server of the tests as a process of its own: `python -m bench.membership_server PORT`.

It keeps objects in memory and has no etcd, no admission and no watch cache: what it takes for a call says which way of
claiming costs more, not what a real API server takes.
"""

from __future__ import annotations

import asyncio
import sys

import uvloop

from tests.kubernetes.fake_api_server import FakeApiServer


async def serve(port: int) -> None:
    """Until the process ends."""
    server = FakeApiServer()
    server.port = port
    await server.start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
