"""Clients of HTTP/2 and of HTTP/1.1, through the proxy, to pods of HTTP/2, in any order of what either may do.

What must hold: every request has one end; no slot is held without its request; no pod connection counts a stream or a
place that nobody has; what came was sent. The peers are those of the `h2` package, which refuse what breaks the
protocol.
"""

from __future__ import annotations

import os

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from activator.codec.http2 import frames
from activator.codec.http2.frames import CANCEL, INITIAL_WINDOW_SIZE, INTERNAL_ERROR, NO_ERROR, REFUSED_STREAM
from activator.config.specs import BuffersSpec
from activator.data_plane.proxy.cancelled import CLOSE_PATIENCE_S
from activator.data_plane.proxy.exchange import ProxiedExchange
from tests.data_plane.http2_peers import WEBSOCKET, Http2World, Line, Peer, request_fields
from tests.data_plane.proxy.proxy_fakes import Client, request_head

DEEP = os.environ.get("ACTIVATOR_DEEP") == "1"
CONNECTS = {frames.ENABLE_CONNECT_PROTOCOL: 1}

numbers = st.integers(0, 9)
sizes = st.sampled_from([0, 1, 100, 16_384, 40_000, 70_000])


class Storm(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.it = Http2World(limit=3, pods=2, buffers=BuffersSpec(response_bytes=20_000))
        self.plain: list[tuple[ProxiedExchange, Client]] = []
        self.answered: dict[tuple[int, int], bool] = {}  # of pods' streams: the final head was sent

    # --- who is there ---

    def client(self, number: int) -> Line | None:
        lines = [line for line in self.it.clients if not line.lost and not line.transport.is_closing()]
        return lines[number % len(lines)] if lines else None

    def pod(self, number: int) -> Line | None:
        lines = [line for pool in self.it.pools for line in pool.lines]
        lines = [line for line in lines if not line.lost and not line.transport.is_closing()]
        return lines[number % len(lines)] if lines else None

    def sendable(self, peer: Peer, number: int) -> int:
        """A stream on which this peer may still send; 0: there is none."""
        found = [one for one in sorted(peer.streams) if one in peer.h2.streams and self.may_send(peer, one)]
        return found[number % len(found)] if found else 0

    def may_send(self, peer: Peer, stream_id: int) -> bool:
        return peer.h2.streams[stream_id].state_machine.state.name in {"OPEN", "HALF_CLOSED_REMOTE"}

    # --- clients ---

    @rule(window=st.sampled_from([65_535, 65_535, 0, 10]))
    def a_client_connects(self, window: int) -> None:
        if len(self.it.clients) < 4:
            self.it.client({INITIAL_WINDOW_SIZE: window})

    @rule(
        number=numbers,
        kind=st.sampled_from(["GET", "POST", "PUT", "websocket", "nowhere", "bad"]),
        size=sizes,
        ends=st.booleans(),
    )
    def a_request(self, number: int, kind: str, size: int, ends: bool) -> None:
        line = self.client(number)
        if line is None or line.peer.h2.open_outbound_streams > 20:
            return
        peer = line.peer
        stream_id = peer.h2.get_next_available_stream_id()
        if kind == "websocket":
            peer.h2.send_headers(stream_id, WEBSOCKET)
        else:
            fields = request_fields(kind.encode(), b"/", b"nowhere.test" if kind == "nowhere" else b"app.test")
            if kind == "bad":
                fields.append((b"Upper", b"case"))
            peer.h2.send_headers(stream_id, fields, end_stream=ends and size == 0)
            if size:
                peer.send(stream_id, b"c" * size, ends)
        peer.of(stream_id)

    @rule(has_body=st.booleans(), upgrade=st.sampled_from([b"", b"", b"websocket"]))
    def a_request_over_http_1(self, has_body: bool, upgrade: bytes) -> None:
        head = request_head("PUT" if has_body else "GET", chunked=has_body)
        head.upgrade = b"" if has_body else upgrade
        self.plain.append(self.it.world.begin(head))

    @rule(number=numbers, what=st.sampled_from(["body", "end", "gone", "full", "drained"]))
    def over_http_1(self, number: int, what: str) -> None:
        running = [one for one, _ in self.plain if not one.over]
        if not running:
            return
        one = running[number % len(running)]
        if what == "gone":
            one.client_gone()
        elif what == "full":
            one.client_blocked()
        elif what == "drained":
            one.client_drained()
        elif one.head.has_body or one.status == 101:
            if what == "body" and not one.request_done:
                one.request_body(b"b" * 5)
            elif what == "end" and not one.request_done:
                one.request_end([])

    @rule(
        of_client=st.booleans(), number=numbers, stream=numbers, size=sizes, ends=st.booleans(), trailers=st.booleans()
    )
    def someone_sends(self, of_client: bool, number: int, stream: int, size: int, ends: bool, trailers: bool) -> None:
        line = self.client(number) if of_client else self.pod(number)
        if line is None:
            return
        stream_id = self.sendable(line.peer, stream)
        if stream_id == 0 or (not of_client and not self.answered.get((id(line), stream_id))):
            return
        if ends and trailers and size == 0:
            line.peer.h2.send_headers(stream_id, [(b"a", b"b")], end_stream=True)
        else:
            line.peer.send(stream_id, b"s" * size, ends)

    @rule(
        of_client=st.booleans(),
        number=numbers,
        stream=numbers,
        code=st.sampled_from([CANCEL, NO_ERROR, REFUSED_STREAM, INTERNAL_ERROR]),
    )
    def someone_resets(self, of_client: bool, number: int, stream: int, code: int) -> None:
        line = self.client(number) if of_client else self.pod(number)
        if line is None:
            return
        stream_ids = [
            one for one in sorted(line.peer.streams) if one in line.peer.h2.streams and line.peer.h2.streams[one].open
        ]
        if stream_ids:
            line.peer.h2.reset_stream(stream_ids[stream % len(stream_ids)], code)

    @rule(of_client=st.booleans(), number=numbers, how=st.sampled_from(["lost", "reset", "eof"]))
    def a_connection_ends(self, of_client: bool, number: int, how: str) -> None:
        line = self.client(number) if of_client else self.pod(number)
        if line is None:
            return
        if how == "eof":
            line.connection.eof_received()
        line.lose(ConnectionResetError() if how == "reset" else None)

    @rule(of_client=st.booleans(), number=numbers, window=st.sampled_from([0, 10, 20_000, 65_535]))
    def someone_changes_its_windows(self, of_client: bool, number: int, window: int) -> None:
        line = self.client(number) if of_client else self.pod(number)
        if line is not None:
            line.peer.set_window(window)

    @rule(of_client=st.booleans(), number=numbers, takes=st.booleans())
    def a_transport_fills(self, of_client: bool, number: int, takes: bool) -> None:
        line = self.client(number) if of_client else self.pod(number)
        if line is None or line.transport.takes == takes:
            return
        line.transport.takes = takes
        if takes:
            line.transport.take(len(line.transport.buffer))
            line.connection.resume_writing()
        else:
            line.connection.pause_writing()

    @rule(number=numbers)
    def a_client_connection_is_cut(self, number: int) -> None:
        line = self.client(number)
        if line is not None:
            line.connection.abort(True)
            line.lose()

    # --- pods ---

    @rule(number=numbers, settings_of=st.sampled_from([{}, CONNECTS]))
    def a_dial_succeeds(self, number: int, settings_of: dict[int, int]) -> None:
        pools = [pool for pool in self.it.pools if pool.dialled]
        if pools:
            pools[number % len(pools)].open_one(dict(settings_of))

    @rule(
        number=numbers,
        stream=numbers,
        status=st.sampled_from([b"200", b"200", b"204", b"500", b"103"]),
        ends=st.booleans(),
    )
    def a_pod_answers(self, number: int, stream: int, status: bytes, ends: bool) -> None:
        line = self.pod(number)
        if line is None:
            return
        stream_id = self.sendable(line.peer, stream)
        if stream_id == 0 or self.answered.get((id(line), stream_id)):
            return
        last = ends if status != b"103" else False
        line.peer.h2.send_headers(stream_id, [(b":status", status)], end_stream=last or status == b"204")
        if status != b"103":
            self.answered[id(line), stream_id] = True

    @rule(number=numbers, last=st.sampled_from([0, 1, 3, 2**31 - 1]), code=st.sampled_from([NO_ERROR, INTERNAL_ERROR]))
    def a_pod_goes_away(self, number: int, last: int, code: int) -> None:
        line = self.pod(number)
        if line is not None:
            line.connection.data_received(frames.go_away(last, code, ""))

    @rule(number=numbers, most=st.sampled_from([0, 1, 2, 100]))
    def a_pod_changes_its_bound(self, number: int, most: int) -> None:
        """Its library knows nothing of it: it would refuse what crosses, and take the ACK for that of its own ones."""
        line = self.pod(number)
        if line is None or any(len(values) > 1 for values in line.peer.h2.local_settings._settings.values()):
            return
        if line.connection.codec.is_settled() and line.transport.takes:
            line.connection.data_received(frames.settings_frame([(frames.MAX_CONCURRENT_STREAMS, most)]))
            self.it.world.clock.turn()
            line.to_peer()  # the acknowledgement, which it would take for that of other settings

    @rule(number=numbers, how=st.sampled_from(["move", "garbage", "close idle"]))
    def a_pod_changes(self, number: int, how: str) -> None:
        pool = self.it.pools[number % 2]
        if how == "move":
            pool.change_address(pool._address)
        elif how == "close idle":
            pool.close_idle_one()
        else:
            line = self.pod(number)
            if line is not None:
                line.connection.data_received(b"\x00\x00\x01\x06\x00\x00\x00\x00\x00x")

    # --- time ---

    @rule(cut=st.sampled_from([1 << 20, 1 << 20, 1000, 7]))
    def everything_arrives(self, cut: int) -> None:
        self.it.run(cut)

    @rule(to_peer=st.booleans(), number=numbers)
    def something_arrives(self, to_peer: bool, number: int) -> None:
        lines = [line for line in self.it.lines() if not line.lost]
        if lines:
            line = lines[number % len(lines)]
            if to_peer:
                line.to_peer()
            else:
                line.to_us()

    @rule()
    def a_turn_ends(self) -> None:
        self.it.world.clock.turn()

    @rule(seconds=st.sampled_from([0.1, 6.0, 40.0]))
    def time_passes(self, seconds: float) -> None:
        self.it.world.clock.pass_time(seconds)

    # --- what must hold ---

    @invariant()
    def nothing_is_counted_twice(self) -> None:
        it = self.it
        assert not it.world.errors
        assert it.registry.streams == sum(
            len(line.connection._codec.streams)
            for line in it.clients
            if hasattr(line.connection, "_codec") and not line.lost
        )
        it.world.clock.turn()  # what a request leaves unused is given back at the end of the turn
        for pool in it.pools:
            held = 0
            for line in pool.lines:
                connection = line.connection
                waiting = [one for one, _, _ in connection._before_settings if one.has_place]
                assert connection.reserved_streams == len(waiting)
                if not connection.is_closed:
                    held += len(connection.codec.streams) + connection.reserved_streams
                    assert connection in pool._open
                    if connection.is_ready:
                        assert connection in pool._ready
                    else:
                        assert connection not in pool._ready
                        assert connection.room() == 0, "it has room, and nobody knows"
            assert len(set(pool._ready)) == len(pool._ready)
            assert all(not one.is_closed for one in pool._ready)
            if pool._waiting and not pool.dialled:
                assert not pool.window.has_room() or pool._room_being_opened() >= len(pool._waiting)
        it.world.table.check_invariants()

    def teardown(self) -> None:
        it = self.it
        for exchange, _ in self.plain:
            exchange.client_gone()
        for line in it.clients:
            line.lose()
        for _ in range(20):
            it.world.clock.turn()
        it.world.clock.pass_time(2 * CLOSE_PATIENCE_S)  # the slot of a tunnel whose client had ended its side is kept
        assert it.world.proxy.active == 0 and it.world.table.in_flight == 0
        for pool in it.pools:
            for line in pool.lines:
                connection = line.connection
                # What is left has been told to the pod, which may be slow to take it.
                assert connection.reserved_streams == 0
                for stream in connection.codec.streams.values():
                    assert stream.user is None or stream.user.exchange is None
        it.end()
        for exchange, client in self.plain:
            # The pod may end its direction of a tunnel, and the connection then break.
            assert not (client.ended and client.aborted) or exchange.was_tunnel()


TestStorm = Storm.TestCase
TestStorm.settings = settings(max_examples=2000 if DEEP else 100, stateful_step_count=80 if DEEP else 50)


def test_a_second_connection_without_settings_is_not_waited_for_longer_than_the_first() -> None:
    """The look at the first one came too early for the second, and no other look followed."""
    storm = Storm()
    storm.a_request_over_http_1(has_body=False, upgrade=b"")
    storm.a_dial_succeeds(number=0, settings_of={})
    storm.time_passes(seconds=0.1)
    for _ in range(2):
        storm.a_request_over_http_1(has_body=False, upgrade=b"")
    storm.a_connection_ends(how="lost", number=0, of_client=False)
    storm.a_dial_succeeds(number=0, settings_of={})
    pool = storm.it.pools[0]
    assert pool._waiting and not pool.dialled
    storm.time_passes(seconds=6.0)
    assert pool.dialled
    storm.teardown()
