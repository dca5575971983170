"""The fake engine itself, where the contract with a real one does not reach."""

from __future__ import annotations

import asyncio

import pytest

from tests.control_plane.sources.container.fake_engine import FakeContainer, Image


@pytest.mark.parametrize("turns", range(7))
def test_a_start_that_is_cancelled_leaves_no_socket(turns: int) -> None:
    """A socket that nobody closes is a ResourceWarning, and so a failure of this test."""

    async def run() -> None:
        container = FakeContainer("web", 1, Image(), {})
        start = asyncio.ensure_future(container.start())
        for _ in range(turns):
            await asyncio.sleep(0)
        start.cancel()
        await asyncio.wait([start])
        container.end(0)

    asyncio.run(run())
