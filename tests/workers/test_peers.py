"""Links of a data plane: which of two for one worker counts, and what is asked over them."""

from __future__ import annotations

import asyncio
import time
from typing import Final

import pytest

from activator.data_plane.ownership.member import Member
from activator.data_plane.stored_responses.links import PartReceiver
from activator.data_plane.stored_responses.messages import StoredResponsePart
from activator.members.handshake import Seal, SessionKeys
from activator.runtime.wire import pair
from activator.workers.peers import Peers
from tests.data_plane.proxy.test_answers_later import Later

WAIT_S: Final = 20.0  # a response that does not come fails the test


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


class Heard(PartReceiver):
    """What came of a query."""

    def __init__(self) -> None:
        self.parts: list[StoredResponsePart] = []
        self.ended = asyncio.Event()

    def part_received(self, part: StoredResponsePart) -> None:
        self.parts.append(part)
        self.ended.set()

    def unreachable(self) -> None:
        self.ended.set()


@pytest.mark.parametrize("keys", [None, SessionKeys(b"a" * 32, b"b" * 32)], ids=["a worker", "another replica"])
def test_answers_are_asked_for_over_links_of_both_kinds(keys: SessionKeys | None) -> None:
    async def story() -> None:
        errors: list[Exception] = []
        worlds, peers = [Later(), Later()], []
        later = asyncio.get_running_loop().call_later
        for number, world in enumerate(worlds, 1):
            made = Peers(lambda other: None, errors.append)
            made.member = Member(number, made.send, made.drop, time.monotonic, later)
            made.answers = world.links
            world.links.join(number, made.send)
            made.keep_only({1, 2})
            peers.append(made)
        back = None if keys is None else SessionKeys(keys.receives, keys.sends)
        ends = pair()
        peers[0].link(2, ends[0], None if keys is None else Seal(keys))
        peers[1].link(1, ends[1], None if back is None else Seal(back))
        place = worlds[0].post().fields["location"].rpartition("/")[2]
        heard = Heard()
        assert worlds[1].links.ask(1, place, "GET", 0, heard)
        await asyncio.wait_for(heard.ended.wait(), WAIT_S)
        (part,) = heard.parts
        assert part.status == 202 and b'"position": 1' in part.data
        heard = Heard()
        assert worlds[1].links.ask(1, place, "GET", 0, heard)
        peers[0].keep_only(set())
        peers[1].keep_only(set())
        await asyncio.wait_for(heard.ended.wait(), WAIT_S)
        assert worlds[1].links.has_ended(1) and errors == []

    asyncio.run(story())
