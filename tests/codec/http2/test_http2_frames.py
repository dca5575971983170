"""Any frames in any order: cut in whichever way they mean the same; and `h2` takes what we take and refuses what we
refuse, but for the differences that are listed here with the section of RFC 9113 that says who is right.
"""

from __future__ import annotations

import h2.connection
import h2.exceptions
from h2.config import H2Configuration
from hpack import Encoder
from hypothesis import example, given, settings
from hypothesis import strategies as st

from activator.codec.http2 import frames
from activator.codec.http2.frames import (
    ACK,
    CANCEL,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HAS_PRIORITY,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
)
from tests.codec.http2.http2_ends import ClientEar, Ear, ServerEar, request

GOOD = [(":method", "POST"), (":scheme", "http"), (":authority", "app.test"), (":path", "/")]


def block(*more: tuple[str, str]) -> bytes:
    """Without the dynamic table, so that blocks may come in any order."""
    encoder = Encoder()
    encoder.header_table_size = 0
    return encoder.encode([*GOOD, *more])[1:]


HEAD = block()
WITH_LENGTH = block(("content-length", "4"))
ANSWER = b"\x88"
TRAILERS = b"\x00\x01a\x01b"
stream_ids = st.sampled_from([0, 1, 1, 1, 3, 3, 5, 2, 9])
number = st.integers(0, 2**31 - 1).map(lambda found: found.to_bytes(4, "big"))
small = st.sampled_from([0, 1, 100, 65_535, 2**31 - 1]).map(lambda found: found.to_bytes(4, "big"))
setting = st.tuples(
    st.integers(0, 9), st.sampled_from([0, 1, 2, 100, 16_384, 65_535, 2**24 - 1, 2**24, 2**31 - 1, 2**31])
)
blocks = st.sampled_from([HEAD, HEAD, HEAD, WITH_LENGTH, TRAILERS, HEAD[:-1], b"", b"\xff\xff\xff\xff\xff\xff"])
bodies = st.sampled_from([b"", b"1234", b"x" * 100, b"x" * 16_384, b"\x00", b"\x05abcdefgh", b"\xffab"])


def one_of(
    kind: int, flags: list[int], stream: st.SearchStrategy[int], payload: st.SearchStrategy[bytes]
) -> st.SearchStrategy[bytes]:
    return st.builds(lambda flag, on, data: frame(kind, flag, on, data), st.sampled_from(flags), stream, payload)


any_frame = st.one_of(
    one_of(
        HEADERS,
        [END_HEADERS, END_HEADERS | END_STREAM, END_HEADERS, 0, END_STREAM, END_HEADERS | PADDED],
        stream_ids,
        blocks,
    ),
    one_of(
        HEADERS, [END_HEADERS | HAS_PRIORITY], stream_ids, blocks.map(lambda found: b"\x00\x00\x00\x01\x10" + found)
    ),
    one_of(DATA, [0, 0, END_STREAM, PADDED, PADDED | END_STREAM], stream_ids, bodies),
    one_of(CONTINUATION, [0, END_HEADERS], stream_ids, blocks),
    one_of(RST_STREAM, [0], stream_ids, st.sampled_from([b"\0\0\0\x08", b"\0\0\0\0", b"\0\0\0"])),
    one_of(PRIORITY, [0], stream_ids, st.sampled_from([b"\0\0\0\0\x10", b"\0\0\0\x01\x10", b"\0\0"])),
    one_of(SETTINGS, [0, 0, ACK], st.sampled_from([0, 0, 0, 1]), st.sampled_from([b"", b"\0" * 5])),
    st.lists(setting, max_size=2).map(frames.settings_frame),
    one_of(PING, [0, ACK], st.sampled_from([0, 0, 0, 1]), st.sampled_from([b"12345678", b"1234567"])),
    one_of(
        GOAWAY,
        [0],
        st.sampled_from([0, 0, 1]),
        st.sampled_from([b"\0" * 8, b"\0" * 7, b"\x7f\xff\xff\xff\0\0\0\x02words"]),
    ),
    one_of(WINDOW_UPDATE, [0], stream_ids, small),
    one_of(PUSH_PROMISE, [END_HEADERS], stream_ids, st.just(b"\0\0\0\x02" + HEAD)),
    one_of(11, [0, 255], stream_ids, bodies),
)
sequences = st.lists(any_frame, max_size=12)
START = PREFACE + frames.settings_frame([])


def heard(ear: Ear) -> tuple[object, ...]:
    codec = ear.codec
    assert codec is not None
    ear.end_turn()
    error = None if codec.error is None else (codec.error.code, codec.error.words)
    came = {stream_id: one.told() for stream_id, one in ear.came.items()}
    return (came, error, ear.goaways, ear.settings, ear.pings, ear.transport.sent, sorted(codec.streams), codec.last_id)


def run(ear: Ear, data: bytes, cuts: list[int]) -> tuple[object, ...]:
    codec = ear.codec
    assert codec is not None
    at = 0
    for cut in [*sorted(cuts), len(data)]:
        codec.feed(data[at:cut], 100.0)
        at = max(at, cut)
        while codec.needs_turn:
            codec.resume()
    return heard(ear)


def asking() -> ClientEar:
    """A client that has asked four times."""
    ear = ClientEar()
    for method in (b"GET", b"HEAD", b"GET", b"GET"):
        ear.request(request(method))
    return ear


@given(sequences, st.lists(st.integers(0, 3000), max_size=4))
def test_a_server_is_told_the_same_however_the_bytes_are_cut(sequence: list[bytes], cuts: list[int]) -> None:
    data = START + b"".join(sequence)
    whole = run(ServerEar(), data, [])
    assert run(ServerEar(), data, list(range(min(len(data), 3000)))) == whole
    assert run(ServerEar(), data, [cut for cut in cuts if cut < len(data)]) == whole


@given(sequences, st.lists(st.integers(0, 3000), max_size=4))
def test_so_is_a_client(sequence: list[bytes], cuts: list[int]) -> None:
    data = frames.settings_frame([]) + b"".join(
        frame(one[3], one[4], int.from_bytes(one[5:9], "big"), one[9:].replace(HEAD, ANSWER)) for one in sequence
    )
    whole = run(asking(), data, [])
    assert run(asking(), data, list(range(min(len(data), 3000)))) == whole
    assert run(asking(), data, [cut for cut in cuts if cut < len(data)]) == whole


@given(st.binary(max_size=200))
def test_any_bytes_give_no_exception(data: bytes) -> None:
    run(ServerEar(), START + data, [])
    run(asking(), data, [])


# --- against h2 ---


class Judge:
    """`h2` in the server's place. What it says of each frame: taken, a stream error, or an error of the connection."""

    def __init__(self) -> None:
        self.h2 = h2.connection.H2Connection(H2Configuration(client_side=False, header_encoding=None))
        self.h2.initiate_connection()
        self.h2.increment_flow_control_window((1 << 20) - 65_535)
        self.h2.receive_data(START)
        self.h2.clear_outbound_data_buffer()

    def says(self, one: bytes) -> str:
        try:
            self.h2.receive_data(one)
        except h2.exceptions.ProtocolError:
            return "connection"
        out = self.h2.data_to_send()
        return "stream" if resets(out) else "taken"


def resets(out: bytes) -> list[int]:
    found = []
    while out:
        size = 9 + int.from_bytes(out[:3], "big")
        if out[3] == RST_STREAM:
            found.append(int.from_bytes(out[5:9], "big"))
        out = out[size:]
    return found


class Ours:
    def __init__(self) -> None:
        self.ear = ServerEar()
        self.ear.server.feed(START, 100.0)
        self.ear.end_turn()
        self.ear.transport.sent = b""

    def says(self, one: bytes) -> str:
        self.ear.server.feed(one, 100.0)
        self.ear.end_turn()
        out, self.ear.transport.sent = self.ear.transport.sent, b""
        if self.ear.server.error is not None:
            return "connection"
        return "stream" if resets(out) else "taken"


def difference(kind: int, ours: str, theirs: str, words: str) -> str:
    """Why the two differ on a frame; empty: there is no reason for it."""
    if theirs == "connection" and ours == "stream":
        return "8.1.1, 5.4.2: h2 ends the connection for a malformed message"
    if theirs == "taken" and "content-length" in words:
        return "8.1.1: h2 does not hold content-length against a message without DATA"
    if kind == PRIORITY and ours == "taken":
        return "5.3.2: PRIORITY is out of use, and may name any stream"
    if kind == RST_STREAM and theirs == "taken" and "a stream that is idle" in words:
        return "6.4: h2 takes RST_STREAM on an idle stream once another one has been open"
    if theirs == "stream" and ours == "connection" and "a stream that is closed" in words:
        return "5.1: a frame on a stream that was skipped or has ended may end the connection"
    if theirs == "stream" and ours == "connection" and "a stream that depends on itself" in words:
        return "5.4.1: a stream error may be treated as one of the connection; here the stream has ended"
    if kind == SETTINGS and theirs == "taken" and ("ENABLE_PUSH" in words or "MAX_FRAME_SIZE" in words):
        return "6.5: values are processed in order; h2 looks at the last one of each"
    return ""


# Found by `make fuzz`: HEADERS with a priority that names its own stream, behind the end of that stream.
ITSELF = frame(HEADERS, END_HEADERS | HAS_PRIORITY, 1, b"\0\0\0\x01\x10" + HEAD)


@example([frame(HEADERS, END_HEADERS, 3, HEAD), frame(RST_STREAM, 0, 5, b"\0\0\0\x08")])
@example([frame(HEADERS, END_HEADERS, 3, HEAD), frame(0, 0, 1, b"")])
@example([frame(HEADERS, END_HEADERS | END_STREAM, 1, HEAD), ITSELF])
@example([frame(SETTINGS, 0, 0, b"\0\x05\0\0\0\0\0\x05\0\0\x40\0")])
@settings(max_examples=300)
@given(sequences)
def test_h2_refuses_what_we_refuse(sequence: list[bytes]) -> None:
    ours, judge = Ours(), Judge()
    for one in sequence:
        mine, theirs = ours.says(one), judge.says(one)
        if mine != theirs:
            words = "; ".join([came.words for came in ours.ear.came.values()])
            if ours.ear.server.error is not None:
                words = ours.ear.server.error.words
            assert difference(one[3], mine, theirs, words), (one[:60], mine, theirs, words)
        if mine != "taken" or theirs != "taken" or one[3] == GOAWAY:
            return  # from here on they are in different states; h2 takes nothing behind GOAWAY (6.8)


def test_what_is_sent_is_what_h2_reads() -> None:
    """Both roles, a request with a body and trailers and its answer."""
    client, server = ClientEar(), ServerEar()
    other = h2.connection.H2Connection(H2Configuration(client_side=False, header_encoding=None))
    other.initiate_connection()
    stream = client.request(request(b"POST", b"/p", 5, True))
    client.client.send_body(stream, b"hello")
    client.client.send_end(stream, [(b"a", b"b")])
    client.end_turn()
    sent = client.transport.sent
    events = [type(event).__name__ for event in other.receive_data(sent)]
    assert events[-4:] == ["RequestReceived", "DataReceived", "TrailersReceived", "StreamEnded"]
    server.server.feed(sent, 1.0)
    came = server.came[1]
    assert came.ended and came.body == b"hello" and came.trailers == [(b"a", b"b")]
    assert server.server.streams and not server.server.error
    server.server.reset(server.server.streams[1], CANCEL)
