"""Pods that speak HTTP/2, by the `h2` package, and their twin that speaks HTTP/1.1: what they are asked is recorded.

Both answer, whatever the protocol:

/            a small body; where a body was sent, that body, once all of it is there
/large       LARGE bytes
/bytes/1000  so many bytes of a known pattern
/typed       as /, with the content-type of the request
/drop        how many bytes were sent
/trailers    as /, and trailers behind it
/duplex      what is sent, at once
/early       an answer before anything of the body is read; nothing more is read
/hints       103, then as /
/hold        a head, then nothing until the test says `release`, then as /
/silent      nothing at all
/cut         the begin of an answer, then its end without the rest
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Self

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings

from tests.e2e.origin import pattern
from tests.e2e.pods import PodSide
from tests.e2e.running import PATIENCE_S

LARGE = 3 * 2**19
SMALL = b"The answer of a pod for tests.\n"
HINT = ("link", "</style.css>; rel=preload")
Pairs = list[tuple[str, str]]


class ResetError(Exception):
    """The stream was reset, or its connection has ended."""


class PodStream:
    """One request, as the pod's handler sees it. `received` is the body so far, unless `forget` is set."""

    def __init__(self, connection: PodConnection, number: int, headers: Pairs) -> None:
        self.connection = connection
        self.number = number
        self.headers = headers
        self.trailers: Pairs = []
        self.received = 0
        self.complete = False
        self.code: int | None = None  # of RST_STREAM; -1: the connection ended
        self.changed = asyncio.Event()  # it was reset, or what is held is released
        self._chunks: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._room = asyncio.Event()

    def __repr__(self) -> str:
        return f"PodStream({self.number}, {self.headers}, {self.received} bytes, {self.code})"

    def header(self, name: str) -> str | None:
        """The values of a field, as one."""
        found = [value for known, value in self.headers if known == name]
        return ", ".join(found) if found else None

    @property
    def method(self) -> str:
        return self.header(":method") or ""

    @property
    def path(self) -> str:
        return self.header(":path") or ""

    # --- the handler's side ---

    async def chunk(self) -> bytes | None:
        """The next piece of the body; None at its end."""
        data = await self._chunks.get()
        if self.code is not None:
            raise ResetError
        if data:
            self.connection.acknowledge(self.number, len(data))
        return data

    async def body(self) -> bytes:
        pieces = []
        while (data := await self.chunk()) is not None:
            pieces.append(data)
        return b"".join(pieces)

    def head(self, status: int, headers: Pairs | None = None, *, end: bool = False) -> None:
        if self.code is not None:
            raise ResetError
        self.connection.h2.send_headers(self.number, [(":status", str(status)), *(headers or [])], end_stream=end)
        self.connection.flush()

    async def send(self, data: bytes) -> None:
        view = memoryview(data)
        h2 = self.connection.h2
        while view:
            if self.code is not None:
                raise ResetError
            room = min(h2.local_flow_control_window(self.number), h2.max_outbound_frame_size)
            if room <= 0:
                self._room.clear()
                await self._room.wait()
                continue
            h2.send_data(self.number, bytes(view[:room]))
            view = view[room:]
            self.connection.flush()
            await self.connection.drain()

    def end(self, trailers: Pairs | None = None) -> None:
        if self.code is not None:
            raise ResetError
        if trailers:
            self.connection.h2.send_headers(self.number, trailers, end_stream=True)
        else:
            self.connection.h2.end_stream(self.number)
        self.connection.flush()

    def reset(self, code: int = h2.errors.ErrorCodes.INTERNAL_ERROR) -> None:
        if self.code is None:
            self.connection.h2.reset_stream(self.number, code)
            self.connection.flush()

    # --- the connection's side ---

    def arrived(self, data: bytes | None) -> None:
        self.received += len(data or b"")
        self.complete |= data is None
        self._chunks.put_nowait(data)

    def ended(self, code: int) -> None:
        if self.code is None:
            self.code = code
            self.changed.set()
            self._chunks.put_nowait(None)
            self._room.set()

    def has_room(self) -> None:
        self._room.set()


Handler = Callable[[PodStream], Awaitable[None]]


class PodConnection(asyncio.Protocol):
    def __init__(self, pod: PodRecords) -> None:
        self.pod = pod
        self.streams: dict[int, PodStream] = {}
        self.transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        configuration = h2.config.H2Configuration(
            client_side=False, header_encoding="latin-1", validate_inbound_headers=True
        )
        self.h2 = h2.connection.H2Connection(configuration)
        self.h2.local_settings = h2.settings.Settings(client=False, initial_values=pod.settings)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.pod.connections.append(self)
        self.h2.initiate_connection()
        self.h2.increment_flow_control_window(2**20)
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        if self in self.pod.connections:
            self.pod.connections.remove(self)
        self._writable.set()
        for stream in list(self.streams.values()):
            stream.ended(-1)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    async def drain(self) -> None:
        await self._writable.wait()

    def flush(self) -> None:
        if self.transport is not None and (data := self.h2.data_to_send()):
            self.transport.write(data)

    def acknowledge(self, number: int, size: int) -> None:
        with contextlib.suppress(h2.exceptions.ProtocolError):
            self.h2.acknowledge_received_data(size, number)
        self.flush()

    def data_received(self, data: bytes) -> None:
        try:
            events = self.h2.receive_data(data)
        except h2.exceptions.ProtocolError as error:
            self.pod.errors.append(repr(error))
            self.flush()
            if self.transport is not None:
                self.transport.close()
            return
        for event in events:
            self._take(event)
        self.flush()

    def _take(self, event: h2.events.Event) -> None:
        streams = self.streams
        if isinstance(event, h2.events.RequestReceived):
            pairs: Pairs = [(_text(name), _text(value)) for name, value in event.headers]
            stream = streams[event.stream_id] = PodStream(self, event.stream_id, pairs)
            self.pod.begins(stream)
        elif isinstance(event, h2.events.DataReceived):
            open_one = streams.get(event.stream_id)
            if open_one is not None and event.data:
                open_one.arrived(event.data)
            padding = (event.flow_controlled_length or 0) - len(event.data)
            if padding or open_one is None:
                self.acknowledge(event.stream_id, padding or len(event.data))
        elif isinstance(event, h2.events.TrailersReceived):
            streams[event.stream_id].trailers = [(_text(name), _text(value)) for name, value in event.headers]
        elif isinstance(event, h2.events.StreamEnded):
            assert event.stream_id is not None
            streams[event.stream_id].arrived(None)
        elif isinstance(event, h2.events.StreamReset):
            if (open_one := streams.get(event.stream_id)) is not None:
                open_one.ended(int(event.error_code or 0))
        elif isinstance(event, h2.events.WindowUpdated | h2.events.RemoteSettingsChanged):
            for one in streams.values():
                one.has_room()
        elif isinstance(event, h2.events.ConnectionTerminated):
            self.pod.goaways.append(int(event.error_code or 0))


class PodRecords:
    """What connections of one pod share: its handler, and what it has seen. On the loop that runs now.

    `most`: how many requests it has had at a time.
    """

    def __init__(self, handler: Handler, settings: dict[int, int] | None = None) -> None:
        self.handler = handler
        codes = h2.settings.SettingCodes
        self.settings: dict[Any, int] = {codes.MAX_CONCURRENT_STREAMS: 1_000, codes.MAX_HEADER_LIST_SIZE: 131_072}
        self.settings.update(settings or {})
        self.requests: list[PodStream] = []
        self.errors: list[str] = []
        self.goaways: list[int] = []
        self.connections: list[PodConnection] = []
        self.working = 0
        self.most = 0
        self.records = True
        self.released = threading.Event()
        self.tasks: set[asyncio.Task[None]] = set()

    def begins(self, stream: PodStream) -> None:
        if self.records:
            self.requests.append(stream)
        self.working += 1
        self.most = max(self.most, self.working)
        task = asyncio.get_running_loop().create_task(self._serve(stream))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def abort(self) -> None:
        """All connections, as when a process is killed."""
        for connection in list(self.connections):
            if connection.transport is not None:
                connection.transport.abort()

    async def _serve(self, stream: PodStream) -> None:
        try:
            await self.handler(stream)
        except ResetError:
            pass
        except h2.exceptions.ProtocolError as error:
            if stream.code is None and stream.connection.transport is not None:
                self.errors.append(f"{stream}: {error!r}")
        except Exception as error:
            self.errors.append(f"{stream}: {error!r}")
        finally:
            self.working -= 1
            if stream.complete:
                stream.connection.streams.pop(stream.number, None)


class Http2Pod(PodRecords):
    """Use as a context; it listens on a free port from the start, and runs in a thread of its own."""

    def __init__(
        self,
        handler: Handler | None = None,
        *,
        settings: dict[int, int] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(handler or mirror, settings)
        self._tls = tls
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = self.do(self._listen())
        self.port: int = self._server.sockets[0].getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def do(self, what: Any) -> Any:
        """Run a coroutine on the pod's loop."""
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(PATIENCE_S)

    def call(self, what: Callable[[], Any]) -> Any:
        async def run() -> Any:
            return what()

        return self.do(run())

    def release(self) -> None:
        """Let everything go on that is held."""
        self.released.set()
        self._loop.call_soon_threadsafe(self._tell_held)

    def _tell_held(self) -> None:
        for connection in self.connections:
            for stream in connection.streams.values():
                stream.changed.set()

    def close_connections(self) -> None:
        """As a process that is killed."""

        self.call(self.abort)

    def close(self) -> None:
        self.released.set()
        self.do(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()
        assert self.errors == [], self.errors

    async def _listen(self) -> asyncio.Server:
        loop = asyncio.get_running_loop()
        return await loop.create_server(lambda: PodConnection(self), "127.0.0.1", 0, ssl=self._tls, backlog=1_024)

    async def _stop(self) -> None:
        self._server.close()
        self.abort()
        for task in list(self.tasks):
            task.cancel()
        if self.tasks:
            await asyncio.wait(self.tasks)


async def mirror(stream: PodStream) -> None:  # noqa: C901, PLR0912 - a table
    """The handler of the table above."""
    path = stream.path.partition("?")[0]
    kind, _, argument = path.lstrip("/").partition("/")
    if stream.method == "CONNECT":
        await web_socket_bytes(stream)
        return
    if kind == "early":
        await _send_whole(stream, 200, b"early")
        return
    if stream.header("expect") == "100-continue":
        stream.head(100)
    if kind == "silent":
        while await stream.chunk() is not None:
            pass
        await asyncio.Event().wait()
    if kind == "duplex":
        stream.head(200)
        while (data := await stream.chunk()) is not None:
            await stream.send(data)
        stream.end(stream.trailers)
        return
    if kind == "hold":
        stream.head(200, [("x-held", "1")])
        while not stream.connection.pod.released.is_set():
            # Waited for and not looked at now and then: a reset ends the request before another read of a connection.
            await stream.changed.wait()
            if stream.code is not None:
                raise ResetError
        await stream.send(await stream.body() or SMALL)
        stream.end()
        return
    if kind == "drop":
        while await stream.chunk() is not None:
            pass
        await _send_whole(stream, 200, b"%d" % stream.received)
        return
    if kind == "cut":
        await stream.body()
        stream.head(200, [("content-length", "1000")])
        await stream.send(b"the begin")
        stream.reset()
        return
    sent = await stream.body()
    if kind == "bytes":
        sent = pattern(int(argument))
    elif kind == "large":
        sent = bytes(LARGE)
    if kind == "hints":
        stream.head(103, [HINT])
    if kind == "trailers":
        stream.head(200, [("trailer", "x-sum")])
        await stream.send(sent)
        stream.end([("x-sum", str(len(sent))), *stream.trailers])
        return
    more = [("content-type", stream.header("content-type") or "")] if kind == "typed" else []
    await _send_whole(stream, 200, sent if sent or stream.method == "POST" else SMALL, more)


async def _send_whole(stream: PodStream, status: int, body: bytes, more: Pairs | None = None) -> None:
    empty = stream.method == "HEAD" or not body
    stream.head(status, [("content-length", str(len(body))), *(more or [])], end=empty)
    if not empty:
        await stream.send(body)
        stream.end()


async def web_socket_bytes(stream: PodStream) -> None:
    """A WebSocket over HTTP/2 (RFC 8441) whose frames are echoed by an own, small reader; text and close only."""
    assert stream.header(":protocol") == "websocket", stream
    stream.head(200)
    buffer = b""
    while (data := await stream.chunk()) is not None:
        buffer += data
        while (found := unmasked(buffer)) is not None:
            opcode, payload, buffer = found
            await stream.send(ws_frame(opcode, payload))
            if opcode == 8:
                stream.end()
                return
    stream.end()


def ws_frame(opcode: int, payload: bytes, mask: bytes = b"") -> bytes:
    """One whole frame of RFC 6455."""
    masked = 0x80 if mask else 0
    size = len(payload)
    if size < 126:
        head = bytes([0x80 | opcode, masked | size])
    elif size < 65_536:
        head = bytes([0x80 | opcode, masked | 126]) + size.to_bytes(2, "big")
    else:
        head = bytes([0x80 | opcode, masked | 127]) + size.to_bytes(8, "big")
    if mask:
        payload = bytes(byte ^ mask[place % 4] for place, byte in enumerate(payload))
    return head + mask + payload


def unmasked(data: bytes) -> tuple[int, bytes, bytes] | None:
    """(opcode, payload, rest) of the first frame, masked or not; None: it is not whole."""
    if len(data) < 2:
        return None
    size, at = data[1] & 0x7F, 2
    if size == 126:
        size, at = int.from_bytes(data[2:4], "big"), 4
    elif size == 127:
        size, at = int.from_bytes(data[2:10], "big"), 10
    mask = b"\0\0\0\0"
    if data[1] & 0x80:
        mask, at = data[at : at + 4], at + 4
    if len(data) < at + size or len(mask) < 4:
        return None
    payload = bytes(byte ^ mask[place % 4] for place, byte in enumerate(data[at : at + size]))
    return data[0] & 0xF, payload, data[at + size :]


def _text(value: str | bytes) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value


# --- the same over HTTP/1.1 ---


def mirror1(side: PodSide) -> None:  # noqa: C901, PLR0912 - a table
    """The script of a `ScriptedPod`."""
    while True:
        request = side.head()
        kind, _, argument = request.target.partition("?")[0].lstrip("/").partition("/")
        if kind == "early":
            side.answer(b"early")
            side.drain()
            return
        if [value.lower() for value in request.all("expect")] == ["100-continue"]:
            side.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        if kind == "duplex":
            duplex1(side)
            continue
        if kind == "hold":
            side.send(b"HTTP/1.1 200 OK\r\nX-Held: 1\r\nTransfer-Encoding: chunked\r\n\r\n")
            while not side.pod.going.wait(0.005):
                if side.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != 1:
                    return  # no longer ESTABLISHED
            side.body(request)
            body = request.body or SMALL
            side.send(b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
            continue
        side.body(request)
        if kind == "silent":
            side.stall()
            return
        if kind == "cut":
            side.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nthe begin")
            return
        sent = request.body
        if kind == "drop":
            sent = b"%d" % len(request.body)
            request.body = b""
        elif kind == "bytes":
            sent = pattern(int(argument))
        elif kind == "large":
            sent = bytes(LARGE)
        if kind == "hints":
            side.send(b"HTTP/1.1 103 Early Hints\r\n%b: %b\r\n\r\n" % (HINT[0].encode(), HINT[1].encode()))
        if kind == "trailers":
            lines = "".join(f"{name}: {value}\r\n" for name, value in [("x-sum", str(len(sent))), *request.trailers])
            side.send(b"HTTP/1.1 200 OK\r\nTrailer: x-sum\r\nTransfer-Encoding: chunked\r\n\r\n")
            if sent:
                side.send(b"%x\r\n%b\r\n" % (len(sent), sent))
            side.send(b"0\r\n" + lines.encode() + b"\r\n")
            continue
        body = sent if sent or request.method == "POST" else SMALL
        lines = "".join(f"Content-Type: {one}\r\n" for one in request.all("content-type") if kind == "typed")
        side.send(f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n{lines}\r\n".encode())
        if request.method != "HEAD":
            side.send(body)


def duplex1(side: PodSide) -> None:
    """Each chunk of the request, which must be chunked, is sent back as it comes."""
    side.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while size := int(side._line(), 16):
        data = side.read(size)
        assert side._line() == ""
        side.send(b"%x\r\n%b\r\n" % (size, data))
    lines = ""
    while field := side._line():
        lines += field + "\r\n"
    side.send(b"0\r\n" + lines.encode() + b"\r\n")
