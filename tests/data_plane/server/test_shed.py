"""Responses that are cut because the memory which their clients hold is needed: it is free at once."""

from __future__ import annotations

import pytest

from activator.data_plane.exchange import Exchange
from tests.data_plane.http2_peers import Http2World
from tests.data_plane.proxy.proxy_fakes import holder_of


def shed_first(it: Http2World) -> None:
    holders = [holder_of(lease) for lease in it.world.throttler.leases]
    first = holders[0]
    assert isinstance(first, Exchange)
    first.shed()


@pytest.mark.parametrize("others", [0, 1])
def test_the_last_stream_of_a_connection_ends_it(others: int) -> None:
    """What a connection has written stays with it; it goes unless another request is served there."""
    it = Http2World()
    client = it.client()
    heard = [it.request(client)[1] for _ in range(1 + others)]
    pod = it.open_pod()
    for number in range(1 + others):
        it.answer(pod, 1 + 2 * number, b"part", ends=False)
    shed_first(it)
    it.run()
    assert client.transport.is_aborted() == (others == 0)
    if others:
        assert heard[0].code is not None
        pod.peer.send(3, b"rest", True)
        it.run()
        assert heard[1].body == b"partrest" and heard[1].ended
    it.end()
