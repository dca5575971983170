"""The fake API server of the tests as a separate process: `python -m bench.membership_server PORT`.

It keeps objects in memory and has no etcd, no admission and no watch cache: its cost per call shows which way of
claiming is more expensive, but not what a real API server would need.
"""

from __future__ import annotations

import asyncio
import sys

import uvloop

from tests.kubernetes.fake_api_server import FakeApiServer


async def serve(port: int) -> None:
    """Serve until the process ends."""
    server = FakeApiServer()
    server.port = port
    await server.start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
