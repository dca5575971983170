"""What counts as activity of requests that stay open: a WebSocket with traffic, an event stream with events."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activator.codec.message import Fields
from activator.config.specs import FiltersSpec
from activator.data_plane.filters.activity import DORMANT_CHECK_S, FrameScanner, is_comment
from activator.data_plane.proxy.exchange import ProxiedExchange
from activator.data_plane.tables.apply import load_of
from tests.data_plane.proxy.proxy_fakes import Client, Pod, World, at_pod, request_head, response_head

QUIET_S = 10.0
TEXT, PING, PONG, CLOSE, CONTINUATION = 0x1, 0x9, 0xA, 0x8, 0x0


def frame(opcode: int, payload: bytes = b"", masked: bool = False) -> bytes:
    size = len(payload)
    length = bytes([size & 0x7F])
    if size >= 126:
        length = b"\x7e" + size.to_bytes(2) if size < 1 << 16 else b"\x7f" + size.to_bytes(8)
    if masked:
        length = bytes([length[0] | 0x80]) + length[1:] + b"mask"
    return bytes([0x80 | opcode]) + length + payload


class Tunnel:
    """An open WebSocket."""

    def __init__(self, **spec: Any) -> None:
        self.world = World(filters=FiltersSpec(quiet_tunnels_s=QUIET_S), **spec)
        self.world.pod(limit=3)
        head = request_head(Upgrade="websocket", Connection="Upgrade")
        exchange, self.client = self.world.begin(head)
        self.exchange: ProxiedExchange = exchange
        answer = response_head(101, 0)
        answer.upgrade = b"websocket"
        at_pod(exchange).response_head(answer)

    def load(self) -> tuple[int, int]:
        load = load_of(self.world.throttler, self.world.clock.now())
        return load.in_flight, load.concurrency

    def said(self, data: bytes) -> None:
        at_pod(self.exchange).response_body(data)
        at_pod(self.exchange).response_flush()


def test_an_open_websocket_counts_until_it_has_been_quiet() -> None:
    tunnel = Tunnel()
    clock = tunnel.world.clock
    clock.pass_time(QUIET_S - 0.5)
    assert tunnel.load() == (1, 1)
    clock.pass_time(1.5)
    assert tunnel.load() == (0, 0)
    tunnel.world.throttler.active = False  # its load was reported for the last time
    tunnel.world.heard.events.clear()
    tunnel.exchange.request_body(frame(TEXT, b"hello", masked=True))
    clock.pass_time(DORMANT_CHECK_S + 0.1)
    assert tunnel.load() == (1, 1)
    assert ("activated",) in tunnel.world.heard.events, "its load is reported again"
    clock.pass_time(QUIET_S + 1.5)
    assert tunnel.load() == (0, 0)
    tunnel.exchange.client_gone()
    assert tunnel.world.throttler.counters.quiet == 0
    tunnel.world.check_idle()


def test_pings_do_not_count_and_messages_do() -> None:
    tunnel = Tunnel()
    for _ in range(20):
        tunnel.said(frame(PING, b"12345678"))
        tunnel.exchange.request_body(frame(PONG, b"12345678", masked=True))
        tunnel.world.clock.pass_time(1.0)
    assert tunnel.load() == (0, 0)
    for _ in range(20):
        tunnel.said(frame(TEXT, b"x"))
        tunnel.world.clock.pass_time(1.0)
    assert tunnel.load() == (1, 1)
    tunnel.exchange.client_gone()
    tunnel.world.check_idle()


def test_by_default_an_open_websocket_counts() -> None:
    world = World()
    world.pod()
    exchange, _ = world.begin(request_head(Upgrade="websocket", Connection="Upgrade"))
    head = response_head(101, 0)
    head.upgrade = b"websocket"
    at_pod(exchange).response_head(head)
    world.clock.pass_time(1000.0)
    assert load_of(world.throttler, world.clock.now()).in_flight == 1
    exchange.client_gone()
    world.check_idle()


def test_a_dormant_websocket_does_not_keep_a_pod_that_leaves() -> None:
    tunnel = Tunnel()
    world = tunnel.world
    world.clock.pass_time(QUIET_S + 1.5)
    pod = tunnel.exchange.pod
    assert isinstance(pod, Pod)
    world.table.drain(world.tracker("p1"))
    world.clock.pass_time(DORMANT_CHECK_S + 0.1)
    assert pod.aborted and tunnel.client.aborted
    assert world.table.in_flight == 0 and world.throttler.counters.quiet == 0 and world.wheel.armed == 0


def test_one_that_carries_something_is_waited_for() -> None:
    tunnel = Tunnel()
    world = tunnel.world
    world.table.drain(world.tracker("p1"))
    for _ in range(20):
        tunnel.said(frame(TEXT, b"x"))
        world.clock.pass_time(1.0)
    assert not tunnel.client.is_aborted()
    tunnel.exchange.client_gone()


def stream(kind: bytes, **spec: Any) -> tuple[World, ProxiedExchange, Client]:
    world = World(filters=FiltersSpec(quiet_streams_s=QUIET_S), **spec)
    world.pod()
    exchange, client = world.begin()
    head = response_head(200, -1)
    head.headers = Fields.from_pairs([(b"Content-Type", kind)])
    at_pod(exchange).response_head(head)
    return world, exchange, client


def test_a_stream_of_comments_alone_is_no_activity() -> None:
    world, exchange, client = stream(b"text/event-stream")
    for _ in range(20):
        at_pod(exchange).response_body(b": ping\n\n")
        world.clock.pass_time(1.0)
    assert load_of(world.throttler, world.clock.now()).in_flight == 0
    at_pod(exchange).response_body(b"data: 1\n\n")
    world.clock.pass_time(1.5)
    assert load_of(world.throttler, world.clock.now()).in_flight == 1
    at_pod(exchange).response_end([])
    assert client.ended
    world.check_idle()


def test_a_slow_answer_that_is_no_stream_counts() -> None:
    world, exchange, _ = stream(b"application/json")
    world.clock.pass_time(100.0)
    assert load_of(world.throttler, world.clock.now()).in_flight == 1
    exchange.client_gone()
    world.check_idle()


@pytest.mark.parametrize(
    ("data", "expected"),
    [(b": a\n\n", True), (b":\n:\n", True), (b"\n", True), (b": a\ndata: b\n\n", False), (b":" * 1000, False)],
)
def test_comments(data: bytes, expected: bool) -> None:
    assert is_comment(data) == expected


@given(
    st.lists(
        st.tuples(
            st.sampled_from([TEXT, PING, PONG, CLOSE, CONTINUATION, 0x2]),
            st.sampled_from([0, 1, 125, 126, 300, 70_000]),
            st.booleans(),
        ),
        max_size=6,
    ),
    st.lists(st.integers(1, 5000), min_size=1, max_size=8),
)
def test_frames_are_told_apart_however_they_are_cut(frames: list[tuple[int, int, bool]], cuts: list[int]) -> None:
    data = b"".join(frame(opcode, b"\x01" * size, masked) for opcode, size, masked in frames)
    expected = any(opcode not in {PING, PONG} for opcode, _, _ in frames)
    scanner = FrameScanner()
    said, place, turn = False, 0, 0
    while place < len(data):
        step = cuts[turn % len(cuts)]
        said = scanner.feed(data[place : place + step]) or said
        place, turn = place + step, turn + 1
    assert said == expected


@given(st.binary(max_size=400))
def test_bytes_that_are_no_frames_do_no_harm(data: bytes) -> None:
    scanner = FrameScanner()
    scanner.feed(data)
    assert len(scanner._head) < 15
