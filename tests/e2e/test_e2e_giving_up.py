"""A program whose state worker fails and goes on failing: not ready, then it drains and says so by its exit code."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

import pytest
import uvloop

from activator.app import EXIT_PANICS, App, Settings
from activator.config.file import resolve
from activator.config.model.file import Config
from activator.config.model.kinds import Duration
from activator.config.model.listeners import Shutdown
from activator.config.model.revision import Revision
from activator.control_plane.sources.process.reaping import Reaping
from activator.control_plane.state.supervision import PANIC_BUDGET, WORKER
from activator.runtime.tasks import pause


async def pod(answer_now: asyncio.Event, asked: asyncio.Event) -> asyncio.Server:
    """Answers when it is told to."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            asked.set()
            await answer_now.wait()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            await writer.drain()

    return await asyncio.start_server(serve, "127.0.0.1", 0)


def test_it_drains_and_exits_with_a_code_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> tuple[int, list[str], bytes]:
        answer_now, asked = asyncio.Event(), asyncio.Event()
        server = await pod(answer_now, asked)
        revision = Revision("a", hosts=["*"], pods=[f"127.0.0.1:{server.sockets[0].getsockname()[1]}"])
        shutdown = Shutdown(panic_grace=Duration(0.05))
        config = Config(listen="127.0.0.1:0", admin="", shutdown=shutdown, revisions=[revision])
        app = App(Settings(config, resolve(config, lambda _: "random")), Reaping(None, ""))
        running = asyncio.ensure_future(app.run())
        try:
            async with asyncio.timeout(20.0):
                while not app.addresses or app.waiting_for():
                    await pause(0.001)
                host, _, port = app.addresses[0].rpartition(":")
                reader, writer = await asyncio.open_connection(host, int(port))
                writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
                await asked.wait()
                panics(app, PANIC_BUDGET + 1)
                reasons = app.waiting_for()
                assert not running.done()
                await asyncio.sleep(0.06)
                panics(app, 1)
                await app._stop.wait()
                answer_now.set()  # what was in flight is let finish
                answer = await reader.read()
                writer.close()
        finally:  # a loop with open sockets would never close, and the test would hang instead of failing
            answer_now.set()
            app.stop()
            code = await running
            server.close()
        return code, reasons, answer

    with caplog.at_level(logging.CRITICAL, "activator"):
        code, reasons, answer = uvloop.run(scenario())
    assert code == EXIT_PANICS == 4
    assert reasons == [f"the state worker has failed {PANIC_BUDGET + 1} times in a row"]
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n") and answer.endswith(b"ok")
    assert [record.getMessage() for record in caplog.records] == [
        f"the state worker has failed {PANIC_BUDGET + 2} times in a row: draining, then exit code 4"
    ]


def panics(app: Any, count: int) -> None:
    for _ in range(count):
        app.control.worker.supervision.panicked(WORKER, "as if", RuntimeError("injected"), app.now())
