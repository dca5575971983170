"""How a program is put to sleep and woken: a request to it, a command beside it, or a signal to all of it.

Both happen while it has no request, and within `sleep.timeout`. What goes wrong is one line.
"""

from __future__ import annotations

import asyncio
from typing import Final

from activator.codec.http1.response import ResponseParser, ResponseSink
from activator.codec.message import Headers, ResponseHead
from activator.config.model.sleep import Sleep
from activator.control_plane.sources.process.unit import Unit
from activator.runtime.streams import authority_of, open_stream

_READ_BYTES: Final = 16 * 1024


def stops_by_signal(sleep: Sleep) -> bool:
    """Whether it is stopped where it is: it then must go on before it can react to anything."""
    return bool(sleep.signal)


async def put_to_sleep(unit: Unit, sleep: Sleep) -> str:
    """Why it does not sleep; empty: it does."""
    timeout_s = float(sleep.timeout)
    if sleep.signal:
        return await unit.signal(sleep.signal)
    if sleep.http_post:
        return await post(unit.address, sleep.http_post, timeout_s)
    return await _run(unit, sleep.command, timeout_s)


async def wake(unit: Unit, sleep: Sleep) -> str:
    """Why it does not wake; empty: it has."""
    timeout_s = float(sleep.timeout)
    if sleep.signal:
        return await unit.signal("SIGCONT")
    if isinstance(sleep.wake, str):
        return await post(unit.address, sleep.wake, timeout_s)
    return await _run(unit, sleep.wake, timeout_s)


async def post(address: str, path: str, timeout_s: float) -> str:
    """Send an empty POST; why it was not answered with 2xx; empty: it was."""
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await open_stream(address)
            head = f"POST {path} HTTP/1.1\r\nHost: {authority_of(address)}\r\n"
            writer.write(f"{head}Content-Length: 0\r\nConnection: close\r\n\r\n".encode())
            return await _answer(reader, path)
    except TimeoutError:
        return f"POST {path} was not answered within {timeout_s:g} s"
    except OSError as error:
        return f"POST {path}: {error.strerror or error}"
    finally:
        if writer is not None:
            writer.transport.abort()


class _Head(ResponseSink):
    def __init__(self) -> None:
        self.status = 0

    def interim_head(self, head: ResponseHead) -> None:
        pass

    def response_head(self, head: ResponseHead) -> None:
        self.status = head.status

    def response_body(self, data: bytes) -> None:
        pass

    def response_end(self, trailers: Headers) -> None:
        pass


async def _answer(reader: asyncio.StreamReader, path: str) -> str:
    found = _Head()
    parser = ResponseParser(found)
    parser.expect(False)
    while not found.status:
        data = await reader.read(_READ_BYTES)
        error = parser.feed(data) if data else parser.feed_eof()
        if error is not None or not data:
            return f"POST {path}: no answer of HTTP" if error is None else f"POST {path}: {error.detail or 'no answer'}"
    return "" if 200 <= found.status < 300 else f"POST {path} was answered with {found.status}"


async def _run(unit: Unit, command: list[str], timeout_s: float) -> str:
    code = await unit.run_beside(command, timeout_s)
    if code == 0:
        return ""
    if code is None:
        return f"{command[0]} did not end within {timeout_s:g} s, or could not be started"
    return f"{command[0]} ended with exit code {code}"
