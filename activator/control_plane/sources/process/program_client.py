"""One HTTP/1.1 request to a local program on a new connection; failures are returned, not raised.

The readiness probes have a client of their own (`probes/probe.py`): they are many, and read no body.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from activator.codec.http1.response import ResponseParser, ResponseSink
from activator.codec.message import Headers, ResponseHead
from activator.runtime.streams import authority_of, open_stream
from activator.runtime.units import KIB

_READ_BYTES: Final = 16 * KIB


class Reply(NamedTuple):
    """A response, whole or its head alone. `problem`: why there is none."""

    status: int = 0
    body: bytes = b""
    problem: str = ""


async def query_program(
    address: str, head: str, timeout_s: float, body_bytes_max: int = 0, body: bytes = b"", discards: bool = False
) -> Reply:
    """Send a request. `head`: request line and fields without `Host` and the end.

    Without `body_bytes_max` no body is read or, if `discards`, the body is read to its end and discarded.
    """
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await open_stream(address)
            writer.write(f"{head}Host: {authority_of(address)}\r\nConnection: close\r\n\r\n".encode() + body)
            return await _read_reply(reader, body_bytes_max, discards)
    except TimeoutError:
        return Reply(problem=f"no answer within {timeout_s:g} s")
    except OSError as error:
        return Reply(problem=error.strerror or str(error))
    finally:
        if writer is not None:
            writer.transport.abort()


class _Answer(ResponseSink):
    """The received part of a response."""

    def __init__(self, discards: bool) -> None:
        self._discards = discards
        self.status = 0
        self.body = bytearray()
        self.is_whole = False

    def interim_head(self, head: ResponseHead) -> None:
        pass

    def response_head(self, head: ResponseHead) -> None:
        self.status = head.status

    def response_body(self, data: bytes) -> None:
        if not self._discards:
            self.body += data

    def response_end(self, trailers: Headers) -> None:
        self.is_whole = True


async def _read_reply(reader: asyncio.StreamReader, body_bytes_max: int, discards: bool) -> Reply:
    answer = _Answer(discards)
    parser = ResponseParser(answer)
    parser.expect(False)
    while not answer.is_whole:
        data = await reader.read(_READ_BYTES)
        error = parser.feed(data) if data else parser.feed_eof()
        if answer.status and not body_bytes_max and not discards:
            break
        if error is not None:
            return Reply(problem=error.detail or "no valid HTTP response")
        if len(answer.body) > body_bytes_max:
            return Reply(problem=f"the answer is larger than {body_bytes_max // KIB} KiB")
        if not data and not answer.is_whole:
            return Reply(problem="it closed the connection")
    return Reply(answer.status, bytes(answer.body))
