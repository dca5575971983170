"""hyper's HTTP/2 (Rust, as httpunk has it for Python) takes what we take and refuses what we refuse, frame by frame,
but for the differences that are listed here with the section of RFC 9113 that says who is right.

httpunk is driven without sockets: its protocol for asyncio gets a transport that writes down what is sent, on a loop
that turns only while it is given a frame.
"""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from hypothesis import given, settings

from activator.codec.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    GOAWAY,
    HAS_PRIORITY,
    HEADERS,
    PADDED,
    PRIORITY,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
)
from tests.codec.http2.test_http2_frames import START, Ours, sequences
from tests.written_transport import WrittenTransport

TURNS = 12  # of the loop for a frame: several times those that httpunk's tasks need to wake one another
STREAM_NUMBERS = {"a client's stream with an even number", "HEADERS on a stream that is closed"}
PSEUDO_FIELDS = {"the method is not a token", ":path is not a path"}


class Judge:
    """hyper in the server's place, which answers no request. What it says of each frame is as `Ours` says it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.transport = WrittenTransport()
        self.protocol = loop.run_until_complete(self._begin())
        assert self.says(START) == "taken"

    async def _begin(self) -> Any:
        from httpunk.asyncio import H2ServerProtocol
        from httpunk.h2.server import H2Server

        class Silent(H2ServerProtocol):
            async def _make_server(self) -> H2Server:
                return H2Server(self, backend=self._backend, initial_window_size=65_535)  # ours

            async def handle(self, request: Any) -> None:
                await asyncio.Event().wait()

        protocol: Any = cast(Any, Silent)()  # httpunk has no types there
        protocol.connection_made(self.transport)
        return protocol

    async def _turn(self, data: bytes) -> None:
        self.protocol.data_received(data)
        for _ in range(TURNS):
            await asyncio.sleep(0)

    def says(self, one: bytes) -> str:
        self.transport.sent = b""
        self.loop.run_until_complete(self._turn(one))
        found = kinds(self.transport.sent)
        if any(kind == GOAWAY and code for kind, code in found):
            return "connection"
        return "stream" if any(kind == RST_STREAM for kind, _ in found) else "taken"

    def close(self) -> None:
        """All of its tasks have ended."""
        self.protocol.connection_lost(None)
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        while asyncio.all_tasks(self.loop):
            self.loop.run_until_complete(asyncio.sleep(0))


def kinds(out: bytes) -> list[tuple[int, int]]:
    """Of each frame its kind, and the error code of GOAWAY: hyper answers one without an error by another one."""
    found = []
    while out:
        found.append((out[3], int.from_bytes(out[13:17], "big")))
        out = out[9 + int.from_bytes(out[:3], "big") :]
    return found


@pytest.fixture(scope="module")
def loop(need: Callable[[bool, str], None]) -> Iterator[asyncio.AbstractEventLoop]:
    need(importlib.util.find_spec("httpunk") is not None, "the Python package httpunk")
    made = asyncio.new_event_loop()
    yield made
    made.close()


def depends_on_itself(one: bytes) -> bool:
    at = 9 + (one[3] == HEADERS and bool(one[4] & PADDED))
    has_priority = one[3] == PRIORITY or (one[3] == HEADERS and bool(one[4] & HAS_PRIORITY))
    return has_priority and int.from_bytes(one[at : at + 4], "big") & 0x7FFFFFFF == int.from_bytes(one[5:9], "big")


def difference(one: bytes, ours: str, theirs: str, words: str) -> str:
    """Why the two differ on a frame; empty: there is no reason for it."""
    if theirs == "connection":
        return stricter(one, ours, words)
    kind, verdicts = one[3], (ours, theirs)
    if kind == HEADERS and verdicts == ("stream", "taken") and words in PSEUDO_FIELDS:
        return "8.3.1: httpunk hands on requests whose pseudo-header fields are malformed"
    if kind == GOAWAY and verdicts == ("connection", "taken") and words == "GOAWAY on a stream":
        return "6.8: GOAWAY on a stream is an error of the connection; hyper looks at no stream"
    if depends_on_itself(one) and verdicts == ("connection", "stream"):
        return "5.4.1 (RFC 7540 5.3.1): an error of a stream may be treated as one of the connection"
    if kind == DATA and verdicts == ("connection", "stream") and words == "DATA on a stream that is closed":
        return "5.1, 5.1.1: nothing was ever open there; hyper takes it for a stream that it has forgotten"
    if kind in {HEADERS, CONTINUATION} and verdicts == ("connection", "stream") and words in STREAM_NUMBERS:
        return "5.1.1: an error of the connection; hyper finds the malformed block first"
    return in_pieces(one, ours)


def stricter(one: bytes, ours: str, words: str) -> str:
    """Where hyper ends the connection, and we do not."""
    kind, stream_id = one[3], int.from_bytes(one[5:9], "big")
    if ours == "stream" and words == "HEADERS behind the end of the stream":
        return "5.1: half-closed (remote), an error of the stream"
    if kind == WINDOW_UPDATE and stream_id and one[9:] == bytes(4):
        return "6.9, 5.1: by 0 is an error of the stream, and nothing on one that is closed"
    if kind == PRIORITY and ours == "stream" and words == "PRIORITY is not 5 bytes long":
        return "6.3: an error of the stream"
    if kind == SETTINGS and one[4] & ACK and ours == "taken":
        return "6.5.3: forbids no ACK that nobody waits for; hyper does"
    return in_pieces(one, ours)


def in_pieces(one: bytes, ours: str) -> str:
    if one[3] in {HEADERS, CONTINUATION} and not one[4] & END_HEADERS and ours == "taken":
        return "4.3: we decode a field block once it is whole, hyper each piece of it as it comes"
    return ""


def reason(ours: Ours, one: bytes) -> str:
    """Why we refused a frame."""
    if ours.ear.server.error is not None:
        return ours.ear.server.error.words
    came = ours.ear.came.get(int.from_bytes(one[5:9], "big"))
    return came.words if came is not None else ""


@settings(max_examples=200)
@given(sequence=sequences)
def test_hyper_refuses_what_we_refuse(loop: asyncio.AbstractEventLoop, sequence: list[bytes]) -> None:
    ours, judge = Ours(), Judge(loop)
    try:
        for one in sequence:
            mine, theirs = ours.says(one), judge.says(one)
            if mine != theirs:
                assert difference(one, mine, theirs, reason(ours, one)), (one[:60], mine, theirs, reason(ours, one))
            if mine != "taken" or theirs != "taken" or one[3] == GOAWAY:
                return  # from here on they are in different states
    finally:
        judge.close()
