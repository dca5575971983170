"""What is left of a pod's pool once the pod has left."""

from __future__ import annotations

import asyncio
import gc
import time

from activator.data_plane.upstream.dial import DialContext, PodAddress
from activator.data_plane.upstream.http1_pool import Http1Pool
from activator.runtime.buffered_writer import WriteBatcher
from activator.runtime.clock import TimingWheel
from activator.runtime.tasks import TaskGroupOwner


def test_a_closed_pool_needs_no_collector() -> None:
    """Pods come and go by the thousand; what refers to itself would stay until the collector looks at all there is."""

    async def scenario() -> None:
        errors: list[Exception] = []
        loop = asyncio.get_running_loop()
        wheel = TimingWheel(time.monotonic, loop.call_later, errors.append)
        tasks = TaskGroupOwner(lambda _name, _error: None)
        context = DialContext(loop, wheel, tasks.start, WriteBatcher(loop.call_soon, errors.append))
        before = pools()
        for number in range(10):
            Http1Pool(context, time.monotonic, PodAddress("127.0.0.1", 1 + number, None, ""), 1.0).close()
        assert pools() == before
        assert errors == []

    def pools() -> int:
        return sum(isinstance(one, Http1Pool) for one in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        asyncio.run(scenario())
    finally:
        gc.enable()
