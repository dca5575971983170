"""One HTTP/2 connection of a client, turn by turn, with a client and pods that speak by the `h2` package."""

from __future__ import annotations

import gc

import pytest

from activator.codec.http1.request import RequestLimits
from activator.codec.http2 import frames
from activator.codec.http2.budgets import RESETS_BURST
from activator.codec.http2.frames import (
    CANCEL,
    INTERNAL_ERROR,
    NO_ERROR,
    PREFACE,
    PROTOCOL_ERROR,
    REFUSED_STREAM,
    STREAM_ID_MAX,
)
from activator.config.specs import TimeoutsSpec
from activator.data_plane.server.http1_connection import Http1Connection
from activator.data_plane.server.http2_connection import (
    CHECK_INTERVAL_S,
    DRAIN_PING_S,
    FRAME_TIMEOUT_S,
    UNTAKEN_BYTES_MAX,
    Http2ClientConnection,
)
from activator.runtime.reasons import Reason
from activator.runtime.transport import FLUSH_S
from tests.data_plane.http2_peers import IDLE_S, WEBSOCKET, Http2World, Line, request_fields
from tests.data_plane.proxy.proxy_fakes import SEND_TIMEOUT_S
from tests.written_transport import WrittenTransport

INITIAL_WINDOW = frames.INITIAL_WINDOW_SIZE
GET = b"GET / HTTP/1.1\r\nHost: app.test\r\n\r\n"
STREAMS_MAX = frames.MAX_CONCURRENT_STREAMS
CONNECTS = {frames.ENABLE_CONNECT_PROTOCOL: 1}


def pass_time(it: Http2World, seconds: float, step_s: float = 1.0) -> None:
    """Everything that falls due, with turns in between."""
    while seconds > 0:
        it.world.clock.pass_time(min(step_s, seconds))
        seconds -= step_s
        it.run()


# --- the first bytes ---


@pytest.mark.parametrize("at", range(1, len(PREFACE)))
def test_a_preface_may_be_cut_anywhere(at: int) -> None:
    it = Http2World()
    line = it.client()
    connection, transport = Http1Connection(it.registry), WrittenTransport()
    other = Line(connection, line.peer)
    transport.set_protocol = lambda protocol: setattr(other, "connection", protocol)  # type: ignore[method-assign]
    connection.connection_made(transport)
    connection.data_received(PREFACE[:at])
    assert transport.sent == b"" and other.connection is connection
    connection.data_received(PREFACE[at:] + frames.settings_frame([]))
    assert isinstance(other.connection, Http2ClientConnection)
    it.world.clock.turn()
    assert transport.sent[3:5] == b"\x04\x00", "SETTINGS come first"
    assert len(it.registry.connections) == 2 and it.registry.accepted_total == 2
    other.connection.connection_lost(None)
    it.end()


def test_everything_may_come_byte_by_byte() -> None:
    it = Http2World()
    client = it.client(cut=1)
    _, heard = it.request(client, request_fields(b"POST"), b"x" * 100)
    pod = it.open_pod()
    it.answer(pod, 1)
    assert heard.status == 200 and heard.body == b"hello" and pod.peer.of(1).body == b"x" * 100
    it.end()


@pytest.mark.parametrize("method", ["POST", "P", "PR", "PRI", "PROPFIND", "PRIX", "GET"])
@pytest.mark.parametrize("at", [1, 2, 3, 5])
def test_what_only_begins_like_the_preface_is_http_1(method: str, at: int) -> None:
    it = Http2World()
    connection, transport = Http1Connection(it.registry), WrittenTransport()
    connection.connection_made(transport)
    request = f"{method} / HTTP/1.1\r\nHost: nowhere.test\r\n\r\n".encode()
    connection.data_received(request[:at])
    connection.data_received(request[at:])
    it.world.clock.turn()
    assert transport.sent.startswith(b"HTTP/1.1 404 "), transport.sent
    connection.connection_lost(None)
    it.end()


@pytest.mark.parametrize("first", [b"PRI / HTTP/2.0\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSN\r\n\r\n"])
def test_what_is_neither_is_refused_in_http_1(first: bytes) -> None:
    it = Http2World()
    connection, transport = Http1Connection(it.registry), WrittenTransport()
    connection.connection_made(transport)
    connection.data_received(first)
    it.world.clock.turn()
    assert transport.sent.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 505 ")), transport.sent
    connection.connection_lost(None)
    it.end()


def test_behind_alpn_anything_but_the_preface_is_refused() -> None:
    it = Http2World()
    connection, transport = Http2ClientConnection(it.registry), WrittenTransport()
    connection.connection_made(transport)
    connection.data_received(GET)
    it.world.clock.turn()
    assert transport.sent[-100:].find(b"preface") > 0 and transport.eof
    connection.connection_lost(None)
    it.end()


# --- requests and answers ---


def test_requests_of_one_read_begin_in_their_order_and_are_answered_in_any() -> None:
    it = Http2World()
    client = it.client()
    peer = client.peer
    for number in range(5):
        peer.h2.send_headers(2 * number + 1, request_fields(b"GET", b"/%d" % number), end_stream=True)
    it.run()
    pod = it.open_pod()
    assert [dict(pod.peer.of(2 * number + 1).fields)[b":path"] for number in range(5)] == [
        b"/%d" % number for number in range(5)
    ]
    for number in (3, 1, 4, 0, 2):
        it.answer(pod, 2 * number + 1, b"%d" % number)
        assert peer.of(2 * number + 1).body == b"%d" % number
    it.end()


def test_a_reset_frees_the_slot_in_the_same_turn() -> None:
    it = Http2World(limit=1)
    client, other = it.client(), it.client()
    stream_id, _ = it.request(client)
    pod = it.open_pod()
    assert set(pod.peer.streams) == {1}
    it.request(other)
    assert it.world.throttler.queue.waiters.length == 1
    client.peer.h2.reset_stream(stream_id, CANCEL)
    client.to_us()
    assert it.world.throttler.queue.waiters.length == 0 and it.world.table.in_flight == 1
    sent = pod.transport.sent
    it.run()
    assert pod.transport.sent.startswith(sent)
    assert pod.peer.of(1).code == CANCEL and pod.peer.of(3).fields
    it.end()


@pytest.mark.parametrize("answered", [False, True])
def test_a_request_that_ends_early_leaves_others_alone(answered: bool) -> None:
    it = Http2World()
    client = it.client()
    first, first_heard = it.request(client, request_fields(b"POST"), b"x", ends=False)
    _, second = it.request(client)
    pod = it.open_pod()
    if answered:
        it.answer(pod, 1, b"part", ends=False)
        assert first_heard.body == b"part"
    client.peer.h2.reset_stream(first, CANCEL)
    it.run()
    assert pod.peer.of(1).code == CANCEL
    it.answer(pod, 3)
    assert second.ended and second.body == b"hello" and it.registry.streams_reset_total == 1
    it.end()


def test_an_early_answer_resets_what_is_left_of_its_request() -> None:
    it = Http2World()
    client = it.client()
    _, heard = it.request(client, request_fields(b"POST"), b"x", ends=False)
    pod = it.open_pod()
    it.answer(pod, 1, b"no", status=b"403")
    assert heard.status == 403 and heard.body == b"no" and heard.ended and heard.code == NO_ERROR
    assert pod.peer.of(1).code is not None and it.registry.streams == 0
    it.end()


def test_an_answer_that_is_cut_short_resets_its_stream() -> None:
    it = Http2World()
    client = it.client()
    _, heard = it.request(client)
    pod = it.open_pod()
    it.answer(pod, 1, b"part", ends=False)
    pod.lose()
    it.run()
    assert heard.status == 200 and heard.body == b"part" and heard.code == INTERNAL_ERROR
    assert not client.peer.goaways
    it.end()


def test_pieces_of_one_body_never_overtake_each_other() -> None:
    """A large piece is written at once; what is gathered at that moment may be of the same stream."""
    it = Http2World()
    client = it.client({INITIAL_WINDOW: 1 << 20})
    client.peer.takes = False
    _, heard = it.request(client)
    pod = it.open_pod()
    body = bytes(at * 7 % 251 for at in range(120_000))
    pod.peer.h2.send_headers(1, [(b":status", b"200")])
    sent = pod.peer.send(1, body[:65_535], False)
    it.run()
    pod.peer.send(1, body[sent:], False)
    client.peer.h2.increment_flow_control_window(1 << 20)
    pod.to_us()
    client.to_us()
    it.run()
    assert heard.body == body
    it.end()


def test_streams_of_a_zero_window_wait_and_hold_up_nobody() -> None:
    it = Http2World()
    client = it.client({INITIAL_WINDOW: 0})
    client.peer.takes = False
    _, first = it.request(client)
    second_id, second = it.request(client)
    pod = it.open_pod()
    it.answer(pod, 1)
    it.answer(pod, 3)
    assert first.status == second.status == 200 and first.body == second.body == b""
    client.peer.h2.increment_flow_control_window(100, second_id)
    it.run()
    assert second.body == b"hello" and second.ended and not first.is_over()
    client.peer.h2.update_settings({INITIAL_WINDOW: 3})
    it.run()
    assert first.body == b"hel"
    client.peer.h2.update_settings({INITIAL_WINDOW: 65_535})
    it.run()
    assert first.body == b"hello" and first.ended
    it.end()


def test_a_window_may_shrink_below_zero() -> None:
    it = Http2World()
    client = it.client({INITIAL_WINDOW: 10})
    client.peer.takes = False
    stream_id, heard = it.request(client)
    pod = it.open_pod()
    it.answer(pod, 1, b"0123456789abcdef")
    assert heard.body == b"0123456789"
    client.peer.h2.update_settings({INITIAL_WINDOW: 0})
    it.run()
    client.peer.h2.increment_flow_control_window(10, stream_id)
    it.run()
    assert heard.body == b"0123456789" and not heard.is_over()
    client.peer.h2.increment_flow_control_window(6, stream_id)
    it.run()
    assert heard.body == b"0123456789abcdef" and heard.ended
    it.end()


@pytest.mark.parametrize("how", ["window", "transport"])
def test_a_slow_client_pauses_its_pod_and_no_other(how: str) -> None:
    it = Http2World()
    client, other = it.client(), it.client()
    client.peer.takes = False
    _, heard = it.request(client)
    it.request(other)
    pod = it.open_pod()
    if how == "transport":
        client.connection.pause_writing()
    pod.peer.h2.send_headers(1, [(b":status", b"200")])
    sent = 0
    for _ in range(100):
        sent += pod.peer.send(1, b"x" * 50_000, False)
        it.run()
    assert sent < 1_000_000, "the pod's window is not given back"
    it.answer(pod, 3)
    assert other.peer.of(1).ended
    if how == "transport":
        client.connection.resume_writing()
    client.peer.takes = True
    client.peer.h2.increment_flow_control_window(1 << 20)
    client.peer.h2.increment_flow_control_window(1 << 20, 1)
    it.run()
    for _ in range(20):
        sent += pod.peer.send(1, b"x" * 50_000, False)
        it.run()
    pod.peer.send(1, b"", True)
    it.run()
    assert sent > 1_000_000 and len(heard.body) == sent and heard.ended
    it.end()


def test_who_takes_nothing_of_an_answer_is_not_waited_for() -> None:
    it = Http2World()
    client = it.client({INITIAL_WINDOW: 0})
    _, heard = it.request(client)
    _, large = it.request(client)
    pod = it.open_pod()
    it.answer(pod, 1)
    it.answer(pod, 3, b"x" * 65_000, ends=False)
    pod.peer.send(3, b"y" * 20_000, False)
    it.run()
    assert it.world.proxy.active == 1
    pass_time(it, SEND_TIMEOUT_S + CHECK_INTERVAL_S + 1.0)
    assert large.code == INTERNAL_ERROR and it.world.proxy.active == 0
    pass_time(it, FLUSH_S)
    assert heard.code == CANCEL and it.registry.streams == 0
    it.end()


def test_who_takes_some_of_it_is_waited_for() -> None:
    it = Http2World()
    client = it.client({INITIAL_WINDOW: 0})
    client.peer.takes = False
    stream_id, heard = it.request(client)
    pod = it.open_pod()
    it.answer(pod, 1, b"x" * 20)
    for _ in range(20):
        client.peer.h2.increment_flow_control_window(1, stream_id)
        it.run()
        pass_time(it, FLUSH_S - CHECK_INTERVAL_S)
    assert heard.ended and heard.body == b"x" * 20
    it.end()


# --- bounds ---


def test_too_many_streams_are_refused() -> None:
    it = Http2World(streams_max=2)
    client = it.client()
    for _ in range(2):
        it.request(client)
    client.peer.h2.remote_settings[STREAMS_MAX] = 100
    client.peer.h2.remote_settings.acknowledge()
    _, heard = it.request(client)
    assert heard.code == REFUSED_STREAM and it.registry.streams == 2
    pod = it.open_pod()
    it.answer(pod, 1)
    stream_id, heard = it.request(client)
    it.answer(pod, 5)
    assert heard.status == 200 and stream_id == 7
    it.end()


def test_too_many_fields_are_answered() -> None:
    it = Http2World(limits=RequestLimits(headers=5))
    client = it.client()
    _, heard = it.request(client, request_fields(b"POST", b"/", b"app.test", *[b"a", b"b"] * 10), b"x", ends=False)
    assert heard.status == 431 and heard.ended and heard.code == NO_ERROR and it.registry.streams == 0
    assert not client.peer.goaways
    it.end()


def test_an_answer_of_ours_that_nobody_takes_is_given_up() -> None:
    """It belongs to no exchange: nothing but the connection's own look ends it, and lets a drain end."""
    it = Http2World(limits=RequestLimits(headers=5))
    client = it.client({INITIAL_WINDOW: 0})
    pass_time(it, 2 * CHECK_INTERVAL_S)  # the timer is for idleness by now
    _, heard = it.request(client, request_fields(b"GET", b"/", b"app.test", *[b"a", b"b"] * 10))
    assert heard.status == 431 and not heard.ended
    pass_time(it, FLUSH_S + 2 * CHECK_INTERVAL_S)
    assert heard.code == CANCEL and it.registry.streams == 0
    it.end()


def test_a_body_that_is_too_large_is_answered() -> None:
    it = Http2World(limits=RequestLimits(body_bytes=1000))
    client = it.client()
    _, heard = it.request(client, request_fields(b"POST"), b"x" * 2000, ends=False)
    assert heard.status == 413 and heard.code == NO_ERROR and heard.ended
    _, heard = it.request(client, request_fields(b"POST", b"/", b"app.test", b"content-length", b"1001"), b"x" * 1001)
    assert heard.status == 413 and heard.ended
    it.end()


def test_a_body_that_is_too_large_cuts_an_answer_that_has_begun() -> None:
    it = Http2World(limits=RequestLimits(body_bytes=1000))
    client = it.client()
    stream_id, heard = it.request(client, request_fields(b"POST"), b"x" * 500, ends=False)
    pod = it.open_pod()
    it.answer(pod, 1, b"part", ends=False)
    client.peer.send(stream_id, b"x" * 600, True)
    it.run()
    assert heard.code == INTERNAL_ERROR and pod.peer.of(1).code is not None and it.registry.streams == 0
    it.end()


def test_a_body_that_comes_too_slowly_ends_its_request() -> None:
    it = Http2World(body_rate=240)
    client = it.client()
    stream_id, heard = it.request(client, request_fields(b"POST"), b"x", ends=False)
    for _ in range(8):
        client.peer.send(stream_id, b"x" * 300, False)
        pass_time(it, 1.0)
    assert not heard.is_over()
    pass_time(it, 2 * CHECK_INTERVAL_S + 1.0)
    assert heard.status == 408 and heard.code == NO_ERROR
    it.end()


def test_a_client_that_had_to_wait_with_its_body_is_not_blamed_for_it() -> None:
    it = Http2World(held_body_bytes=1000, body_rate=2000)
    client = it.client()
    peer = client.peer
    stream_id, heard = it.request(client, request_fields(b"POST"), b"x" * 32_000, ends=False)
    pass_time(it, CHECK_INTERVAL_S)  # the first look is over; from here on, the body waits for a pod
    pass_time(it, CHECK_INTERVAL_S - 1.0)
    pod = it.open_pod()
    pass_time(it, 1.5)
    assert not heard.is_over(), "the client was let on a second ago"
    for _ in range(12):
        peer.send(stream_id, b"x" * 3_500, False)
        pass_time(it, 1.0)
    assert not heard.is_over()
    pass_time(it, 2 * CHECK_INTERVAL_S + 1.0)
    assert heard.status == 408 and pod.peer.of(1).code is not None
    it.end()


def test_who_waits_for_a_100_is_not_blamed_either() -> None:
    it = Http2World()
    client = it.client()
    fields = request_fields(b"POST", b"/", b"app.test", b"expect", b"100-continue")
    stream_id, heard = it.request(client, fields, b"", ends=False)
    pass_time(it, 3 * CHECK_INTERVAL_S - 1.0)
    pod = it.open_pod()
    pod.peer.h2.send_headers(1, [(b":status", b"100")])
    it.run()
    assert [dict(one)[b":status"] for one in heard.interim] == [b"100"]
    pass_time(it, 2.0)
    assert not heard.is_over()
    client.peer.send(stream_id, b"x", True)
    it.run()
    it.answer(pod, 1)
    assert heard.ended
    it.end()


@pytest.mark.parametrize("with_stream", [False, True])
@pytest.mark.parametrize("pieces", ["none", "empty", "bytes"])
def test_a_field_section_that_does_not_end_is_not_waited_for(with_stream: bool, pieces: str) -> None:
    it = Http2World()
    client = it.client()
    if with_stream:
        it.request(client)
    client.connection.data_received(frames.frame(frames.HEADERS, 0, 3, b"\x82"))
    for _ in range(int(FRAME_TIMEOUT_S + 2 * CHECK_INTERVAL_S)):
        it.world.clock.pass_time(1.0)
        it.run()
        if client.transport.eof:
            break
        if pieces != "none":
            client.connection.data_received(
                frames.frame(frames.CONTINUATION, 0, 3, b"" if pieces == "empty" else b"\x84")
            )
    assert client.transport.eof and client.peer.goaways[-1][1] == PROTOCOL_ERROR
    it.end()


def test_a_frame_that_does_not_end_is_not_waited_for() -> None:
    it = Http2World()
    client = it.client()
    client.connection.data_received(frames.frame(frames.PING, 0, 0, b"12345678")[:-1])
    pass_time(it, FRAME_TIMEOUT_S - 1.0)
    assert not client.peer.goaways
    pass_time(it, 2 * CHECK_INTERVAL_S)
    assert client.transport.eof
    it.end()


def test_an_idle_connection_is_told_and_closed() -> None:
    it = Http2World()
    client = it.client()
    it.request(client)
    pod = it.open_pod()
    pass_time(it, 10.0)
    it.answer(pod, 1)
    pass_time(it, IDLE_S - 5.0)
    assert not client.transport.is_closed()
    pass_time(it, 2 * CHECK_INTERVAL_S)
    assert client.transport.is_closed() and client.peer.goaways == [(1, NO_ERROR)]
    it.end()


def test_one_connection_too_many_is_told_to_calm_down() -> None:
    it = Http2World(connections_max=1)
    it.client()
    connection, transport = Http2ClientConnection(it.registry), WrittenTransport()
    connection.connection_made(transport)
    it.world.clock.turn()
    assert b"the proxy is overloaded" in transport.sent and transport.eof
    assert it.registry.http2_errors == {"ENHANCE_YOUR_CALM": 1}
    connection.data_received(PREFACE)
    connection.connection_lost(None)
    it.end()


@pytest.mark.parametrize("kind", ["heads", "pings"])
def test_who_takes_no_heads_and_answers_to_pings_is_not_read_either(kind: str) -> None:
    """No window bounds these: a client that reads nothing would have us keep them for it without an end."""
    it = Http2World(timeouts=TimeoutsSpec(first_byte_s=0.0, idle_s=0.0, total_s=0.0))
    client = it.client()
    it.request(client, request_fields(b"HEAD"))
    pod = it.open_pod()
    if kind == "heads":
        it.answer(pod, 1, b"")
    client.transport.takes = False
    client.connection.pause_writing()
    requests = 0
    for number in range(3000):
        if client.transport.is_paused():
            break
        if kind == "pings":
            it.world.clock.pass_time(10.0)
            client.connection.data_received(frames.frame(frames.PING, 0, 0, b"12345678") * 500)
            it.world.clock.turn()
            continue
        requests += 1
        stream_id = 3 + 2 * number
        client.connection.data_received(frames.frame(1, 5, stream_id, b"\x82\x86\x84\x41\x08app.test"))
        it.run()
        latest = max(pod.peer.streams)
        pod.peer.h2.send_headers(latest, [(b":status", b"204"), (b"x", b"%d" % number * 200)], end_stream=True)
        pod.to_us()
        it.world.clock.turn()
    assert client.transport.is_paused() and client.connection in it.registry.paused
    assert len(client.transport.buffer) < UNTAKEN_BYTES_MAX + 100_000
    client.transport.buffer = b""
    client.connection.resume_writing()
    assert not client.transport.is_paused() and client.connection not in it.registry.paused
    it.world.clock.turn()
    client.lost = True
    client.connection.connection_lost(None)
    it.end()


# --- ends ---


def test_a_drain_serves_what_was_on_its_way() -> None:
    it = Http2World()
    client = it.client()
    _, heard = it.request(client)
    pod = it.open_pod()
    it.registry.draining = True
    client.connection.drain()
    # A request that crosses the announcement.
    stream_id = client.peer.h2.get_next_available_stream_id()
    client.peer.h2.send_headers(stream_id, request_fields(), end_stream=True)
    client.to_us()
    it.run()
    assert client.peer.goaways == [(STREAM_ID_MAX, NO_ERROR), (stream_id, NO_ERROR)]
    client.connection.drain()
    assert not client.transport.is_closed()
    # One that is too late is ignored.
    late = frames.frame(1, 5, stream_id + 2, b"\x82\x86\x84\x41\x08app.test")
    client.connection.data_received(late)
    client.connection.data_received(frames.frame(0, 1, stream_id + 2, b"x"))
    assert len(pod.peer.streams) == 2 and it.registry.streams == 2
    it.answer(pod, 1)
    client.connection.drain()
    assert not client.transport.is_closed()
    it.answer(pod, 3)
    client.connection.drain()
    it.run()
    assert client.transport.is_closed() and heard.ended and client.peer.of(stream_id).ended
    it.end()


def test_a_drain_does_not_wait_for_who_answers_no_ping() -> None:
    it = Http2World()
    client = it.client()
    client.connection.drain()
    it.world.clock.turn()
    it.world.clock.pass_time(DRAIN_PING_S - 0.1)
    client.connection.drain()
    assert not client.transport.is_closed()
    it.world.clock.pass_time(0.2)
    client.connection.drain()
    assert client.transport.is_closed()
    it.end()


@pytest.mark.parametrize("how", ["lost", "eof", "abort", "peer has ended", "error", "calm"])
@pytest.mark.parametrize("phase", ["waiting", "sent", "answering", "blocked", "tunnel"])
def test_the_end_of_a_connection_is_the_end_of_all_its_requests(how: str, phase: str) -> None:
    it = Http2World()
    client = it.client({INITIAL_WINDOW: 0} if phase == "blocked" else None)
    for _ in range(3):
        it.request(client, WEBSOCKET if phase == "tunnel" else request_fields(b"POST"), b"x", ends=False)
    if phase != "waiting":
        pod = it.open_pod(CONNECTS)
        for stream_id in (1, 3, 5):
            if phase != "sent":
                it.answer(pod, stream_id, b"part", ends=False)
    connection = client.connection
    if how == "eof":
        assert not connection.eof_received()
    elif how == "abort":
        connection.abort(True)
    elif how == "peer has ended":
        connection.peer_has_ended(True)
    elif how == "error":
        connection.data_received(frames.frame(frames.PING, 0, 0, b"x"))
    elif how == "calm":
        connection.data_received(frames.frame(frames.PING, 0, 0, b"12345678") * 5000)
        for _ in range(20):
            it.world.clock.turn()
    else:
        client.lose()
    assert it.world.proxy.active == 0 and it.world.table.in_flight == 0
    it.end()


def test_a_request_whose_client_has_gone_is_not_begun() -> None:
    it = Http2World()
    client = it.client()
    peer = client.peer
    peer.h2.send_headers(1, request_fields(), end_stream=True)
    peer.h2.reset_stream(1, CANCEL)
    peer.h2.send_headers(3, request_fields(), end_stream=True)
    it.run()
    pod = it.open_pod()
    assert len(pod.peer.streams) == 1
    it.answer(pod, 1)
    assert peer.of(3).ended
    it.end()


def test_a_malformed_request_resets_its_stream_and_is_counted() -> None:
    it = Http2World()
    client = it.client()
    _, heard = it.request(client, [*request_fields(), (b"connection", b"close")])
    assert heard.code == PROTOCOL_ERROR and it.registry.streams_failed_total == 1
    assert it.world.proxy.refused_requests[Reason.BAD_REQUEST] == 1
    # And one that turns out to be so behind its head.
    stream_id, heard = it.request(
        client, request_fields(b"POST", b"/", b"app.test", b"content-length", b"5"), b"1", ends=False
    )
    pod = it.open_pod()
    client.peer.h2.streams[stream_id]._expected_content_length = None
    client.connection.data_received(frames.frame(0, 1, stream_id, b"234567"))
    it.run()
    assert heard.code == PROTOCOL_ERROR and pod.peer.of(1).code == CANCEL
    it.end()


def test_a_malformed_request_that_is_one_too_many_is_not_counted() -> None:
    it = Http2World()
    client = it.client()
    for number in range(RESETS_BURST + 1):
        client.connection.data_received(frames.frame(frames.HEADERS, 5, 2 * number + 1, b"\x82"))
        it.world.clock.turn()
    assert it.registry.http2_errors == {"ENHANCE_YOUR_CALM": 1}
    it.end()


def test_a_connection_that_is_gone_needs_no_collector() -> None:
    def connections() -> int:
        return sum(isinstance(one, Http2ClientConnection) for one in gc.get_objects())

    it = Http2World(limits=RequestLimits(headers=20))
    begin = PREFACE + frames.settings_frame([])
    head = frames.frame(1, 5, 1, b"\x82\x86\x84\x41\x08app.test")
    open_head = frames.frame(1, 4, 1, b"\x83\x86\x84\x41\x08app.test")
    gc.collect()
    gc.disable()
    try:
        before = connections()
        for data in (
            b"",
            begin,
            begin + head,
            begin + open_head + frames.frame(0, 0, 1, b"x" * 1000),
            begin + open_head + frames.reset_stream(1, CANCEL),
            begin + frames.frame(1, 0, 1, b"\x82"),
            begin + frames.frame(1, 5, 1, b"\x82\x86\x84\x41\x08app.test" + b"\x00\x01a\x01b" * 30),
            begin + frames.ping(b"12345678", False) * 5000,
            begin + b"garbage" * 100,
            b"garbage",
        ):
            connection = Http2ClientConnection(it.registry)
            connection.connection_made(WrittenTransport())
            if data:
                connection.data_received(data)
            connection.connection_lost(None)
            del connection
            for _ in range(10):
                it.world.clock.turn()
        assert connections() == before
    finally:
        gc.enable()
    it.end()


# --- WebSockets ---


def websocket(it: Http2World) -> tuple[Line, int, Line]:
    """One that is open, to a pod that speaks HTTP/2."""
    client = it.client()
    stream_id, heard = it.request(client, WEBSOCKET, ends=False)
    pod = it.open_pod(CONNECTS)
    assert dict(pod.peer.of(1).fields)[b":protocol"] == b"websocket"
    it.answer(pod, 1, b"", ends=False)
    assert heard.status == 200
    return client, stream_id, pod


@pytest.mark.parametrize("first", ["client", "pod"])
def test_a_tunnel_ends_in_each_direction(first: str) -> None:
    it = Http2World()
    client, stream_id, pod = websocket(it)
    heard, asked = client.peer.of(stream_id), pod.peer.of(1)
    client.peer.send(stream_id, b"ping", False)
    pod.peer.send(1, b"pong", False)
    it.run()
    assert heard.body == b"pong" and asked.body == b"ping"
    ends = [(client.peer, stream_id, b"over"), (pod.peer, 1, b"out")]
    for peer, number, last in ends if first == "client" else ends[::-1]:
        assert it.world.proxy.active == 1
        peer.send(number, last, True)
        it.run()
    assert heard.ended and asked.ended and heard.body == b"pongout" and asked.body == b"pingover"
    assert heard.code is None and asked.code is None and it.world.proxy.active == 0
    assert not pod.connection.codec.streams, "its place is free for another request"
    it.end()


def test_a_tunnel_whose_client_ended_before_it_stood() -> None:
    it = Http2World()
    client = it.client()
    _, heard = it.request(client, WEBSOCKET)
    pod = it.open_pod(CONNECTS)
    it.answer(pod, 1, b"", ends=False)
    assert heard.status == 200 and pod.peer.of(1).ended
    pod.peer.send(1, b"bye", True)
    it.run()
    assert heard.ended and heard.body == b"bye" and it.world.proxy.active == 0
    it.end()


@pytest.mark.parametrize("who", ["client", "pod", "drain"])
def test_a_tunnel_that_is_cut(who: str) -> None:
    it = Http2World()
    client, stream_id, pod = websocket(it)
    if who == "client":
        client.peer.h2.reset_stream(stream_id, CANCEL)
    elif who == "pod":
        pod.peer.h2.reset_stream(1, CANCEL)
    else:
        assert client.connection.is_tunnel()
        client.connection.cut()
    it.run()
    assert client.peer.of(stream_id).code == (None if who == "client" else CANCEL)
    assert pod.peer.of(1).code == (None if who == "pod" else CANCEL)
    assert it.world.proxy.active == 0 and it.registry.streams == 0
    it.end()


def test_a_websocket_that_the_pod_declines() -> None:
    it = Http2World()
    client = it.client()
    _, heard = it.request(client, WEBSOCKET, ends=False)
    pod = it.open_pod(CONNECTS)
    it.answer(pod, 1, b"no", status=b"403")
    assert heard.status == 403 and heard.body == b"no" and heard.ended and it.registry.streams == 0
    it.end()


def test_connect_is_refused() -> None:
    it = Http2World()
    client = it.client()
    _, heard = it.request(client, [(b":method", b"CONNECT"), (b":authority", b"app.test")], ends=False)
    assert heard.status == 501
    other = [field if field[0] != b":protocol" else (b":protocol", b"connect-udp") for field in WEBSOCKET]
    _, heard = it.request(client, other, ends=False)
    assert heard.status == 501
    it.end()
