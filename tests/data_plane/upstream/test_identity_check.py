"""New connections on which the pod says first who it is: what it may say, and what becomes of who waits for them."""

from __future__ import annotations

import logging
from typing import Any, cast

import pytest

from activator.codec.probe_request import probe_head
from activator.config.specs import ProbeSpec
from activator.data_plane.upstream.dial import DialContext, PodAddress
from activator.data_plane.upstream.http1_connection import Http1PodConnection
from activator.data_plane.upstream.http1_pool import Http1Pool
from activator.data_plane.upstream.identity_check import ExpectedIdentity
from activator.runtime.buffered_writer import WriteBatcher
from lb.tracker import READY
from tests.data_plane.proxy.proxy_fakes import World
from tests.written_transport import WrittenTransport

PROBE = ProbeSpec("http", "/who", identity_header="X-Pod")
IDENTITY_REQUEST = b"GET /who HTTP/1.1\r\nHost: 10.0.0.1:80\r\nUser-Agent: activator-probe\r\n\r\n"
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
CONNECT_TIMEOUT_S = 5.0


def named(name: bytes, more: bytes = b"") -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nx-pod: %b\r\n%b\r\nok" % (name, more)


class NamingPool(Http1Pool):
    """Gets its connections from the test."""

    def __init__(self, world: World) -> None:
        self.turn = WriteBatcher(world.clock.defer, world.errors.append)
        context = DialContext(cast("Any", None), world.wheel, cast("Any", None), self.turn)
        naming = ExpectedIdentity(probe_head(PROBE, "10.0.0.1:80", keep_alive=True), b"x-pod", b"p1")
        super().__init__(context, world.clock.now, PodAddress("10.0.0.1", 80), CONNECT_TIMEOUT_S, naming)
        tracker = world.table.add("p1", "10.0.0.1:80", 2, READY)
        assert tracker is not None
        tracker.attachment = self

    def _dial_for_waiting(self) -> None:
        pass


class Visit:
    """Two requests for one pod, and a connection that has just been made."""

    def __init__(self) -> None:
        self.world = World()
        self.pool = NamingPool(self.world)
        self.first, self.client = self.world.begin()
        self.second, _ = self.world.begin()
        self.transport = WrittenTransport()
        self.connection = Http1PodConnection(self.pool, self.world.clock.now, self.pool.turn)
        self.pool.window.dialled()
        self.connection.connection_made(self.transport)
        self.world.clock.turn()

    def end(self) -> None:
        for exchange in (self.first, self.second):
            exchange.client_gone()
        self.pool.close()
        self.world.clock.turn()
        self.world.check_idle()
        assert self.pool.window.new == 0

    def refused(self) -> list[str]:
        return [event[2] for event in self.world.heard.events if event[0] == "refused"]


def test_nothing_of_a_request_is_sent_before_the_pod_has_said_who_it_is() -> None:
    visit = Visit()
    assert visit.transport.sent == IDENTITY_REQUEST
    assert visit.pool.statistics() | {"window": 0} == {"open": 1, "idle": 0, "dialling": 1, "waiting": 2, "window": 0}
    assert visit.pool._room_being_opened() == 1, "the one on its way counts as one that is coming"
    visit.connection.data_received(named(b"p1"))
    visit.world.clock.turn()
    assert visit.transport.sent.startswith(IDENTITY_REQUEST + b"GET / HTTP/1.1\r\nHost: app.test\r\n")
    visit.connection.data_received(ANSWER)
    assert (visit.client.status, visit.client.body) == (200, b"hello")
    visit.world.clock.turn()
    assert visit.transport.sent.count(b"GET /who ") == 1, "once per connection"
    assert visit.transport.sent.count(b"GET / ") == 2
    visit.connection.data_received(ANSWER)
    assert visit.pool.statistics()["idle"] == 1
    visit.end()


@pytest.mark.parametrize(
    "answer",
    [
        named(b"p2"),
        named(b""),
        named(b"P1"),
        ANSWER,
        named(b"p1", b"Connection: close\r\n"),
        named(b"p1") + b"HTTP/1.1 200 OK\r\n",
        b"no response\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\nx-pod: p1\r\n\r\n",
    ],
)
def test_another_name_or_none_counts_as_refused(answer: bytes) -> None:
    visit = Visit()
    visit.connection.data_received(answer)
    visit.world.clock.turn()
    assert visit.transport.is_closed() or visit.transport.is_aborted()
    assert visit.transport.sent == IDENTITY_REQUEST
    assert visit.refused()[:2] == ["True", "True"], "known at once, by everyone who waits"
    visit.end()


def test_a_pod_that_closes_instead_of_answering_counts_as_refused() -> None:
    for error in (None, ConnectionResetError()):
        visit = Visit()
        visit.connection.connection_lost(error)
        assert visit.refused()[:2] == ["True", "True"]
        visit.end()


def test_silence_is_a_strike_for_one() -> None:
    visit = Visit()
    visit.world.clock.pass_time(CONNECT_TIMEOUT_S + 0.1)
    assert visit.transport.is_aborted()
    assert visit.refused() == ["False"]
    visit.end()


def test_a_pod_that_leaves_meanwhile_takes_the_connection_along() -> None:
    visit = Visit()
    visit.pool.close()
    visit.world.clock.turn()
    assert visit.transport.is_closed() or visit.transport.is_aborted()
    visit.end()


def test_a_mistake_is_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    visit = Visit()
    with caplog.at_level(logging.WARNING, "activator.upstream"):
        visit.connection.data_received(named(b"p2"))
        for _ in range(3):
            again = Http1PodConnection(visit.pool, visit.world.clock.now, visit.pool.turn)
            visit.pool.window.dialled()
            again.connection_made(WrittenTransport())
            again.data_received(named(b"p2"))
    assert [record.getMessage() for record in caplog.records] == [
        "the pod at 10.0.0.1:80 failed the identity check by stating the identity b'p2'"
    ]
    visit.end()
