"""Streams of HTTP/2 pods that are given up: when their slots are granted again."""

from __future__ import annotations

import pytest

from activator.codec.http2 import frames
from activator.codec.http2.frames import CANCEL
from activator.config.specs import TimeoutsSpec
from activator.data_plane.proxy.cancelled import CLOSE_PATIENCE_S
from tests.data_plane.http2_peers import Http2World, Line
from tests.data_plane.proxy.proxy_fakes import request_head

WAIT_S = 30.0


def begin(it: Http2World, method: str = "GET", length: int = -1) -> int:
    """A request is begun; return its place among the exchanges."""
    exchange, _ = it.world.begin(request_head(method, length=length))
    it.exchanges.append(exchange)
    it.run()
    return len(it.exchanges) - 1


def one_way(it: Http2World, pod: Line) -> None:
    """What is written reaches the pod; nothing of what the pod says reaches us."""
    it.world.clock.turn()
    pod.to_peer()


def settings_sent(data: bytes) -> int:
    """Return how many SETTINGS frames there are behind the preface, acknowledgements aside."""
    at, count = len(frames.PREFACE), 0
    while at < len(data):
        count += data[at + 3] == frames.SETTINGS and not data[at + 4] & 1
        at += 9 + int.from_bytes(data[at : at + 3], "big")
    return count


@pytest.mark.parametrize("confirms", [True, False])
def test_a_slot_is_granted_again_when_the_pod_has_confirmed_the_reset(confirms: bool) -> None:
    """Else a request on another connection could reach the pod before the reset."""
    it = Http2World(limit=1, container_concurrency=1)
    begin(it)
    pod = it.open_pod()
    begin(it)
    it.exchanges[0].client_gone()
    one_way(it, pod)
    assert pod.peer.of(1).code == CANCEL
    assert 3 not in pod.peer.streams
    if confirms:
        pod.to_us()
    else:
        it.world.clock.pass_time(CLOSE_PATIENCE_S - 0.05)
        one_way(it, pod)
        assert 3 not in pod.peer.streams
        it.world.clock.pass_time(0.1)
    one_way(it, pod)
    assert 3 in pod.peer.streams
    it.run()
    it.answer(pod, 3)
    it.end()


def test_resets_that_come_together_are_confirmed_together() -> None:
    """One that a frame overtakes is confirmed by the next one: a client that cancels a lot costs the pod little."""
    it = Http2World(limit=8, container_concurrency=8)
    for _ in range(8):
        begin(it)
    pod = it.open_pod()
    before = settings_sent(pod.transport.sent)
    for exchange in it.exchanges:
        exchange.client_gone()
        one_way(it, pod)
    assert settings_sent(pod.transport.sent) == before + 1
    assert it.world.table.in_flight == 8
    pod.to_us()
    assert it.world.table.in_flight == 7
    one_way(it, pod)
    assert settings_sent(pod.transport.sent) == before + 2
    pod.to_us()
    assert it.world.table.in_flight == 0
    it.end()


def test_a_connection_that_ends_confirms_all() -> None:
    it = Http2World(limit=1, container_concurrency=1)
    begin(it)
    pod = it.open_pod()
    it.exchanges[0].client_gone()
    one_way(it, pod)
    assert it.world.table.in_flight == 1
    pod.lose()
    it.world.clock.turn()
    assert it.world.table.in_flight == 0
    it.end()


def test_a_cut_upload_keeps_its_slot_where_the_pod_may_compute_on() -> None:
    """`on_cancel: wait`: what the pod has of the body may be enough for it, whatever it confirms."""
    it = Http2World(limit=1, container_concurrency=1, timeouts=TimeoutsSpec(cancel_wait_s=WAIT_S))
    begin(it, "POST", 100)
    pod = it.open_pod()
    it.exchanges[0].request_body(b"half")
    it.run()
    it.exchanges[0].client_gone()
    it.run()
    assert pod.peer.of(1).code == CANCEL
    it.world.clock.pass_time(WAIT_S - 1.0)
    it.run()
    assert it.world.table.in_flight == 1
    it.world.clock.pass_time(2.0)
    assert it.world.table.in_flight == 0
    it.end()
