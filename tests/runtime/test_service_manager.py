"""What systemd passes and what it is told."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from pathlib import Path

import pytest

from activator.runtime.service_manager import FINISH_S, UNSENT_MAX, ServiceManager


@pytest.mark.parametrize("kind", ["path", "abstract"])
def test_what_it_is_told(tmp_path: Path, kind: str) -> None:
    name = str(tmp_path / "notify") if kind == "path" else f"@activator-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind("\0" + name[1:] if kind == "abstract" else name)
        listener.settimeout(5.0)
        environ = {"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "30000000", "OTHER": "1"}
        manager = ServiceManager(environ, 7)
        assert environ == {"OTHER": "1"}
        assert manager.watchdog_s == 30.0
        manager.ready("serving on a")
        manager.reloading(5_000)
        manager.alive()
        manager.stopping(1.5)
        told = [listener.recv(4096).decode() for _ in range(4)]
    assert told == [
        "READY=1\nSTATUS=serving on a",
        "RELOADING=1\nMONOTONIC_USEC=5",
        "WATCHDOG=1",
        "STOPPING=1\nSTATUS=draining\nEXTEND_TIMEOUT_USEC=1500000",
    ]


def test_one_that_does_not_listen_is_told_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    manager = ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "nobody")}, 7)
    for _ in range(3):
        manager.alive()
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_nobody_is_told_without_an_address(caplog: pytest.LogCaptureFixture) -> None:
    manager = ServiceManager({"LISTEN_PID": "8", "LISTEN_FDS": "1", "WATCHDOG_USEC": "1", "WATCHDOG_PID": "8"}, 7)
    manager.ready("")
    assert (manager.sockets, manager.watchdog_s, caplog.records) == ([], 0.0, [])


def test_what_it_has_no_room_for_is_told_later_in_order(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The queue of a datagram socket is short, and systemd does not read it while it reloads."""
    name = str(tmp_path / "notify")
    manager = ServiceManager({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "30000000"}, 7)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(name)
        listener.setblocking(False)
        sent = 0
        while not caplog.records:
            manager.ready(str(sent))
            sent += 1
        manager.alive()
        for process in range(UNSENT_MAX - 1):
            manager.main_is(process)
        assert len(caplog.records) == 1
        told: list[str] = []
        while len(told) < sent + UNSENT_MAX - 1:
            told.append(listener.recv(4096).decode())
            manager.flush()
        manager.alive()
        told.append(listener.recv(4096).decode())
    expected = [f"READY=1\nSTATUS={number}" for number in range(sent)]
    assert told == [*expected, *(f"MAINPID={process}" for process in range(UNSENT_MAX - 1)), "WATCHDOG=1"]


def test_the_newest_wait_for_it(tmp_path: Path) -> None:
    name = str(tmp_path / "notify")
    manager = ServiceManager({"NOTIFY_SOCKET": name}, 7)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(name)
        listener.setblocking(False)
        for process in range(5000):
            manager.main_is(process)
        told = []
        with contextlib.suppress(BlockingIOError):
            while True:
                told.append(listener.recv(4096).decode())
                manager.flush()
    assert told[-UNSENT_MAX:] == [f"MAINPID={process}" for process in range(5000 - UNSENT_MAX, 5000)]
    assert len(told) < 1000


def test_the_end_waits_until_all_is_told(tmp_path: Path) -> None:
    name = str(tmp_path / "notify")
    manager = ServiceManager({"NOTIFY_SOCKET": name}, 7)
    told: list[str] = []

    async def scenario(listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        ending = asyncio.ensure_future(manager.finish())
        while not ending.done():
            with contextlib.suppress(BlockingIOError):
                told.append(listener.recv(4096).decode())
            await asyncio.sleep(0.001)
        begun_s = loop.time()
        await manager.finish()
        assert loop.time() - begun_s < FINISH_S, "nothing is left to wait for"

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(name)
        listener.setblocking(False)
        for _ in range(2000):
            manager.ready("")
        manager.main_is(8)
        asyncio.run(scenario(listener))
        with contextlib.suppress(BlockingIOError):
            while True:
                told.append(listener.recv(4096).decode())
    assert told[-1] == "MAINPID=8"


def test_the_end_waits_for_some_time_only(tmp_path: Path) -> None:
    name = str(tmp_path / "notify")
    manager = ServiceManager({"NOTIFY_SOCKET": name}, 7)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(name)
        for _ in range(2000):
            manager.ready("")
        asyncio.run(asyncio.wait_for(manager.finish(), FINISH_S + 10.0))
