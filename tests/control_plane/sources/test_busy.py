"""Programs that say that they work without a request: what is understood, and what follows."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Callable
from typing import Any, Self

import pytest

from activator.config.model.programs import Process
from activator.config.model.revision import Revision
from activator.config.model.waiting import Busy
from activator.control_plane.sources.process.busy import (
    BUSY_BYTES_MAX,
    SILENT_MAX,
    BusyAnswer,
    BusyWatch,
    ask,
    parse_answer,
)
from activator.control_plane.sources.process.fleet import Fleet
from activator.control_plane.sources.process.program_log import ProgramLog, Terminal
from activator.messages import Load
from activator.runtime.tasks import TaskGroupOwner, pause
from tests.control_plane.sources.unstarted import unstarted
from tests.manual_clock import ManualClock

KEY = "default/app"
WALL_S = 1_800_000_000.0


@pytest.mark.parametrize(
    ("body", "field", "expected"),
    [
        ("busy", "", BusyAnswer(True)),
        (" IDLE\n", "", BusyAnswer()),
        ("", "", BusyAnswer()),
        ('{"busy": true}', "", BusyAnswer(True)),
        ('{"busy": false}', "", BusyAnswer()),
        ('{"connections": 2, "kernels": 0}', "connections", BusyAnswer(True)),
        ('{"connections": 0}', "connections", BusyAnswer()),
        ('{"queue_running": [[1]], "queue_pending": []}', "queue_running", BusyAnswer(True)),  # ComfyUI
        ('{"queue_running": []}', "queue_running", BusyAnswer()),
        (
            '[{"is_processing": false}, {"is_processing": true}]',
            "is_processing",
            BusyAnswer(True),
        ),  # llama.cpp
        ('[{"execution_state": "idle"}, {"execution_state": "busy"}]', "execution_state", BusyAnswer(True)),  # Jupyter
        ("[]", "execution_state", BusyAnswer()),
        ('{"last_activity": "2027-01-15T08:00:00Z"}', "last_activity", BusyAnswer(active_s=WALL_S)),
        ('{"last_activity": "2027-01-15T08:00:00"}', "last_activity", BusyAnswer(active_s=WALL_S)),
        ('{"a": {"b": [{"c": 1}]}}', "a.b.c", BusyAnswer(True)),
        ('{"busy": null}', "", BusyAnswer()),
    ],
)
def test_what_is_understood(body: str, field: str, expected: BusyAnswer) -> None:
    assert parse_answer(body.encode(), field) == expected


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"perhaps", ""),
        (b'{"idle": true}', ""),
        (b'{"busy": "rather"}', ""),
        (b"\xff\xfe", ""),
        (b'{"a": 1}', "a.b"),
        (b"[" * 50_000, ""),
        (b'"busy"', "x"),
    ],
)
def test_what_is_not(body: bytes, field: str) -> None:
    assert parse_answer(body, field).problem


class Server:
    """Answers each query with what `answer()` gives, and leaves nothing open."""

    def __init__(self, answer: Callable[[], bytes]) -> None:
        self.answer = answer
        self.asked = 0
        self.open = 0
        self._ended = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self.address = f"{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        while self.open:
            self._ended.clear()
            await self._ended.wait()
        await asyncio.sleep(0)  # its transports are closed a turn later

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            await reader.readuntil(b"\r\n\r\n")
            self.asked += 1
            writer.write(self.answer())
            await writer.drain()
        except ConnectionError:
            pass  # whoever asked has heard enough
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
            self.open -= 1
            self._ended.set()


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbusy", BusyAnswer(True)),
        (b"HTTP/1.1 200 OK\r\n\r\nbusy", BusyAnswer(True)),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbusy\r\n0\r\n\r\n", BusyAnswer(True)),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", BusyAnswer(problem="the answer is 404")),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nbusy", None),
        (b"hello\r\n\r\n", None),
        (b"", None),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * (BUSY_BYTES_MAX + 1), None),
    ],
)
def test_one_query_over_a_socket(answer: bytes, expected: BusyAnswer | None) -> None:
    async def run() -> BusyAnswer:
        async with Server(lambda: answer) as server:
            return await ask(server.address, "/busy", "", 5.0)

    said = asyncio.run(run())
    if expected is None:
        assert said.problem and not said.busy
    else:
        assert said == expected


def test_a_program_that_does_not_listen_or_does_not_answer() -> None:
    assert asyncio.run(ask("127.0.0.1:1", "/busy", "", 5.0)).problem

    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        host, port = silent.getsockname()
        assert "no answer within" in asyncio.run(ask(f"{host}:{port}", "/busy", "", 0.05)).problem


class Asked:
    """A revision whose program answers what `says` has."""

    def __init__(self, tasks: TaskGroupOwner, address: str) -> None:
        self.clock = ManualClock()
        self.has_requests = False
        self.changes: list[int] = []
        self.touches: list[float] = []
        revision = Revision(name="app", process=Process(command=["x"]))
        self.fleet = Fleet(KEY, revision, ProgramLog(Terminal(), self.clock.now))
        self.process = unstarted(KEY, revision)
        self.process.unit.address = address
        self.process.ready = True
        self.fleet.processes = {self.process.identity: self.process}
        self.tasks = tasks
        self.watch = BusyWatch(
            tasks,
            {KEY: self.fleet}.get,
            lambda key: self.has_requests,
            lambda key, count: self.changes.append(count),
            lambda key, ago_s: self.touches.append(ago_s),
            self.clock.now,
            lambda: WALL_S,
        )
        self.watch.set_revision(KEY, Busy(http_get="/busy"))

    def is_busy(self) -> bool:
        """A method, since mypy takes what was asserted of an attribute to stay so."""
        return self.process.busy

    async def requested(self, server: Server) -> None:
        """From a request on it counts as busy, until it was asked after the last one, at once."""
        self.changes.clear()
        self.watch.load(Load(KEY, 1, 0, 1))
        self.watch.load(Load(KEY, 1, 0, 1))
        assert self.changes == [1]
        self.watch.load(Load(KEY, 0, 0, 1))
        before = server.asked
        assert await self.round(0.1) == [0] and server.asked == before + 1
        self.watch.load(Load(KEY, 0, 0, 2))  # between two reports
        assert self.changes == [0, 1]
        assert await self.round(0.1) == [0]
        self.watch.load(Load(KEY, 0, 0, 2))
        assert await self.round(0.1) == [], "nothing has happened since"

    async def round(self, seconds: float = 10.0) -> list[int]:
        """One interval, and what was told in it."""
        self.changes.clear()
        self.clock.pass_time(seconds)
        self.watch.tick()
        while any(one.is_asking for one in self.watch._watched.values()):
            await pause(0.001)
        return self.changes


def test_a_revision_is_asked_while_it_has_no_request(caplog: pytest.LogCaptureFixture) -> None:
    says: dict[str, Any] = {"busy": True}

    def answer() -> bytes:
        body = json.dumps(says).encode()
        return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)

    async def run() -> None:
        failures: list[object] = []
        tasks = TaskGroupOwner(lambda name, error: failures.append((name, error)))
        async with Server(answer) as server:
            asked = Asked(tasks, server.address)
            assert await asked.round() == [1] and asked.is_busy()
            assert await asked.round() == [1]
            asked.has_requests = True
            before = server.asked
            assert await asked.round() == [] and server.asked == before, "requests are activity anyway"
            asked.has_requests = False
            says["busy"] = "2027-01-15T07:59:30Z"
            assert await asked.round() == [0] and asked.touches == [30.0]
            assert await asked.round() == []
            says["busy"] = True
            assert await asked.round() == [1]
            says["busy"] = "rather"
            for _ in range(SILENT_MAX - 1):
                assert await asked.round() == [1], "as it was"
            assert await asked.round() == [0] and not asked.is_busy()
            assert await asked.round() == []
            says["busy"] = True
            assert await asked.round() == [1]
            asked.process.ready = False
            assert await asked.round() == [0]
            asked.process.ready = True
            says["busy"] = False
            assert await asked.round() == []
            await asked.requested(server)
            asked.process.ready = False
            assert await asked.round() == []
            asked.process.ready = True
            says["busy"] = True
            assert await asked.round() == [1]
            asked.changes.clear()
            asked.watch.set_revision(KEY, None)
            assert asked.changes == [0]
            assert await asked.round() == []
        await tasks.close()
        assert failures == []

    asyncio.run(run())
    assert caplog.text.count("the busy check failed 3 times, so the program counts as idle") == 1
