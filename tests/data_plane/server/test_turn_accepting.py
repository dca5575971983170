"""A listening socket that several loops accept from: each takes one connection in a turn, and none is lost."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import uvloop

from activator.data_plane.server.turn_accepting import ACCEPT_RETRY_S, TurnAccepting
from activator.runtime.tasks import TaskGroupOwner


class Counted(asyncio.Protocol):
    """Says hello, and counts."""

    made = 0

    def connection_made(self, transport: Any) -> None:
        type(self).made += 1
        transport.write(b"hello")
        transport.close()


class Broken(socket.socket):
    """Has no descriptors left, the first time."""

    failures = 1

    def accept(self) -> Any:
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


async def visit(path: str, listening: list[socket.socket], clients: int) -> list[int]:
    """How many each of those that share the socket has had."""
    loop = asyncio.get_running_loop()
    tasks = TaskGroupOwner(lambda name, error: pytest.fail(f"{name}: {error!r}"))
    kinds: list[type[Counted]] = [type("OfOne", (Counted,), {"made": 0}) for _ in listening]
    shared = [TurnAccepting(loop, sock, kind, tasks.start) for sock, kind in zip(listening, kinds)]
    with ExitStack() as stack:
        waiting = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(clients)]
        for sock in waiting:
            sock.connect(path)
            sock.setblocking(False)
        for sock in waiting:
            assert await loop.sock_recv(sock, 10) == b"hello"
    for one in shared:
        one.close()
        one.close()
    await tasks.close()
    return [kind.made for kind in kinds]


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_burst_is_spread(run: Callable[..., list[int]], tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(100)
        made = run(visit(path, [listener.dup() for _ in range(3)], 30))
    assert sum(made) == 30 and min(made) >= 5, made


def test_without_descriptors_it_tries_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = str(tmp_path / "s")
    broken = Broken(socket.AF_UNIX)
    broken.bind(path)
    broken.listen(10)
    assert asyncio.run(visit(path, [broken], 3)) == [3]
    said = f"accept failed: Too many open files; next attempt in {ACCEPT_RETRY_S:g} s"
    assert [record.getMessage() for record in caplog.records] == [said]
