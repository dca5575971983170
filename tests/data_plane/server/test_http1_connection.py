"""One client connection, turn by turn: what its transport is told, and when it is not waited for any longer."""

from __future__ import annotations

import gc

import pytest

from activator.codec.http1.chunks import CHUNKS_PER_TURN_MAX
from activator.codec.http1.request import RequestLimits
from activator.codec.message import UNKNOWN_LENGTH
from activator.data_plane.headers.forwarding import Origins
from activator.data_plane.server.closing import LINGER_S, LINGER_SCARCE_S, LINGER_SILENCE_S
from activator.data_plane.server.http1_connection import (
    BODY_RATE_GRACE_S,
    HALF_CLOSE_PROBE_AGAIN_S,
    HALF_CLOSE_PROBE_S,
    REQUESTS_PER_TURN_MAX,
    Http1Connection,
)
from activator.data_plane.server.http1_stream import ZEROS_MAX
from activator.data_plane.server.registry import PARSERS_KEPT_MAX, SHED_MAX, TCP_CLOSE, ConnectionRegistry
from activator.runtime.buffered_writer import WriteBatcher
from activator.runtime.reading import FULL_READS_PER_TURN_MAX, READ_FULL_BYTES
from activator.runtime.reasons import Reason
from activator.runtime.transport import FLUSH_S
from tests.data_plane.proxy.proxy_fakes import Pool, World, at_pod, response_head
from tests.written_transport import WrittenTransport

GET = b"GET / HTTP/1.1\r\nHost: app.test\r\n\r\n"
LAST = b"GET / HTTP/1.1\r\nHost: app.test\r\nConnection: close\r\n\r\n"
UPLOAD = b"POST / HTTP/1.1\r\nHost: app.test\r\nContent-Length: 1000000\r\n\r\n" + b"u" * 50

AWAITING = b"POST / HTTP/1.1\r\nHost: app.test\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n"

IDLE_S = 75.0


class Visit:
    """A connection to a proxy with one pod, which takes one request at a time."""

    def __init__(self, half_closes: bool = True, body_rate: int = 240, idle_s: float = IDLE_S) -> None:
        self.world = World()
        self.pool: Pool = self.world.pod()
        origins = Origins((), 0, False, b"", 1)
        world = self.world
        self.turn = WriteBatcher(world.clock.defer, world.errors.append)
        self.registry = ConnectionRegistry(
            world.proxy, world.wheel, world.clock.now, RequestLimits(), 10, origins, body_rate, self.turn, idle_s
        )
        self.transport = WrittenTransport(half_closes)
        self.connection = Http1Connection(self.registry)
        self.connection.connection_made(self.transport)

    @property
    def begun(self) -> int:
        """How many requests the pod has got."""
        return len(self.pool.pods)

    def answer(self, body: bytes = b"hello") -> None:
        self.world.answer(self.world.throttler_holder(), body=body)
        self.turn.end()

    def end(self) -> None:
        """The loop tells that it is over; nothing is left."""
        self.connection.connection_lost(None)
        assert not self.registry.connections
        self.world.check_idle()


def test_a_request_sent_ahead_waits_until_the_client_takes_what_is_there() -> None:
    visit = Visit()
    visit.connection.data_received(GET + GET)
    visit.connection.pause_writing()
    visit.answer()
    assert visit.begun == 1  # its answer would be fed to a client that reads nothing, and nobody would stop it
    visit.connection.resume_writing()
    assert visit.begun == 2
    visit.answer()
    visit.end()


def test_the_parser_of_a_closed_connection_serves_the_next_one_with_the_same_limits() -> None:
    visit = Visit()
    registry = visit.registry
    used = []
    for data in (GET, GET + GET[:10], LAST, GET):
        parser = visit.connection._parser
        used.append(parser)
        visit.connection.data_received(data)
        visit.answer()
        visit.connection.connection_lost(None)
        assert not registry.connections
        visit.connection.pause_request(False)  # what comes late finds another parser
        assert visit.connection._parser is not parser
        if data is LAST:
            registry.limits = RequestLimits(headers=7)
        visit.connection = Http1Connection(registry)
        visit.connection.connection_made(WrittenTransport())
    assert used[1] is used[0], "it recognises the head of the former connection"
    assert used[2] is not used[1], "the second connection ended within a head"
    assert used[3] is not used[2] and used[3].limits is registry.limits, "the limits are others"
    registry.limit_connections(2 * PARSERS_KEPT_MAX)
    connections = [Http1Connection(registry) for _ in range(PARSERS_KEPT_MAX + 10)]
    for one in connections:
        one.connection_made(WrittenTransport())
        one.data_received(GET)
        visit.answer()
    for one in connections:
        one.connection_lost(None)
    assert len(registry._parsers) == PARSERS_KEPT_MAX
    visit.end()


def test_so_does_one_that_comes_later() -> None:
    visit = Visit()
    visit.connection.data_received(GET)
    visit.connection.pause_writing()
    visit.answer()
    visit.connection.data_received(GET)
    assert visit.begun == 1
    visit.connection.resume_writing()
    assert visit.begun == 2
    visit.answer()
    visit.end()


@pytest.mark.parametrize("how", ["asked to close", "idle", "end of file"])
def test_who_takes_nothing_of_a_connection_that_closes_is_not_waited_for(how: str) -> None:
    visit = Visit()
    visit.transport.takes = False
    visit.connection.data_received(LAST if how == "asked to close" else GET)
    visit.answer()
    if how == "idle":
        visit.world.clock.pass_time(IDLE_S + 1.0)
    elif how == "end of file":
        assert not visit.connection.eof_received()
        visit.transport.close()
    assert visit.transport.is_closed() and not visit.transport.is_aborted()
    visit.world.clock.pass_time(3 * FLUSH_S)
    assert visit.transport.is_aborted()
    visit.end()


def test_who_takes_some_of_it_is() -> None:
    visit = Visit()
    visit.transport.takes = False
    visit.connection.data_received(LAST)
    visit.answer(b"x" * 1000)
    for _ in range(10):
        visit.world.clock.pass_time(FLUSH_S)
        visit.transport.take(50)
    assert visit.transport.is_closed() and not visit.transport.is_aborted()
    visit.end()


@pytest.mark.parametrize("half_closes", [True, False])
def test_an_early_answer_is_not_cut_while_the_client_takes_it(half_closes: bool) -> None:
    visit = Visit(half_closes)
    visit.connection.data_received(UPLOAD)
    visit.transport.takes = False
    visit.answer(b"x" * 1000)
    visit.connection.data_received(b"u" * 1000)  # read and thrown away: a reset would destroy the answer
    assert not visit.transport.is_closed() and visit.transport.eof == half_closes
    visit.world.clock.pass_time(LINGER_SILENCE_S + 1.0)
    visit.transport.take(500)
    assert not visit.transport.is_closed() and not visit.transport.is_aborted()
    visit.transport.take(5000)
    visit.world.clock.pass_time(FLUSH_S + 1.0)
    assert visit.transport.is_closed() or visit.transport.is_aborted()
    visit.end()


@pytest.mark.parametrize("half_closes", [True, False])
def test_who_goes_on_sending_after_an_early_answer_is_listened_to_for_long(half_closes: bool) -> None:
    visit = Visit(half_closes)
    visit.connection.data_received(UPLOAD)
    visit.answer()
    step_s = LINGER_SILENCE_S - 1.0
    for _ in range(int(LINGER_S / step_s)):
        visit.world.clock.pass_time(step_s)
        assert not visit.transport.is_closed() and not visit.transport.is_aborted()
        visit.connection.data_received(b"u" * 1000)
    visit.world.clock.pass_time(step_s)  # but not for ever
    assert visit.transport.is_closed() if not half_closes else visit.transport.is_aborted()
    visit.end()


def test_a_request_that_is_refused_while_its_body_is_read_is_never_begun() -> None:
    visit = Visit()
    visit.connection.data_received(UPLOAD + b"u" * 2000)
    visit.turn.end()
    assert visit.transport.sent.startswith(b"HTTP/1.1 503 ") and b": held_bytes_full\r\n" in visit.transport.sent
    assert visit.transport.sent.count(b"HTTP/1.1 ") == 1
    assert visit.begun == 0 and visit.world.proxy.active == 0 and visit.transport.eof
    visit.world.clock.pass_time(LINGER_S + 1.0)
    assert visit.transport.is_closed() or visit.transport.is_aborted()
    visit.end()


def test_who_goes_on_sending_does_not_hold_up_a_drain() -> None:
    visit = Visit()
    visit.connection.data_received(UPLOAD)
    visit.answer()
    visit.world.clock.pass_time(LINGER_SCARCE_S + 1.0)
    visit.connection.data_received(b"u" * 1000)
    assert not visit.transport.is_aborted()
    visit.registry.draining = True
    visit.connection.drain()
    assert visit.transport.is_aborted()
    visit.end()


def test_a_drain_does_not_cut_an_early_answer_that_is_being_taken() -> None:
    visit = Visit()
    visit.connection.data_received(UPLOAD)
    visit.transport.takes = False
    visit.answer(b"x" * 1000)
    visit.registry.draining = True
    for _ in range(5):
        visit.world.clock.pass_time(LINGER_SCARCE_S)
        visit.transport.take(50)
        visit.connection.drain()
        visit.connection.drain()
        assert not visit.transport.is_aborted()
    visit.world.clock.pass_time(2 * FLUSH_S)
    visit.world.clock.pass_time(2 * FLUSH_S)
    assert visit.transport.is_aborted()
    visit.end()


@pytest.mark.parametrize("takes", [True, False])
def test_a_client_that_does_not_tell_its_end_over_tls_does_not_hold_up_a_drain(takes: bool) -> None:
    visit = Visit(half_closes=False)
    visit.transport.takes = takes
    visit.connection.data_received(GET)
    visit.answer()
    visit.registry.draining = True
    visit.connection.drain()
    assert visit.transport.is_closed()
    visit.world.clock.pass_time(LINGER_SCARCE_S - 0.5)
    visit.connection.drain()
    assert not visit.transport.is_aborted()
    visit.world.clock.pass_time(0.5)
    visit.connection.drain()
    visit.connection.drain()
    assert visit.transport.is_aborted() == takes, "an answer may be taken as long as the drain lasts"
    visit.end()
    assert visit.registry.given_up == 0


def test_who_is_one_too_many_is_not_listened_to_for_long() -> None:
    visit = Visit()
    crowd = [Http1Connection(visit.registry) for _ in range(visit.registry.connections_max)]
    transports = [WrittenTransport(True) for _ in crowd]
    for connection, transport in zip(crowd, transports, strict=True):
        connection.connection_made(transport)
    assert b"503 Service Unavailable" in transports[-1].sent and visit.registry.shed_total == 1
    crowd[-1].data_received(GET)
    visit.world.clock.pass_time(LINGER_SCARCE_S - 0.5)
    assert not transports[-1].is_aborted()
    crowd[-1].data_received(GET)
    visit.world.clock.pass_time(1.0)
    assert transports[-1].is_aborted()
    for connection in crowd:
        connection.connection_lost(None)
    visit.end()


def test_a_last_answer_is_not_destroyed_by_what_was_sent_ahead() -> None:
    visit = Visit()
    visit.connection.data_received(GET + GET)
    visit.registry.draining = True
    assert visit.transport.is_paused()
    visit.answer()
    assert visit.transport.eof and not visit.transport.is_closed() and not visit.transport.is_paused()
    visit.world.clock.pass_time(LINGER_SCARCE_S + 1.0)
    assert visit.transport.is_aborted()
    visit.end()


def die_within_an_answer(visit: Visit) -> None:
    holder = visit.world.throttler_holder()
    at_pod(holder).response_head(response_head(200, 10))
    at_pod(holder).response_body(b"hel")
    at_pod(holder).pod_failed(Reason.POD_CLOSED, "", False)
    visit.turn.end()


@pytest.mark.parametrize("half_closes", [True, False])
def test_a_cut_answer_ends_in_order_behind_what_was_said(half_closes: bool) -> None:
    visit = Visit(half_closes)
    visit.connection.data_received(GET + GET + GET)
    visit.transport.takes = False
    visit.answer()
    die_within_an_answer(visit)
    assert visit.transport.buffer.endswith(b"\r\n\r\nhel") and visit.transport.buffer.startswith(b"HTTP/1.1 200")
    assert visit.transport.eof == half_closes and visit.transport.is_closed() != half_closes
    assert not visit.transport.is_aborted() and not visit.transport.is_paused()
    assert visit.begun == 2, "the third is not begun"
    visit.world.clock.pass_time(LINGER_SILENCE_S + FLUSH_S)
    visit.transport.take(1)
    visit.world.clock.pass_time(2 * FLUSH_S)
    assert visit.transport.is_aborted(), "who takes nothing more is not waited for"
    visit.end()


@pytest.mark.parametrize("half_closes", [True, False])
@pytest.mark.parametrize("how", ["cut", "early", "whole, and not taken yet"])
def test_who_only_lingers_makes_room_for_a_newcomer(how: str, half_closes: bool) -> None:
    visit = Visit(half_closes)
    visit.connection.data_received(UPLOAD if how == "early" else LAST)
    if how == "cut":
        visit.transport.takes = False
        die_within_an_answer(visit)
    else:
        visit.transport.takes = how == "early"
        visit.answer()
    registry = visit.registry
    crowd = [Http1Connection(registry) for _ in range(registry.connections_max - 1)]
    for connection in crowd:
        connection.connection_made(WrittenTransport())

    def comes() -> bool:
        """One more; whether it may stay."""
        transport = WrittenTransport()
        newcomer = Http1Connection(registry)
        newcomer.connection_made(transport)
        visit.turn.end()
        shed = b"overloaded" in transport.sent
        newcomer.connection_lost(None)
        return not shed

    assert not comes(), "it has not had its time"
    visit.world.clock.pass_time(LINGER_SCARCE_S)
    assert comes() == visit.transport.is_aborted() == (how != "whole, and not taken yet")
    assert comes() == visit.transport.is_aborted(), "its room is free before the loop has told that it is gone"
    for connection in crowd:
        connection.connection_lost(None)
    visit.end()
    assert registry.given_up == 0 and not registry.lingering


def test_where_only_the_end_of_the_connection_ends_it_a_cut_answer_ends_at_once() -> None:
    visit = Visit()
    visit.connection.data_received(b"GET / HTTP/1.0\r\nHost: app.test\r\n\r\n")
    holder = visit.world.throttler_holder()
    head = response_head(200, 0)
    head.content_length = -1
    head.has_body = True
    at_pod(holder).response_head(head)
    at_pod(holder).pod_failed(Reason.POD_CLOSED, "", False)
    assert visit.transport.is_aborted()
    visit.end()


def test_a_body_that_was_begun_ahead_has_to_go_on() -> None:
    visit = Visit()
    visit.connection.data_received(GET + UPLOAD)
    visit.answer()
    assert visit.begun == 2
    visit.world.clock.pass_time(3 * BODY_RATE_GRACE_S)
    visit.turn.end()
    assert b"408 Request Timeout" in visit.transport.sent
    visit.end()


def test_who_waits_for_a_100_is_not_slow_before_it() -> None:
    visit = Visit()
    visit.connection.data_received(AWAITING)
    visit.world.clock.pass_time(5 * BODY_RATE_GRACE_S)
    visit.turn.end()
    assert visit.transport.sent == b""
    at_pod(visit.world.throttler_holder()).response_interim(response_head(100, 0))
    visit.world.clock.pass_time(3 * BODY_RATE_GRACE_S)
    visit.turn.end()
    assert b"408 Request Timeout" in visit.transport.sent, "now it is the client who is waited for"
    visit.end()


def test_what_is_cut_at_the_end_of_the_program_gives_its_slot_back() -> None:
    visit = Visit()
    visit.connection.data_received(GET)
    visit.connection.abort(True)
    assert visit.transport.is_aborted()
    visit.end()


NOWHERE = b"GET / HTTP/1.1\r\nHost: nowhere.test\r\n\r\n"


def test_requests_sent_ahead_are_refused_a_few_in_a_turn() -> None:
    """Ten thousand fit into one read; whoever shares the loop must not wait until all are answered."""
    visit = Visit()
    visit.connection.data_received(NOWHERE * 1000)
    turns = 0
    while visit.transport.sent.count(b"no_route") < 1000:
        before = visit.transport.sent.count(b"no_route")
        assert visit.transport.is_paused() or before >= 1000 - 2 * REQUESTS_PER_TURN_MAX, "nothing is read meanwhile"
        visit.turn.end()
        visit.world.clock.turn()
        turns += 1
        assert visit.transport.sent.count(b"no_route") - before <= 2 * REQUESTS_PER_TURN_MAX
        assert turns <= 1000 / REQUESTS_PER_TURN_MAX + 2
    assert not visit.transport.is_paused()
    visit.end()


class FullTransport(WrittenTransport):
    """Takes nothing, and says when it has too much to send, as uvloop's does."""

    connection: Http1Connection

    def write(self, data: bytes) -> None:
        self.buffer += data
        if len(self.buffer) > 50_000:
            self.connection.pause_writing()


def test_a_client_that_takes_no_answers_gets_no_more_of_them() -> None:
    visit = Visit()
    transport = FullTransport()
    connection = transport.connection = Http1Connection(visit.registry)
    connection.connection_made(transport)
    connection.data_received(NOWHERE * 5000)
    for _ in range(1000):
        visit.world.clock.turn()
    assert 50_000 < len(transport.buffer) < 100_000
    assert transport.is_paused()
    connection.connection_lost(None)
    visit.world.clock.turn()
    visit.end()


def test_tiny_chunks_are_parsed_in_turns() -> None:
    visit = Visit()
    visit.connection.data_received(b"POST / HTTP/1.1\r\nHost: app.test\r\nTransfer-Encoding: chunked\r\n\r\n")
    (pod,) = visit.pool.pods
    chunks = 5 * CHUNKS_PER_TURN_MAX
    visit.connection.data_received(b"1\r\nx\r\n" * chunks + b"0\r\n\r\n")
    assert len(pod.body) == CHUNKS_PER_TURN_MAX and visit.transport.is_paused()
    turns = 0
    while not pod.ended:
        visit.world.clock.turn()
        turns += 1
        assert turns <= 6
    assert len(pod.body) == chunks and turns >= 4
    assert not visit.transport.is_paused()
    visit.answer()
    visit.end()


def test_a_slow_pod_stops_what_is_parsed_in_turns() -> None:
    visit = Visit()
    visit.connection.data_received(b"POST / HTTP/1.1\r\nHost: app.test\r\nTransfer-Encoding: chunked\r\n\r\n")
    (pod,) = visit.pool.pods
    visit.connection.data_received(b"1\r\nx\r\n" * 3 * CHUNKS_PER_TURN_MAX + b"0\r\n\r\n")
    holder = visit.world.throttler_holder()
    at_pod(holder).pod_blocked()
    for _ in range(10):
        visit.world.clock.turn()
    assert len(pod.body) == CHUNKS_PER_TURN_MAX
    at_pod(holder).pod_drained()
    for _ in range(10):
        visit.world.clock.turn()
    assert pod.ended and len(pod.body) == 3 * CHUNKS_PER_TURN_MAX
    visit.answer()
    visit.end()


def test_a_connection_that_fills_its_reads_waits_for_the_next_turn() -> None:
    visit = Visit()
    head = b"POST / HTTP/1.1\r\nHost: app.test\r\nContent-Length: 100000000\r\n\r\n"
    visit.connection.data_received(head)
    for number in range(FULL_READS_PER_TURN_MAX):
        assert not visit.transport.is_paused(), number
        visit.connection.data_received(b"x" * READ_FULL_BYTES)
    assert visit.transport.is_paused()
    visit.world.clock.turn()
    assert not visit.transport.is_paused()
    visit.connection.peer_has_ended(True)
    visit.end()


# --- half-closed: the client has ended its side behind a whole request ---

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


def test_a_half_closed_client_is_answered_and_closed() -> None:
    visit = Visit()
    visit.connection.data_received(GET)
    assert visit.connection.eof_received()
    visit.answer()
    assert visit.transport.sent.endswith(b"hello") and CONTINUE not in visit.transport.sent
    assert visit.transport.is_closed() and not visit.transport.is_aborted()
    visit.end()


def test_a_half_closed_client_is_probed_and_found_gone() -> None:
    visit = Visit()
    visit.connection.data_received(GET)
    assert visit.connection.eof_received()
    visit.world.clock.pass_time(HALF_CLOSE_PROBE_S + 0.1)
    visit.turn.end()
    assert visit.transport.sent == CONTINUE
    visit.world.clock.pass_time(HALF_CLOSE_PROBE_AGAIN_S - 1.0)
    assert visit.transport.sent == CONTINUE
    visit.world.clock.pass_time(2.0)
    visit.turn.end()
    assert visit.transport.sent == 2 * CONTINUE
    visit.transport.tcp_state = TCP_CLOSE
    visit.world.clock.pass_time(2.0)
    assert visit.transport.is_aborted()
    assert visit.world.throttler.counters.client_gone_total == 1
    visit.end()


def test_between_chunks_a_half_closed_client_is_probed_with_a_zero() -> None:
    visit = Visit()
    visit.connection.data_received(GET)
    exchange = visit.world.throttler_holder()
    head = response_head()
    head.content_length = UNKNOWN_LENGTH
    at_pod(exchange).response_head(head)
    at_pod(exchange).response_flush()
    visit.turn.end()
    assert visit.connection.eof_received()
    for _ in range(ZEROS_MAX + 3):
        visit.world.clock.pass_time(HALF_CLOSE_PROBE_AGAIN_S + 0.1)
        visit.turn.end()
    at_pod(exchange).response_body(b"x" * 11)
    at_pod(exchange).response_flush()
    visit.turn.end()
    assert visit.transport.sent.endswith(b"\r\n\r\n" + b"0" * ZEROS_MAX + b"b\r\n" + b"x" * 11 + b"\r\n")
    visit.world.clock.pass_time(HALF_CLOSE_PROBE_AGAIN_S + 0.1)
    visit.turn.end()
    assert visit.transport.sent.endswith(b"\r\n0"), "the next chunk's"
    visit.transport.tcp_state = TCP_CLOSE
    visit.world.clock.pass_time(2.0)
    visit.end()


@pytest.mark.parametrize("case", ["over TLS", "configured", "half a request", "half a body"])
def test_an_end_of_file_that_means_that_the_client_has_gone(case: str) -> None:
    visit = Visit(half_closes=case != "over TLS")
    visit.registry.abort_on_half_close = case == "configured"
    data = {"half a request": GET[:-2], "half a body": UPLOAD}.get(case, GET)
    visit.connection.data_received(data)
    assert not visit.connection.eof_received()
    assert visit.world.throttler.counters.client_gone_total == (case != "half a request")
    visit.end()


@pytest.mark.parametrize("half_closes", [True, False])
def test_an_end_that_is_seen_while_nothing_is_read(half_closes: bool) -> None:
    """Over TLS it means that the client has gone, as it does when it is read."""
    visit = Visit(half_closes)
    visit.connection.data_received(GET + GET)
    visit.connection.peer_has_ended(False)
    assert visit.transport.is_aborted() is not half_closes
    assert visit.world.throttler.counters.client_gone_total == (not half_closes)
    if half_closes:
        visit.answer()
        visit.answer()
        assert visit.transport.is_closed() and visit.begun == 2
    visit.end()


def test_half_a_head_does_not_stop_the_probes_of_a_half_closed_client() -> None:
    visit = Visit()
    visit.connection.data_received(GET + GET[:-2])
    assert visit.connection.eof_received()
    for _ in range(20):
        probes = visit.transport.sent.count(CONTINUE)
        visit.world.clock.pass_time(HALF_CLOSE_PROBE_AGAIN_S + 0.1)
        visit.turn.end()
        assert visit.transport.sent.count(CONTINUE) > probes
        assert visit.transport.sent == visit.transport.sent.count(CONTINUE) * CONTINUE
    visit.answer()
    assert visit.transport.is_closed() and b"408" not in visit.transport.sent
    visit.end()


def test_half_a_request_behind_a_whole_one_ends_with_its_answer() -> None:
    visit = Visit()
    visit.connection.data_received(GET + GET[:-2])
    assert visit.connection.eof_received()
    visit.answer()
    assert visit.transport.is_closed()
    assert visit.begun == 1
    visit.end()


def test_a_connection_that_is_gone_needs_no_collector() -> None:
    """What it had read would stay with it until the collector looks at all there is: 400 MB, measured."""

    def connections() -> int:
        return sum(isinstance(one, Http1Connection) for one in gc.get_objects())

    visit = Visit()
    gc.collect()
    gc.disable()
    try:
        before = connections()
        for data in (GET, NOWHERE * 50, UPLOAD, b"GET / HTT", b"garbage\r\n\r\n", b""):
            connection = Http1Connection(visit.registry)
            connection.connection_made(WrittenTransport())
            if data:
                connection.data_received(data)
            connection.connection_lost(None)
            del connection
            visit.turn.end()
            for _ in range(10):
                visit.world.clock.turn()
        assert connections() == before
    finally:
        gc.enable()
    visit.end()


def test_those_who_are_shed_take_no_place_and_only_so_many_of_them_linger() -> None:
    visit = Visit()
    registry = visit.registry
    crowd = [Http1Connection(registry) for _ in range(registry.connections_max - 1)]
    for connection in crowd:
        connection.connection_made(WrittenTransport())
    shed = []
    for _ in range(3 * SHED_MAX):
        transport = WrittenTransport()
        connection = Http1Connection(registry)
        connection.connection_made(transport)
        shed.append((connection, transport))
        visit.turn.end()
        assert b"overloaded" in transport.sent
        assert registry.count() == registry.connections_max
    assert sum(not transport.is_aborted() for _, transport in shed) == SHED_MAX
    crowd.pop().connection_lost(None)
    newcomer, transport = Http1Connection(registry), WrittenTransport()
    newcomer.connection_made(transport)
    visit.turn.end()
    assert transport.sent == b"", "there is a place, though many have been told that there was none"
    for connection in [*crowd, newcomer, *(one for one, _ in shed)]:
        connection.connection_lost(None)
    visit.end()
    assert registry.count() == registry.given_up == 0 and not registry.shed


@pytest.mark.parametrize("behind", ["the beginning", "an answer", "a head in two parts"])
def test_an_idle_connection_is_closed_in_time_however_short_that_is(behind: str) -> None:
    """It was closed after a minute, the time that a head may take."""
    visit = Visit(idle_s=3.0)
    if behind != "the beginning":
        if behind == "a head in two parts":
            visit.connection.data_received(GET[:10])
            visit.world.clock.pass_time(2.9)
            visit.connection.data_received(GET[10:])
        else:
            visit.connection.data_received(GET)
        visit.answer()
    visit.world.clock.pass_time(2.9)
    assert not visit.transport.is_closed()
    visit.world.clock.pass_time(3.2)
    assert visit.transport.is_closed()
    visit.end()


def test_a_head_may_take_longer_than_a_connection_may_be_idle() -> None:
    visit = Visit(idle_s=3.0)
    visit.connection.data_received(GET[:10])
    visit.world.clock.pass_time(50.0)
    assert not visit.transport.is_closed()
    visit.world.clock.pass_time(11.0)
    assert visit.transport.sent.startswith(b"HTTP/1.1 408 ")
    visit.connection.connection_lost(None)
