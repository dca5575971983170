"""Our client and our server, through a network that cuts anywhere and says the same in other frames, and peers that
pause, hold, reset, change their settings, go away and answer at once: every message arrives whole and in order, or its
stream is reset, or is told that nothing was done with it; and nothing is left.
"""

from __future__ import annotations

import os

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from activator.codec.http2 import frames
from activator.codec.http2.frames import (
    CANCEL,
    HEADER_TABLE_SIZE,
    INITIAL_WINDOW_SIZE,
    MAX_CONCURRENT_STREAMS,
    MAX_FRAME_SIZE,
    MAX_HEADER_LIST_SIZE,
    NO_ERROR,
)
from activator.codec.http2.stream import Stream
from activator.codec.message import UNKNOWN_LENGTH, Headers
from tests.codec.http2.http2_ends import ClientEar, Ear, ServerEar, reframed, request, response

DEEP = os.environ.get("ACTIVATOR_DEEP") == "1"

sizes = st.sampled_from([1, 2, 9, 100, 5000, 16_383, 16_384, 16_385, 40_000, 70_000, 140_000])
chunks = st.sampled_from([1, 2, 8, 9, 10, 100, 16_393, 20_000, 1 << 20])
trailer_lists = st.sampled_from([[], [(b"grpc-status", b"0")], [(b"a", b"x" * 20_000), (b"b", b"2")]])
reactions = st.sampled_from(
    ["none", "none", "none", "answer", "stream", "echo", "reset at head", "reset in body", "pause"]
)


def content(size: int, seed: int) -> bytes:
    """Bytes whose order shows."""
    return b"".join([(seed * 1_000_003 + at).to_bytes(4, "big") for at in range((size + 3) // 4)])[:size]


class Said:
    """What was sent on one stream in one direction."""

    def __init__(self) -> None:
        self.head = b""
        self.token = b""
        self.body = b""
        self.trailers: Headers = []
        self.ended = False
        self.left = -1  # of an announced length


class Ends(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.client = ClientEar()
        self.server = ServerEar()
        self.client.reaction = self.react
        self.server.reaction = self.react
        self.streams: dict[tuple[Ear, int], Stream] = {}
        self.said: dict[tuple[Ear, int], Said] = {}
        self.plans: dict[int, str] = {}
        self.now_s = 100.0
        self.seed = 0
        self.wire: dict[Ear, bytes] = {self.client: b"", self.server: b""}  # what each has sent, on its way
        self.client.on_goaway = self.hears_of_the_end
        self.dropped: set[int] = set()  # streams that the client was told nothing was done with
        self.frames_left = 1000  # of those that have no effect: there is a bound for these

    # --- what happens within an event ---

    def react(self, ear: Ear, stream: Stream, what: str) -> None:
        self.streams[ear, stream.id] = stream
        plan = self.plans.get(stream.id, "none")
        if what == "full" and plan == "reset in body":
            self.reset(ear, stream)
        if ear is not self.server:
            return
        said = self.said_on(ear, stream)
        if what == "head":
            if plan in {"answer", "stream", "echo"}:
                self.send_head(stream, UNKNOWN_LENGTH)
            if plan == "answer":
                self.send(ear, stream, 10)
                self.end(ear, stream, [])
            elif plan == "stream":
                self.send(ear, stream, 100_000)
            elif plan == "pause":
                self.server.server.pause(stream, True)
            elif plan == "reset at head":
                self.reset(ear, stream)
        elif what == "body" and plan == "echo" and said.head and len(said.body) < 300_000:
            self.send(ear, stream, 20_000)
        elif what == "body" and plan == "reset in body":
            self.reset(ear, stream)
        elif what == "end" and plan == "echo" and said.head:
            self.end(ear, stream, [(b"a", b"b")])

    # --- steps ---

    def said_on(self, ear: Ear, stream: Stream) -> Said:
        return self.said.setdefault((ear, stream.id), Said())

    def open_streams(self, ear: Ear) -> list[Stream]:
        assert ear.codec is not None
        return [stream for stream in ear.codec.streams.values() if not stream.local_ended]

    def send_head(self, stream: Stream, length: int) -> None:
        said = self.said_on(self.server, stream)
        if said.head or stream.is_closed:
            return
        head = response(200, length, length != 0)
        self.server.server.send_response(stream, head, length == 0)
        said.head = head.headers.block
        said.left = length
        said.ended = length == 0

    def send(self, ear: Ear, stream: Stream, size: int) -> None:
        said = self.said_on(ear, stream)
        if said.ended or stream.is_closed or not said.head:
            return
        if said.left >= 0:
            size = min(size, said.left)
            said.left -= size
        self.seed += 1
        data = content(size, self.seed)
        said.body += data
        assert ear.codec is not None
        ear.codec.send_body(stream, data)

    def end(self, ear: Ear, stream: Stream, trailers: Headers) -> None:
        said = self.said_on(ear, stream)
        if said.ended or stream.is_closed or not said.head:
            return
        while said.left > 0:
            self.send(ear, stream, said.left)
        said.ended = True
        said.trailers = trailers
        assert ear.codec is not None
        ear.codec.send_end(stream, trailers)

    def reset(self, ear: Ear, stream: Stream) -> None:
        assert ear.codec is not None
        ear.codec.reset(stream, CANCEL)

    def pick(self, ear: Ear, number: int) -> Stream | None:
        streams = self.open_streams(ear)
        return streams[number % len(streams)] if streams else None

    @precondition(lambda self: self.client.client.room() > 0 and len(self.client.client.streams) < 12)
    @rule(
        plan=reactions,
        length=st.sampled_from([-2, -1, 0, 1, 50_000]),
        path=st.sampled_from([b"/", b"/a", b"/" + b"p" * 9000]),
        token=st.sampled_from([b"", b"one", b"two", b"3" * 600]),
    )
    def opens(self, plan: str, length: int, path: bytes, token: bytes = b"") -> None:
        """`length` -2: no body; -1: of unknown length."""
        more = b"\r\nauthorization: %b" % token if token else b""
        method = b"PUT" if length > -2 else b"GET"
        head = request(method, path, max(length, UNKNOWN_LENGTH), length not in {-2, 0}, more)
        self.plans[self.client.client.last_id + 2 if self.client.client.last_id else 1] = plan
        stream = self.client.request(head)
        self.streams[self.client, stream.id] = stream
        said = self.said_on(self.client, stream)
        said.head = path
        said.token = token
        said.ended = not head.has_body
        said.left = length if length > 0 else -1

    @rule(of_client=st.booleans(), number=st.integers(0, 20), size=sizes)
    def sends(self, of_client: bool, number: int, size: int) -> None:
        ear = self.ear(of_client)
        stream = self.pick(ear, number)
        if stream is not None:
            self.send(ear, stream, size)

    @rule(of_client=st.booleans(), number=st.integers(0, 20), size=sizes, ends=st.booleans(), turn=st.booleans())
    def sends_while_held(self, of_client: bool, number: int, size: int, ends: bool, turn: bool) -> None:
        """The transport takes nothing, and takes more again in the same turn."""
        ear = self.ear(of_client)
        stream = self.pick(ear, number)
        assert ear.codec is not None
        ear.codec.hold(True)
        if stream is not None:
            self.send(ear, stream, size)
            if ends:
                self.end(ear, stream, [(b"a", b"x" * 20_000)])
        if turn:
            ear.end_turn()
        ear.codec.hold(False)

    @precondition(lambda self: self.client.client.last_id < 20 and self.client.client.room() >= 20)
    @rule(plan=st.sampled_from(["stream", "echo", "none"]), size=st.sampled_from([1, 60_000, 70_000]))
    def opens_many(self, plan: str, size: int) -> None:
        """So many that the connection's window is used up."""
        for _ in range(20):
            self.opens(plan, -1, b"/")
            self.send(self.client, self.client.client.streams[self.client.client.last_id], size)

    @rule(of_client=st.booleans(), number=st.integers(0, 20), trailers=trailer_lists)
    def ends(self, of_client: bool, number: int, trailers: Headers) -> None:
        ear = self.ear(of_client)
        stream = self.pick(ear, number)
        if stream is not None:
            self.end(ear, stream, trailers)

    @rule(number=st.integers(0, 20), length=st.sampled_from([-1, -1, 0, 1, 100, 30_000]), interim=st.booleans())
    def answers(self, number: int, length: int, interim: bool) -> None:
        stream = self.pick(self.server, number)
        if stream is not None:
            if interim and not self.said_on(self.server, stream).head:
                self.server.server.send_response(stream, response(103, has_body=False), False)
            self.send_head(stream, length)

    @rule(of_client=st.booleans(), number=st.integers(0, 20))
    def resets(self, of_client: bool, number: int) -> None:
        ear = self.ear(of_client)
        assert ear.codec is not None
        streams = list(ear.codec.streams.values())
        if streams:
            self.reset(ear, streams[number % len(streams)])

    @rule(of_client=st.booleans(), number=st.integers(0, 20), paused=st.booleans())
    def pauses(self, of_client: bool, number: int, paused: bool) -> None:
        ear = self.ear(of_client)
        assert ear.codec is not None
        streams = list(ear.codec.streams.values())
        if streams:
            ear.codec.pause(streams[number % len(streams)], paused)

    @rule(of_client=st.booleans(), held=st.booleans())
    def holds(self, of_client: bool, held: bool) -> None:
        codec = self.ear(of_client).codec
        assert codec is not None
        codec.hold(held)

    @rule(of_client=st.booleans())
    def turn_ends(self, of_client: bool) -> None:
        self.ear(of_client).end_turn()

    @rule(of_client=st.booleans(), number=st.integers(0, 20))
    def flushes(self, of_client: bool, number: int) -> None:
        ear = self.ear(of_client)
        stream = self.pick(ear, number)
        if stream is not None and ear.codec is not None:
            ear.codec.flush_stream(stream)

    @rule(of_client=st.booleans(), window=st.sampled_from([0, 1, 100, 20_000, 65_535]))
    def changes_windows(self, of_client: bool, window: int) -> None:
        """Less than what is really taken, so that it holds at once."""
        self.ear(of_client).write(frames.settings_frame([(INITIAL_WINDOW_SIZE, window)]))

    @rule(
        of_client=st.booleans(),
        setting=st.sampled_from(
            [
                *((HEADER_TABLE_SIZE, size) for size in (0, 40, 100, 4096, 65_536)),
                *((MAX_CONCURRENT_STREAMS, count) for count in (0, 3, 100)),
                (MAX_FRAME_SIZE, 16_384),
                (MAX_FRAME_SIZE, 2**24 - 1),
                (MAX_HEADER_LIST_SIZE, 100),
                (0xBEEF, 7),
            ]
        ),
    )
    def changes_settings(self, of_client: bool, setting: tuple[int, int]) -> None:
        """Of the table's size: no more than what is really taken, of 65,536 the encoder uses as much."""
        self.ear(of_client).write(frames.settings_frame([setting]))

    @rule(named=st.booleans())
    def server_goes_away(self, named: bool) -> None:
        """Announced, or with the last stream that it serves."""
        if named:
            self.server.server.end()
        else:
            self.server.server.announce_end()

    def hears_of_the_end(self, last_id: int) -> None:
        """As the connection to a pod does: what is above the last stream may be sent elsewhere."""
        client = self.client.client
        client.going_away = True
        for stream in list(client.streams.values()):
            if stream.id > last_id:
                client.drop(stream)
                self.dropped.add(stream.id)

    @rule(of_client=st.booleans(), ack=st.booleans())
    def pings(self, of_client: bool, ack: bool) -> None:
        self.ear(of_client).write(frames.ping(b"12345678", ack))

    @rule(
        to_client=st.booleans(),
        count=st.sampled_from([1, 9, 30, 1000, 1 << 20, 1 << 20, 1 << 20]),
        chunk=chunks,
        way=st.sampled_from(["", "", "pieces", "noise"]),
    )
    def arrives(self, to_client: bool, count: int, chunk: int, way: str = "") -> None:
        """`count` bytes, in pieces of `chunk`, in the frames of the sender or in others."""
        source, target = self.ear(not to_client), self.ear(to_client)
        codec = target.codec
        assert codec is not None
        written, source.transport.sent = source.transport.sent, b""
        if way and self.frames_left > 0:
            changed = reframed(written, way)
            self.frames_left -= (len(changed) - len(written)) // 20
            written = changed
        self.wire[source] += written
        sent = self.wire[source][:count]
        if chunk < 100:
            sent = sent[: 300 * chunk]
        self.wire[source] = self.wire[source][len(sent) :]
        for at in range(0, len(sent), chunk):
            self.now_s += 0.001
            codec.feed(sent[at : at + chunk], self.now_s)
            while codec.needs_turn:
                codec.resume()

    def ear(self, of_client: bool) -> Ear:
        return self.client if of_client else self.server

    # --- what must hold ---

    @invariant()
    def no_bound_is_broken(self) -> None:
        for ear in (self.client, self.server):
            codec = ear.codec
            assert codec is not None
            assert codec.error is None, codec.error.words
            assert codec._receive_window >= 0
            for stream in codec.streams.values():
                assert stream.receive_window >= 0 and not stream.is_closed
                assert stream.receive_window + stream.owed <= 256 * 1024 + 65_535
            for stream in codec._waiting:
                assert stream.is_waiting and stream.unsent_bytes > 0 and stream.id in codec.streams

    @invariant()
    def what_came_was_sent(self) -> None:
        for ear, other in ((self.client, self.server), (self.server, self.client)):
            for stream_id, came in ear.came.items():
                said = self.said.get((other, stream_id))
                if said is None:
                    assert not came.body and came.head is None
                    continue
                assert said.body.startswith(came.body)
                if came.ended:
                    assert said.ended and came.body == said.body and came.trailers == said.trailers
                if came.head is not None and ear is self.server:
                    assert came.head.headers.get(b"x-path") == said.head
                    assert came.head.headers.get(b"authorization") == (said.token or None)
                    assert stream_id not in self.dropped, "nothing was done with it"
                assert not came.words, came.words

    def teardown(self) -> None:
        for round_number in range(500):
            if round_number and not self.client.client.streams and not self.server.server.streams:
                break
            for ear in (self.client, self.server):
                codec = ear.codec
                assert codec is not None
                codec.hold(False)
                if round_number == 0:
                    ear.write(frames.settings_frame([(INITIAL_WINDOW_SIZE, 65_535)]))
                for stream in list(codec.streams.values()):
                    codec.pause(stream, False)
                    if ear is self.server:
                        self.send_head(stream, UNKNOWN_LENGTH)
                    self.end(ear, stream, [])
                ear.end_turn()
            for to_client in (True, False):
                self.arrives(to_client, 1 << 30, 1 << 20)
                self.no_bound_is_broken()
        for to_client in (True, False, True, False):  # what is still on its way, and the answers to it
            self.ear(not to_client).end_turn()
            self.arrives(to_client, 1 << 30, 1 << 20)
        self.what_came_was_sent()
        self.nothing_is_left()

    def nothing_is_left(self) -> None:
        for ear, other in ((self.client, self.server), (self.server, self.client)):
            codec = ear.codec
            assert codec is not None
            assert not codec.streams and not codec._waiting and not codec._gathered
            assert ear.transport.sent == self.wire[ear] == b"" and not codec._kept and not codec.needs_turn
            for stream_id, came in ear.came.items():
                assert came.closed or came.code is not None or stream_id in self.dropped
                if stream_id in self.dropped or (other, stream_id) not in self.said:
                    assert came.head is None and not came.body, "the other end never had it"
                    continue
                said = self.said[other, stream_id]
                if came.code is None and other.came[stream_id].code in {None, NO_ERROR} and came.ended:
                    assert came.body == said.body and said.ended
            for stream in self.streams.values():
                assert stream.is_closed and stream.unsent_bytes == 0 and not stream.unsent
            assert codec._receive_window + codec._owed == 1 << 20, "credit is lost"
            assert len(codec._reset_by_us) <= 1024
        # What the one may send is what the other takes.
        for ear, other in ((self.client, self.server), (self.server, self.client)):
            assert ear.codec is not None and other.codec is not None
            assert ear.codec._send_window == other.codec._receive_window


TestEnds = Ends.TestCase
TestEnds.settings = settings(max_examples=1500 if DEEP else 60, stateful_step_count=100 if DEEP else 50)
