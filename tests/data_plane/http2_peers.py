"""Clients and pods that speak HTTP/2 by the `h2` package, on transports that only write down; every turn is the test's.

`h2` refuses what breaks the protocol: an exception of it is a defect of ours.
"""

from __future__ import annotations

from typing import Any, cast

import h2.connection
import h2.events
import h2.settings
from h2.config import H2Configuration

from activator.codec.http1.request import RequestLimits
from activator.codec.http2 import frames
from activator.data_plane.headers.forwarding import Origins
from activator.data_plane.proxy.exchange import ProxiedExchange
from activator.data_plane.server.client_connection import ClientConnection
from activator.data_plane.server.http1_connection import Http1Connection
from activator.data_plane.server.http2_connection import Http2ClientConnection
from activator.data_plane.server.registry import ConnectionRegistry
from activator.data_plane.upstream.dial import DialContext, PodAddress
from activator.data_plane.upstream.http2_connection import Http2PodConnection
from activator.data_plane.upstream.http2_pool import Http2Pool
from activator.data_plane.upstream.identity_check import ExpectedIdentity
from activator.runtime.buffered_writer import WriteBatcher
from activator.runtime.transport import FLUSH_S
from lb.tracker import READY
from tests.data_plane.proxy.proxy_fakes import World
from tests.written_transport import WrittenTransport

Pairs = list[tuple[bytes, bytes]]
IDLE_S = 75.0


def request_fields(method: bytes = b"GET", path: bytes = b"/", authority: bytes = b"app.test", *more: bytes) -> Pairs:
    """`more`: names and values, by turns."""
    fields = [(b":method", method), (b":scheme", b"http"), (b":authority", authority), (b":path", path)]
    return fields + list(zip(more[::2], more[1::2], strict=True))


WEBSOCKET: Pairs = [
    (b":method", b"CONNECT"),
    (b":protocol", b"websocket"),
    (b":scheme", b"http"),
    (b":authority", b"app.test"),
    (b":path", b"/chat"),
    (b"sec-websocket-version", b"13"),
]


class Heard:
    """What came on one stream."""

    def __init__(self) -> None:
        self.fields: Pairs = []
        self.interim: list[Pairs] = []
        self.body = b""
        self.trailers: Pairs = []
        self.ended = False
        self.code: int | None = None  # of the RST_STREAM that ended it

    @property
    def status(self) -> int:
        return int(dict(self.fields).get(b":status", b"0"))

    def is_over(self) -> bool:
        return self.ended or self.code is not None


class Peer:
    """The other end of a connection."""

    def __init__(self, is_client: bool, settings: dict[int, int] | None = None) -> None:
        config = H2Configuration(
            client_side=is_client,
            header_encoding=None,
            validate_outbound_headers=False,
            normalize_outbound_headers=False,
        )
        self.h2 = h2.connection.H2Connection(config)
        if settings:
            self.h2.local_settings = h2.settings.Settings(client=is_client, initial_values=cast("Any", settings))
        self.h2.initiate_connection()
        self.is_client = is_client
        self._rest = b""  # of a frame that is here in part
        self.takes = True  # gives windows back at once
        self.streams: dict[int, Heard] = {}
        self.goaways: list[tuple[int, int]] = []  # the last stream, and the code
        self._unacknowledged = 1  # its SETTINGS

    def of(self, stream_id: int) -> Heard:
        return self.streams.setdefault(stream_id, Heard())

    def hear(self, data: bytes) -> None:
        """GOAWAY is kept from `h2`, which takes nothing more behind it, though streams go on (6.8)."""
        self._rest += data
        while True:
            rest = self._rest
            is_preface = rest.startswith(frames.PREFACE[:9])
            size = len(frames.PREFACE) if is_preface else 9 + int.from_bytes(rest[:3], "big")
            if len(rest) < max(size, 9):
                return
            one, self._rest = rest[:size], rest[size:]
            if not is_preface and one[3] == frames.GOAWAY:
                last, code = (int.from_bytes(one[at : at + 4], "big") for at in (9, 13))
                self.goaways.append((last, code))
                continue
            for event in self.h2.receive_data(one):
                self._on(event)

    def _on(self, event: Any) -> None:
        if isinstance(event, h2.events.RequestReceived | h2.events.ResponseReceived):
            self.of(event.stream_id).fields = list(event.headers)
        elif isinstance(event, h2.events.InformationalResponseReceived):
            self.of(event.stream_id).interim.append(list(event.headers))
        elif isinstance(event, h2.events.DataReceived):
            heard = self.of(event.stream_id)
            assert not heard.is_over()
            heard.body += event.data
            if self.takes and event.flow_controlled_length:
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, h2.events.TrailersReceived):
            self.of(event.stream_id).trailers = list(event.headers)
        elif isinstance(event, h2.events.StreamEnded):
            heard = self.of(event.stream_id)
            assert not heard.is_over(), "one end"
            heard.ended = True
        elif isinstance(event, h2.events.SettingsAcknowledged):
            self._unacknowledged = 0
        elif isinstance(event, h2.events.StreamReset):
            self.of(event.stream_id).code = int(event.error_code)

    def say(self) -> bytes:
        return self.h2.data_to_send()

    def set_window(self, size: int) -> None:
        """Change the windows of streams, unless SETTINGS are unacknowledged: `h2` applies the last at the first ACK."""
        if self._unacknowledged == 0:
            self._unacknowledged = 1
            self.h2.update_settings({frames.INITIAL_WINDOW_SIZE: size})

    def send(self, stream_id: int, data: bytes, ends: bool) -> int:
        """As much as the windows let out, in frames; how much that was."""
        sent = min(len(data), self.h2.local_flow_control_window(stream_id)) if data else 0
        for at in range(0, sent, 16_384):
            last = ends and at + 16_384 >= len(data)
            self.h2.send_data(stream_id, data[at : min(at + 16_384, sent)], end_stream=last)
        if ends and not data:
            self.h2.send_data(stream_id, b"", end_stream=True)
        return sent


class Line:
    """One connection of ours, its transport, and the peer at its other end."""

    def __init__(self, connection: Any, peer: Peer) -> None:
        self.connection = connection
        self.peer = peer
        self.transport = WrittenTransport()
        self._heard = 0
        self.lost = False

    def to_peer(self) -> bool:
        sent = self.transport.sent[self._heard :]
        self._heard += len(sent)
        if sent:
            self.peer.hear(sent)
        return bool(sent)

    def to_us(self, cut: int = 1 << 30) -> bool:
        data = self.peer.say()
        if self.lost or self.transport.is_closing():
            return False
        for at in range(0, len(data), cut):
            self.connection.data_received(data[at : at + cut])
        return bool(data)

    def lose(self, error: Exception | None = None) -> None:
        if not self.lost:
            self.lost = True
            self.connection.connection_lost(error)


class ManualPool(Http2Pool):
    """Its dials succeed or fail when the test says so."""

    def __init__(self, world: World, turn: WriteBatcher, naming: ExpectedIdentity | None = None) -> None:
        context = DialContext(cast("Any", None), world.wheel, cast("Any", None), turn)
        self.dialled: list[Http2PodConnection] = []
        self.lines: list[Line] = []
        super().__init__(context, world.clock.now, PodAddress("10.0.0.1", 80), 5.0, naming)

    def _dial_for_waiting(self) -> None:
        while not self._closed and len(self._waiting) > self._room_being_opened() and self.window.has_room():
            self._context.connections += 1
            self.window.dialled()
            self.dialled.append(cast("Http2PodConnection", self._new_connection()))

    def _under_way(self) -> int:
        return len(self.dialled) + len(self._identifying)

    def open_one(self, settings: dict[int, int] | None = None) -> Line:
        """The oldest dial succeeds."""
        connection = self.dialled.pop(0)
        line = Line(connection, Peer(False, settings))
        self.lines.append(line)
        connection.connection_made(cast("Any", line.transport))
        return line

    def check_over(self) -> None:
        for line in self.lines:
            assert not line.connection.codec.streams and line.connection.reserved_streams == 0
        assert not self._waiting and not self._refused


class Http2World:
    """A proxy with an HTTP/2 pod, and clients of either protocol."""

    def __init__(
        self,
        limit: int = 8,
        pods: int = 1,
        limits: RequestLimits | None = None,
        streams_max: int = 128,
        connections_max: int = 10,
        body_rate: int = 240,
        naming: ExpectedIdentity | None = None,
        **spec: Any,
    ) -> None:
        self.world = World(**{"held_bytes": 1 << 20, "held_body_bytes": 1 << 16, **spec})
        world = self.world
        self.turn = WriteBatcher(world.clock.defer, self._failed)
        self.registry = ConnectionRegistry(
            world.proxy,
            world.wheel,
            world.clock.now,
            limits or RequestLimits(),
            connections_max,
            Origins((), 0, False, b"", 1),
            body_rate,
            self.turn,
            IDLE_S,
            streams_max=streams_max,
        )
        self.clients: list[Line] = []
        self.exchanges: list[ProxiedExchange] = []  # of clients that are no connections
        self.pools: list[ManualPool] = []
        for number in range(pods):
            pool = ManualPool(world, self.turn, naming)
            tracker = world.table.add(f"p{number + 1}", f"10.0.0.{number + 1}:80", limit, READY)
            assert tracker is not None
            tracker.attachment = pool
            self.pools.append(pool)

    def _failed(self, error: Exception) -> None:
        raise error

    @property
    def pool(self) -> ManualPool:
        return self.pools[0]

    def client(self, settings: dict[int, int] | None = None, prior: bool = True, cut: int = 1 << 30) -> Line:
        """Another client, whose preface and SETTINGS have been read."""
        connection: ClientConnection = Http1Connection(self.registry) if prior else Http2ClientConnection(self.registry)
        line = Line(connection, Peer(True, settings))
        line.transport.set_protocol = lambda other: setattr(line, "connection", other)  # type: ignore[assignment, method-assign]
        self.clients.append(line)
        connection.connection_made(cast("Any", line.transport))
        data = line.peer.say()
        for at in range(0, len(data), cut):
            line.connection.data_received(data[at : at + cut])
        self.run()
        return line

    def lines(self) -> list[Line]:
        return self.clients + [line for pool in self.pools for line in pool.lines]

    def run(self, cut: int = 1 << 30) -> None:
        """Turns, until nothing more happens."""
        for _ in range(10_000):  # a body of 40,000 bytes through a window of 10
            busy = self.world.clock.turn() > 0
            for line in self.lines():
                busy = line.to_peer() or busy
                busy = line.to_us(cut) or busy
            if not busy:
                return
        raise AssertionError("it does not come to rest")

    def request(
        self, client: Line, fields: Pairs | None = None, body: bytes | None = None, ends: bool = True
    ) -> tuple[int, Heard]:
        """A request is sent, and read."""
        peer = client.peer
        stream_id = peer.h2.get_next_available_stream_id()
        peer.h2.send_headers(stream_id, fields or request_fields(), end_stream=ends and body is None)
        if body is not None:
            peer.send(stream_id, body, ends)
        heard = peer.of(stream_id)
        self.run()
        return stream_id, heard

    def open_pod(self, settings: dict[int, int] | None = None, number: int = 0) -> Line:
        line = self.pools[number].open_one(settings)
        self.run()
        return line

    def answer(
        self, pod: Line, stream_id: int, body: bytes = b"hello", status: bytes = b"200", ends: bool = True
    ) -> None:
        pod.peer.h2.send_headers(stream_id, [(b":status", status)], end_stream=ends and not body)
        if body:
            pod.peer.send(stream_id, body, ends)
        self.run()

    def end(self) -> None:
        """Every connection is lost; nothing is left of anything."""
        for exchange in self.exchanges:
            exchange.client_gone()
        for line in self.lines():
            line.lose()
        for _ in range(20):
            self.world.clock.turn()
        for pool in self.pools:
            pool.check_over()
        assert not self.registry.connections and self.registry.streams == 0
        for pool in self.pools:
            if not pool.is_closed():
                pool.close()
        self.world.clock.turn()
        self.world.clock.pass_time(2 * FLUSH_S)  # for those that have not taken what was left for them
        self.world.check_idle()
