"""Connections to pods that begin with a PROXY protocol header: one request each, with the header of its client."""

from __future__ import annotations

from activator.codec.message import Fields, RequestHead
from activator.codec.proxy_protocol import Endpoints
from activator.data_plane.streams import PodUser
from activator.data_plane.upstream.pooled_connection import ConnectionOwner, PooledConnection
from activator.data_plane.upstream.proxy_protocol_pool import ProxyProtocolConnection
from activator.runtime.buffered_writer import WriteBatcher
from tests.manual_clock import ManualClock
from tests.written_transport import WrittenTransport


class Owner(ConnectionOwner):
    """Writes down whether the connection may be used again."""

    def __init__(self) -> None:
        self.over: list[bool] = []

    def opened(self, connection: PooledConnection) -> None:
        pass

    def answered(self, connection: PooledConnection) -> None:
        pass

    def finished(self, connection: PooledConnection, reusable: bool) -> None:
        self.over.append(reusable)

    def closed(self, connection: PooledConnection) -> None:
        pass


class Asked(PodUser):
    def endpoints(self) -> Endpoints | None:
        return Endpoints("203.0.113.7", 4000, "198.51.100.1", 443)


def test_the_header_comes_first_and_with_the_request() -> None:
    clock = ManualClock()
    errors: list[Exception] = []
    turn = WriteBatcher(clock.defer, errors.append)
    connection = ProxyProtocolConnection(Owner(), clock.now, turn, b"pod", False, "v1")
    transport = WrittenTransport()
    connection.connection_made(transport)
    turn.end()
    assert transport.sent == b"", "a connection that is not needed is no client's"
    head = RequestHead(b"GET", b"/", b"a.test", Fields.from_pairs([(b"Host", b"a.test")]), -1, False)
    connection.serve(Asked(head)).send_request(head, [])
    turn.end()
    assert transport.sent.startswith(b"PROXY TCP4 203.0.113.7 198.51.100.1 4000 443\r\nGET / HTTP/1.1\r\n")
    assert errors == []
