"""One request to a pod over HTTP/2, and its answer, for probes of pods that support only HTTP/2."""

from __future__ import annotations

import asyncio
from typing import Final

from activator.codec.http2.client import ClientEvents, Http2Client
from activator.codec.http2.frames import code_name
from activator.codec.http2.stream import Stream
from activator.codec.message import Headers, RequestHead, ResponseHead
from activator.runtime.errors import WireError

NOT_HTTP2: Final = "it does not speak HTTP/2 on this port"

_READ_BYTES: Final = 16 * 1024


class Http2Answer:
    """The received part of an answer; `problem`: why the rest is missing."""

    def __init__(self) -> None:
        self.head: ResponseHead | None = None
        self.body = b""
        self.trailers: Headers = []
        self.complete = False
        self.problem = ""


async def exchange(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    head: RequestHead,
    body: bytes,
    secure: bool,
    body_bytes_max: int,
) -> Http2Answer:
    """Send the request on a new connection; keep at most `body_bytes_max` of the answer's body.

    Raises OSError if the connection fails.
    """
    answer = Http2Answer()
    codec = Http2Client(_Events(writer, answer, body_bytes_max))
    codec.start()
    stream = codec.open(answer)
    codec.send_request(stream, head, head.authority, secure)
    if body:
        codec.send_body(stream, body)
        codec.send_end(stream, [])
    while not answer.complete and not answer.problem:
        data = await reader.read(_READ_BYTES)
        if not data:
            answer.problem = "it closed the connection" if codec.is_settled() else NOT_HTTP2
            break
        codec.feed(data, 0.0)
        while codec.needs_turn:
            codec.resume()
        if codec.error is not None:
            answer.problem = codec.error.words if codec.is_settled() else NOT_HTTP2
    codec.retire()
    return answer


class _Events(ClientEvents):
    """Stores what the connection receives in `answer`."""

    def __init__(self, writer: asyncio.StreamWriter, answer: Http2Answer, body_bytes_max: int) -> None:
        self._writer = writer
        self._answer = answer
        self._body_bytes_max = body_bytes_max

    def write(self, data: bytes) -> None:
        self._writer.write(data)

    def wants_flush(self) -> None:
        pass  # the request is sent whole, including its end

    def response_interim(self, stream: Stream, head: ResponseHead) -> None:
        pass

    def response_head(self, stream: Stream, head: ResponseHead) -> None:
        self._answer.head = head

    def stream_body(self, stream: Stream, data: bytes) -> None:
        self._answer.body = (self._answer.body + data)[: self._body_bytes_max]

    def stream_ended(self, stream: Stream, trailers: Headers) -> None:
        self._answer.trailers = trailers
        self._answer.complete = True

    def stream_failed(self, stream: Stream, error: WireError) -> None:
        self._answer.problem = error.detail

    def stream_reset(self, stream: Stream, code: int, words: str) -> None:
        self._answer.problem = words or f"it reset the stream ({code_name(code)})"

    def stream_closed(self, stream: Stream) -> None:
        pass

    def stream_full(self, stream: Stream) -> None:
        pass

    def stream_drained(self, stream: Stream) -> None:
        pass

    def peer_goes_away(self, last_id: int, code: int) -> None:
        if not self._answer.complete and last_id == 0:
            self._answer.problem = f"it sent GOAWAY ({code_name(code)})"

    def peer_settings(self) -> None:
        pass

    def ping_answered(self, payload: bytes) -> None:
        pass
