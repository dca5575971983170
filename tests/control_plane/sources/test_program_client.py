"""One request to a program, over real sockets."""

from __future__ import annotations

import asyncio

import pytest

from activator.control_plane.sources.process.program_client import Reply, query_program
from activator.control_plane.sources.process.sleep import post


async def replied(
    said: bytes, *, bytes_max: int = 0, closes: bool = True, timeout_s: float = 2.0
) -> tuple[Reply, bytes]:
    """What a program that says so is understood to say, and what it was asked."""
    asked = b""
    over = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked = await reader.readuntil(b"\r\n\r\n")
        writer.write(said)
        if not closes:
            await over.wait()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        reply = await query_program(address, "GET /x HTTP/1.1\r\nA: b\r\n", timeout_s, bytes_max)
        over.set()
    return reply, asked


@pytest.mark.parametrize(
    ("said", "bytes_max", "closes", "reply"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", 10, False, Reply(200, b"ok")),
        (b"HTTP/1.1 200 OK\r\n\r\nok", 10, True, Reply(200, b"ok")),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n", 10, False, Reply(204)),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", 0, False, Reply(200)),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok", 10, True, Reply(problem="it closed the connection")),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 3000\r\n\r\n" + b"x" * 3000,
            2,
            False,
            Reply(problem="the answer is larger than 0 KiB"),
        ),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 3000, 2048, False, Reply(problem="the answer is larger than 2 KiB")),
    ],
)
def test_what_is_understood(said: bytes, bytes_max: int, closes: bool, reply: Reply) -> None:
    found, asked = asyncio.run(replied(said, bytes_max=bytes_max, closes=closes))
    if reply.problem == "it closed the connection":
        assert found.problem
    else:
        assert found == reply
    lines = asked.split(b"\r\n")
    assert lines[:2] == [b"GET /x HTTP/1.1", b"A: b"] and lines[3] == b"Connection: close"


def test_what_does_not_come_is_no_reply() -> None:
    silent, _ = asyncio.run(replied(b"HTTP/1.1 200", closes=False, timeout_s=0.05))
    assert silent == Reply(problem="no answer within 0.05 s")
    garbage, _ = asyncio.run(replied(b"SSH-2.0\r\n"))
    assert garbage.problem and not garbage.status
    with_nobody = asyncio.run(query_program("127.0.0.1:1", "GET / HTTP/1.1\r\n", 1.0))
    assert with_nobody.problem
    assert asyncio.run(post("127.0.0.1:1", "/sleep", 1.0)).startswith("POST /sleep: ")
