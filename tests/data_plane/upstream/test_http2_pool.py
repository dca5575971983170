"""The HTTP/2 connections of one pod: what is tried again, when another is dialled, and how they end."""

from __future__ import annotations

import gc

import pytest

from activator.codec.http2 import frames
from activator.codec.http2.frames import (
    CANCEL,
    ENABLE_CONNECT_PROTOCOL,
    HTTP_1_1_REQUIRED,
    INTERNAL_ERROR,
    MAX_CONCURRENT_STREAMS,
    NO_ERROR,
    REFUSED_STREAM,
)
from activator.data_plane.proxy.exchange import ProxiedExchange
from activator.data_plane.upstream.http2_connection import Http2PodConnection
from activator.data_plane.upstream.http2_pool import HTTP2_POD_IDLE_S
from activator.data_plane.upstream.identity_check import ExpectedIdentity
from activator.runtime.reasons import Reason
from tests.data_plane.http2_peers import Http2World, Line
from tests.data_plane.proxy.proxy_fakes import Client, request_head


def begin(
    it: Http2World, method: str = "GET", length: int = -1, upgrade: bytes = b""
) -> tuple[ProxiedExchange, Client]:
    head = request_head(method, length=length)
    head.upgrade = upgrade
    exchange, client = it.world.begin(head)
    it.exchanges.append(exchange)
    it.run()
    return exchange, client


def go_away(pod: Line, last_id: int, code: int = NO_ERROR) -> None:
    pod.connection.data_received(frames.go_away(last_id, code, ""))


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("how", ["refused", "goaway"])
def test_what_was_not_processed_is_sent_again(method: str, how: str) -> None:
    it = Http2World()
    exchange, client = begin(it, method, 4 if method == "POST" else -1)
    if method == "POST":
        exchange.request_body(b"body")
        exchange.request_end([])
    pod = it.open_pod()
    if how == "refused":
        pod.peer.h2.reset_stream(1, REFUSED_STREAM)
        it.run()
        again, stream_id = pod, 3
    else:
        go_away(pod, 0)
        it.run()
        assert pod.transport.is_closing(), "it carries nothing"
        again, stream_id = it.open_pod(), 1
    assert client.silent()
    assert again.peer.of(stream_id).body == (b"body" if method == "POST" else b"")
    it.answer(again, stream_id)
    assert client.status == 200 and exchange.attempts == 1
    it.end()


@pytest.mark.parametrize("how", ["refused", "goaway"])
def test_what_is_not_held_any_more_is_not(how: str) -> None:
    it = Http2World(held_body_bytes=10)
    exchange, client = begin(it, "POST", 1000)
    pod = it.open_pod()
    exchange.request_body(b"b" * 50)
    it.run()
    if how == "refused":
        pod.peer.h2.reset_stream(1, REFUSED_STREAM)
    else:
        go_away(pod, 0)
    it.run()
    assert client.status == 502 and client.reason == Reason.POD_CLOSED.value
    it.end()


@pytest.mark.parametrize("code", [CANCEL, INTERNAL_ERROR, HTTP_1_1_REQUIRED, NO_ERROR])
def test_another_reset_is_a_failure_of_this_request_alone(code: int) -> None:
    it = Http2World()
    _, client = begin(it)
    _, other = begin(it)
    pod = it.open_pod()
    pod.peer.h2.reset_stream(1, code)
    it.run()
    assert client.status == 502 and other.silent()
    it.answer(pod, 3)
    assert other.status == 200
    it.end()


def test_a_refusal_behind_an_answer_is_not_believed() -> None:
    it = Http2World()
    _, client = begin(it)
    pod = it.open_pod()
    it.answer(pod, 1, b"part", ends=False)
    pod.peer.h2.reset_stream(1, REFUSED_STREAM)
    it.run()
    assert client.is_aborted() and client.body == b"part"
    it.end()


def test_refusals_do_not_go_on_for_ever() -> None:
    it = Http2World()
    _, client = begin(it)
    pod = it.open_pod()
    for stream_id in (1, 3, 5):
        pod.peer.h2.reset_stream(stream_id, REFUSED_STREAM)
        it.run()
    assert client.status == 502 and len(pod.peer.streams) == 3
    it.end()


def test_no_more_streams_than_the_pod_allows() -> None:
    it = Http2World()
    _, first = begin(it)
    pod = it.open_pod()
    pod.connection.data_received(frames.settings_frame([(MAX_CONCURRENT_STREAMS, 2)]))
    begin(it)
    assert len(pod.peer.streams) == 2 and not it.pool.dialled
    begin(it)
    assert len(pod.peer.streams) == 2 and len(it.pool.dialled) == 1, "another connection is there for it"
    it.answer(pod, 1)
    assert first.status == 200 and len(pod.peer.streams) == 3, "what waits takes the first place that is free"
    pod.connection.data_received(frames.settings_frame([(MAX_CONCURRENT_STREAMS, 4)]))
    assert pod.connection.room() == 2
    begin(it)
    assert len(pod.peer.streams) == 4
    pod.connection.data_received(frames.settings_frame([(MAX_CONCURRENT_STREAMS, 1)]))
    assert pod.connection.room() == 0
    begin(it)
    assert len(pod.peer.streams) == 4
    other = it.open_pod()
    assert len(other.peer.streams) == 1
    it.end()


def test_a_pod_that_allows_no_streams_is_not_sent_any() -> None:
    it = Http2World()
    _, client = begin(it)
    pod = it.open_pod()
    pod.connection.data_received(frames.settings_frame([(MAX_CONCURRENT_STREAMS, 0)]))
    pod.peer.h2.reset_stream(1, REFUSED_STREAM)
    it.run()
    assert client.silent() and len(pod.peer.streams) == 1
    pod.connection.data_received(frames.settings_frame([(MAX_CONCURRENT_STREAMS, 1)]))
    it.run()
    it.answer(pod, 3)
    assert client.status == 200
    it.end()


def test_a_connection_that_goes_away_serves_its_streams_and_is_replaced() -> None:
    it = Http2World()
    _, first = begin(it)
    _, second = begin(it)
    pod = it.open_pod()
    go_away(pod, 2**31 - 1)
    it.run()
    _, third = begin(it)
    assert len(pod.peer.streams) == 2 and len(it.pool.dialled) == 1
    go_away(pod, 1)
    it.run()
    other = it.open_pod()
    assert len(other.peer.streams) == 2
    it.answer(other, 1)
    it.answer(other, 3)
    assert third.status == second.status == 200 and first.silent()
    it.answer(pod, 1)
    assert first.status == 200 and pod.transport.is_closing() and not other.transport.is_closing()
    it.end()


def test_a_stream_that_is_given_up_frees_its_place_at_once() -> None:
    it = Http2World()
    exchange, _ = begin(it)
    pod = it.open_pod({MAX_CONCURRENT_STREAMS: 1})
    _, waiting = begin(it)
    exchange.client_gone()
    it.run()
    assert pod.peer.of(1).code == CANCEL
    it.answer(pod, 3)
    assert waiting.status == 200
    it.end()


def test_idle_connections_are_closed() -> None:
    it = Http2World()
    begin(it)
    pod = it.open_pod()
    it.answer(pod, 1)
    it.world.clock.pass_time(HTTP2_POD_IDLE_S - 1.0)
    begin(it)
    it.answer(pod, 3)
    it.world.clock.pass_time(HTTP2_POD_IDLE_S - 1.0)
    assert not pod.transport.is_closing()
    it.world.clock.pass_time(HTTP2_POD_IDLE_S)
    assert pod.transport.is_closing()
    it.end()


@pytest.mark.parametrize("how", ["close", "move"])
def test_a_pool_that_ends_serves_what_it_has(how: str) -> None:
    it = Http2World()
    _, client = begin(it)
    pod = it.open_pod()
    other = None
    if how == "close":
        it.pool.close()
    else:
        it.pool.change_address(it.pool._address)
        _, other = begin(it)
        assert other.silent() and len(it.pool.dialled) == 1
    assert not pod.transport.is_closing()
    it.answer(pod, 1)
    assert client.status == 200 and pod.transport.is_closing()
    if other is not None:
        it.answer(it.open_pod(), 1)
        assert other.status == 200
    it.end()


def test_a_pool_that_is_closed_within_an_answer() -> None:
    it = Http2World()
    pool = it.pool

    class Closing(Client):
        def send_end(self, trailers: list[tuple[bytes, bytes]]) -> None:
            super().send_end(trailers)
            pool.close()

    client = Closing()
    exchange = it.world.proxy.open(request_head(), client)
    exchange.request_end([])
    exchange.begin()
    begin(it)
    pod = it.open_pod()
    it.answer(pod, 1)
    assert client.has_ended() and not pod.transport.is_closing()
    it.answer(pod, 3)
    assert pod.transport.is_closing()
    it.end()


NAMING = ExpectedIdentity(request_head(), b"k-pod", b"p1")


@pytest.mark.parametrize("says", ["right", "wrong", "nothing", "reset", "goaway", "lost", "silent", "garbage"])
def test_a_pod_is_asked_for_its_identity_first(says: str) -> None:
    it = Http2World(naming=NAMING)
    _, client = begin(it)
    pod = it.open_pod()
    assert list(pod.peer.streams) == [1] and it.pool._identifying
    if says in {"right", "wrong", "nothing"}:
        fields = [(b":status", b"200")]
        if says != "nothing":
            fields.append((b"k-pod", b"p1" if says == "right" else b"p2"))
        pod.peer.h2.send_headers(1, fields, end_stream=True)
    elif says == "reset":
        pod.peer.h2.reset_stream(1, INTERNAL_ERROR)
    elif says == "goaway":
        go_away(pod, 0)
    elif says == "lost":
        pod.lose()
    elif says == "garbage":
        pod.connection.data_received(b"HTTP/1.1 200 OK\r\n\r\n")
    else:
        it.world.clock.pass_time(6.0)
    it.run()
    assert not it.pool._identifying or says not in {"right", "silent"}
    if says == "right":
        it.answer(pod, 3)
        assert client.status == 200 and not pod.transport.is_closing()
    else:
        assert pod.transport.is_closing() or pod.lost
        assert it.world.table.in_flight <= 1
    it.pool.close()
    it.end()


@pytest.mark.parametrize("first", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", b"\x00\x00\x00\x06\x00\x00\x00\x00\x00"])
def test_a_pod_that_speaks_http_1_is_found_out(first: bytes) -> None:
    it = Http2World()
    _, client = begin(it)
    line = it.pool.open_one()
    if first:
        line.connection.data_received(first)
    else:
        line.lose()
    assert client.status == 502
    line.lose()
    it.world.clock.turn()
    it.pool.close()
    assert it.world.proxy.active == 0


@pytest.mark.parametrize("reused", [False, True])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_connection_that_is_lost_under_requests(method: str, reused: bool) -> None:
    it = Http2World()
    begin(it)
    pod = it.open_pod()
    it.answer(pod, 1)
    if not reused:
        pod.lose()
    exchange, client = begin(it, method, 4 if method == "POST" else -1)
    if method == "POST":
        exchange.request_body(b"body")
        exchange.request_end([])
    if not reused:
        pod = it.open_pod()
    it.run()
    pod.lose()
    it.run()
    if reused and method == "GET":
        it.answer(it.open_pod(), 1)
        assert client.status == 200
    else:
        assert client.status == 502
    it.end()


def test_what_a_last_read_brought_is_delivered_before_the_end() -> None:
    it = Http2World()
    clients = [begin(it)[1] for _ in range(8)]
    pod = it.open_pod()
    for number in range(8):
        pod.peer.h2.send_headers(2 * number + 1, [(b":status", b"200")])
    data = pod.peer.say() + frames.frame(0, 0, 1, b"x") * 2000 + frames.frame(0, 1, 3, b"last")
    pod.connection.data_received(data)
    assert pod.connection.codec.needs_turn
    pod.lose()
    assert clients[0].body == b"x" * 2000 and clients[1].body == b"last" and clients[1].has_ended()
    assert clients[0].is_aborted() and clients[0].flushes > 0
    it.end()


def test_a_connection_that_is_gone_needs_no_collector() -> None:
    def connections() -> int:
        return sum(isinstance(one, Http2PodConnection) for one in gc.get_objects())

    it = Http2World()
    gc.collect()
    gc.disable()
    try:
        before = connections()
        for end in ("answered", "lost", "in part", "turn", "reset", "goaway", "error", "websocket"):
            _, client = begin(it, upgrade=b"websocket" if end == "websocket" else b"")
            pod = it.open_pod() if end != "websocket" else it.pool.open_one()
            if end == "answered":
                it.answer(pod, 1)
            elif end == "in part":
                it.answer(pod, 1, ends=False)
            elif end == "turn":
                pod.peer.h2.send_headers(1, [(b":status", b"200")])
                pod.connection.data_received(pod.peer.say() + frames.frame(0, 0, 1, b"x") * 2000)
            elif end == "reset":
                pod.peer.h2.reset_stream(1, CANCEL)
                it.run()
            elif end == "goaway":
                go_away(pod, 1)
            elif end == "error":
                pod.connection.data_received(frames.frame(6, 0, 0, b"x"))
            pod.lose()
            it.pool.lines.clear()
            del pod, client
            for _ in range(10):
                it.world.clock.turn()
            it.pool._new_connections.clear()
            assert connections() == before, end
    finally:
        gc.enable()
    it.end()


# --- WebSockets ---


def test_a_websocket_waits_for_what_the_pod_says_and_is_given_back() -> None:
    it = Http2World()
    exchange, _ = begin(it, upgrade=b"websocket")
    line = it.pool.open_one()
    assert line.connection.reserved_streams == 1 and not line.connection.codec.streams
    exchange.client_gone()
    assert line.connection.reserved_streams == 0
    it.run()
    assert not line.peer.streams
    _, client = begin(it, upgrade=b"websocket")
    assert client.status == 502, "it takes none"
    assert line.connection.reserved_streams == 0
    it.end()


def test_a_websocket_under_which_the_connection_is_lost_before_settings() -> None:
    it = Http2World()
    _, client = begin(it, upgrade=b"websocket")
    line = it.pool.open_one()
    line.lose()
    assert client.status == 502 and line.connection.reserved_streams == 0
    it.end()


def test_a_place_that_a_websocket_could_not_use_is_given_back() -> None:
    it = Http2World()
    begin(it)
    pod = it.open_pod({MAX_CONCURRENT_STREAMS: 1})
    it.answer(pod, 1)
    _, client = begin(it, upgrade=b"websocket")
    assert client.status == 502 and pod.connection.reserved_streams == 0
    begin(it)
    assert not it.pool.dialled and len(pod.peer.streams) == 2
    it.end()


def test_other_upgrades_are_declined() -> None:
    it = Http2World(upgrades=("websocket", "chaos"))
    _, client = begin(it, upgrade=b"chaos")
    pod = it.open_pod({ENABLE_CONNECT_PROTOCOL: 1})
    assert pod.peer.of(1).ended and dict(pod.peer.of(1).fields)[b":method"] == b"GET"
    it.answer(pod, 1)
    assert client.status == 200 and client.has_ended()
    _, client = begin(it, upgrade=b"chaos, websocket")
    assert dict(pod.peer.of(3).fields)[b":protocol"] == b"websocket"
    it.answer(pod, 3, b"", ends=False)
    assert client.status == 101
    pod.peer.send(3, b"", True)
    it.run()
    assert client.has_ended()
    it.end()
