"""The fake cluster as a separate process: `python -m bench.scale_server PORT NODES READY_MS TERMINATE_MS`.

API server, controller manager and nodes are one process: its cost per call and the time until pods are ready do not
represent a real cluster. Other processes can be compared with each other against it.
"""

from __future__ import annotations

import asyncio
import sys

import uvloop

from activator.config.crd import make_definition
from tests.kubernetes.fake_api_server import FakeApiServer
from tests.kubernetes.fake_controllers import ControllerManager
from tests.kubernetes.fake_nodes import Settings


async def serve(port: int, nodes: int, ready_s: float, terminate_s: float) -> None:
    """Serve until the process ends."""
    server = FakeApiServer()
    server.requests_kept = False
    server.port = port
    settings = Settings(nodes=nodes, pods_per_node=1_000, ready_s=ready_s, terminate_s=terminate_s)
    ControllerManager(server, settings)
    server.create("customresourcedefinitions", make_definition(), "")
    await server.start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) / 1e3, int(sys.argv[4]) / 1e3))
