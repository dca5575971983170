"""The admin port: its server is loaded with the first connection, in the version that the program was started with."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path

import pytest
import uvloop

from activator.admin.port import ADMIN, AdminPort
from activator.admin.server import AdminServer
from activator.runtime.sockets import bind, inherit, split_address
from activator.runtime.tasks import TaskGroupOwner, pause
from tests.admin.test_admin_health import Inside
from tests.sources import ROOT

PATIENCE_S = 10.0


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[None, None, None]], None]:
    """The loop of the tests, and that of the program."""
    found: Callable[[Coroutine[None, None, None]], None] = request.param
    return found


class Loaded:
    """The port of a test, with how often its server was made; the first `failures` attempts fail."""

    def __init__(self, failures: int = 0, takes_s: float = 0.0, at_once: bool = False) -> None:
        self.errors: list[object] = []
        self.made = 0
        self._failures = failures
        self._takes_s = takes_s
        self.tasks = TaskGroupOwner(lambda name, error: self.errors.append(error))
        self.port = AdminPort(self._make, self.tasks)
        self.port.bind("127.0.0.1:0")
        self.address = self.port.start(at_once)

    def _make(self) -> AdminServer:
        self.made += 1
        time.sleep(self._takes_s)
        if self.made <= self._failures:
            raise ImportError("a package that is being replaced")
        inside = Inside()
        inside.alive = True
        return AdminServer(inside, lambda: 0.0)

    async def ask(self) -> bytes:
        reader, writer = await asyncio.open_connection(*split_address(self.address))
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        async with asyncio.timeout(PATIENCE_S):
            found = await reader.read()
        writer.close()
        return found

    async def close(self) -> None:
        await self.port.close()
        await self.tasks.close()
        assert self.errors == []
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(split_address(self.address), timeout=1.0)


@pytest.mark.parametrize(("host", "is_same"), [("127.0.0.1", True), ("127.0.0.2", False)])
def test_the_socket_of_a_former_process_is_used_only_at_its_address(host: str, is_same: bool) -> None:
    with bind("127.0.0.1:0") as theirs:
        ours = socket.socket(fileno=os.dup(theirs.fileno()))
        inherit([(ADMIN, [ours])])
        port = AdminPort(lambda: AdminServer(Inside(), lambda: 0.0), TaskGroupOwner(lambda name, error: None))
        port.bind(f"{host}:{theirs.getsockname()[1]}")
        with port.socket as bound:
            assert (bound is ours) == is_same
            assert (ours.fileno() >= 0) == is_same, "the other one is closed"


Run = Callable[[Coroutine[None, None, None]], None]


def test_the_first_connection_loads_the_server_and_those_meanwhile_wait(run: Run) -> None:
    async def scenario() -> None:
        loaded = Loaded(takes_s=0.2)
        await pause(0.05)
        assert loaded.made == 0
        answers = await asyncio.gather(*[loaded.ask() for _ in range(20)])
        assert all(answer.startswith(b"HTTP/1.1 200") for answer in answers)
        assert (await loaded.ask()).startswith(b"HTTP/1.1 200")
        assert loaded.made == 1
        await loaded.close()

    run(scenario())


def test_it_may_be_loaded_at_once(run: Run) -> None:
    async def scenario() -> None:
        loaded = Loaded(at_once=True)
        async with asyncio.timeout(PATIENCE_S):
            while loaded.port.server is None:
                await pause(0.001)
        assert (await loaded.ask()).startswith(b"HTTP/1.1 200") and loaded.made == 1
        await loaded.close()

    run(scenario())


def test_the_loop_continues_while_the_server_is_loaded(run: Run) -> None:
    async def scenario() -> None:
        loaded = Loaded(takes_s=0.3)
        answer = asyncio.ensure_future(loaded.ask())
        turns = 0
        while not answer.done():
            turns += 1
            await pause(0.001)
        assert turns > 50
        await loaded.close()

    run(scenario())


def test_a_server_that_cannot_be_loaded_is_tried_again(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        loaded = Loaded(failures=1)
        assert (await loaded.ask()).startswith(b"HTTP/1.1 200")
        assert loaded.made == 2
        assert "the admin port cannot be served; next attempt in 1 s" in caplog.text
        await loaded.close()

    run(scenario())


async def connect_only(loaded: Loaded) -> None:
    socket.create_connection(split_address(loaded.address)).close()


async def load(loaded: Loaded) -> None:
    await loaded.ask()


async def nothing(loaded: Loaded) -> None:
    pass


@pytest.mark.parametrize("before", [nothing, connect_only, load])
@pytest.mark.parametrize("turns", [0, 1, 2, 5])
def test_it_closes_at_any_moment(run: Run, before: Callable[[Loaded], Awaitable[None]], turns: int) -> None:
    async def scenario() -> None:
        loaded = Loaded(takes_s=0.01)
        await before(loaded)
        for _ in range(turns):
            await pause(0.0)
        await loaded.close()

    run(scenario())


def test_the_server_is_that_of_the_version_that_was_started(tmp_path: Path) -> None:
    """An upgrade of the package replaces the files before the first connection, often that of `activator upgrade`."""
    shutil.copytree(ROOT / "activator", tmp_path / "activator", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    shutil.copytree(ROOT / "lb", tmp_path / "lb", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    code = """
        import sys
        import activator.admin
        from activator.runtime.kept_modules import keep
        keep(activator.admin, "activator.telemetry.metrics.sliced_response")
        assert "activator.admin.server" not in sys.modules and "aiohttp" not in sys.modules
        print("kept", flush=True)
        sys.stdin.readline()
        import activator.admin.server
        from activator.admin.snapshot import joined
        assert activator.admin.server.__file__.endswith("activator/admin/server.py") and callable(joined)
        assert activator.admin.server.__spec__.loader.get_code("activator.admin.server") is not None
        print("fine", flush=True)
    """
    environment = {**os.environ, "ACTIVATOR_COMPILE": "0", "PYTHONPATH": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=tmp_path,
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "kept\n"
        for name in ("server", "snapshot", "hosts", "last_requests", "token"):
            (tmp_path / "activator/admin" / f"{name}.py").write_text("raise RuntimeError('another version')")
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "fine\n"
