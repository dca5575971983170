"""Streams to pods that are opened over TLS: their errors, and cancellation at every moment of the handshake."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
import threading
import time
from collections.abc import Iterator

import pytest
import trustme
import uvloop

from activator.runtime.streams import open_stream

CANCELLED_OPENINGS = 400


@pytest.fixture
def port() -> Iterator[int]:
    """Return the port of a TLS server in a thread of its own; no client of these tests trusts its certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("localhost").configure_cert(context)
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                bare, _ = listener.accept()
            except OSError:
                return
            with bare:
                try:
                    context.wrap_socket(bare, server_side=True).close()
                except OSError:
                    continue  # the client refused the certificate, or was cancelled

    thread = threading.Thread(target=serve)
    thread.start()
    yield listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(10.0)
    assert not thread.is_alive()


def distrusting() -> ssl.SSLContext:
    context = ssl.create_default_context()
    trustme.CA().configure_trust(context)
    return context


def test_a_certificate_that_is_not_trusted_is_an_error_of_tls(port: int) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="unable to get local issuer"):
        uvloop.run(open_stream(f"127.0.0.1:{port}", distrusting(), "localhost"))


def test_a_connection_that_is_reset_is_an_oserror() -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def reset() -> None:
        bare, _ = listener.accept()
        bare.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        bare.close()

    for _ in range(20):
        thread = threading.Thread(target=reset)
        thread.start()
        with pytest.raises(ConnectionResetError):
            uvloop.run(open_stream(f"127.0.0.1:{listener.getsockname()[1]}", distrusting(), "localhost"))
        thread.join(10.0)
    listener.close()


def test_an_opening_that_is_cancelled_leaves_no_error_behind(port: int) -> None:
    """The process is late in each turn, so that the connection and the handshake end in the same one."""
    errors: list[object] = []

    async def open_and_cancel() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: errors.append(context.get("exception") or context["message"]))
        context = distrusting()
        for number in range(CANCELLED_OPENINGS):
            opening = loop.create_task(open_stream(f"127.0.0.1:{port}", context, "localhost"))
            for turn in range(number % 8):
                await asyncio.sleep(0)
                time.sleep(0.001 * ((number >> (3 + turn)) & 1))  # noqa: ASYNC251 - the process is late
            opening.cancel()
            with pytest.raises((asyncio.CancelledError, ssl.SSLCertVerificationError)):
                await opening
            del opening
        gc.collect()
        await asyncio.sleep(0)

    uvloop.run(open_and_cancel())
    assert not errors
