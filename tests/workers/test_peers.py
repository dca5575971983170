"""Links of a data plane: which of two for one worker counts."""

from __future__ import annotations

import asyncio
import time

from activator.data_plane.ownership.member import Member
from activator.runtime.wire import pair
from activator.workers.peers import Peers


def test_the_end_of_a_former_link_is_not_the_end_of_the_next() -> None:
    async def story() -> None:
        unlinked: list[int] = []
        errors: list[Exception] = []
        peers = Peers(unlinked.append, errors.append)
        peers.member = Member(1, peers.send, peers.drop, time.monotonic, asyncio.get_running_loop().call_later)
        first, first_far = pair()
        second, second_far = pair()
        peers.link(2, first)
        peers.drop(2)  # at the end of this turn
        peers.link(2, second)
        await asyncio.sleep(0.01)
        assert unlinked == [] and peers.member.peers[2].linked
        second_far.close()
        await asyncio.sleep(0.05)
        assert unlinked == [2] and errors == []
        first_far.close()

    asyncio.run(story())
