"""Processes that were started: their pipes, and their end, however that is noticed."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine

import pytest
import uvloop

from activator.control_plane.sources.process.spawned import Spawned, spawn, spawn_silent

VARIABLES = dict(os.environ)
Run = Callable[[Coroutine[None, None, None]], None]


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """The loop of the tests, and that of the program."""
    found: Run = request.param
    return found


def test_both_streams_and_the_exit_code(run: Run) -> None:
    async def scenario() -> None:
        spawned = await spawn(["sh", "-c", "echo one; echo two >&2; exit 3"], VARIABLES, "/", None)
        said = {pipe.name: await asyncio.wait_for(pipe.reader.read(), 10.0) for pipe in spawned.pipes}
        assert said == {"stdout": b"one\n", "stderr": b"two\n"}
        assert [await spawned.wait(), await spawned.wait(), spawned.returncode] == [3, 3, 3]
        spawned.close()

    run(scenario())


def test_a_signal_is_a_negative_code(run: Run) -> None:
    async def scenario() -> None:
        spawned = spawn_silent(["sleep", "1000"], VARIABLES, None)
        assert os.getsid(spawned.pid) == spawned.pid
        os.killpg(spawned.pid, 9)
        assert await asyncio.wait_for(spawned.wait(), 10.0) == -9

    run(scenario())


def test_without_a_descriptor_of_the_process_a_thread_waits(run: Run) -> None:
    def refused(pid: int) -> int:
        raise OSError(errno.ENOSYS, "no such call")

    process = subprocess.Popen([sys.executable, "-I", "-S", "-c", "input()"], stdin=subprocess.PIPE)

    async def scenario() -> None:
        spawned = Spawned(process, watch=refused)
        assert spawned.returncode is None
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.close()
        assert await asyncio.wait_for(spawned.wait(), 10.0) == 0

    run(scenario())


def test_what_cannot_be_started_leaves_no_descriptor(run: Run) -> None:
    async def scenario() -> None:
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(20):
            with pytest.raises(FileNotFoundError):
                await spawn(["./no-such-program"], VARIABLES, "/", None)
        await asyncio.sleep(0)  # a transport closes in the next turn
        assert len(os.listdir("/proc/self/fd")) <= before + 4

    run(scenario())


def test_a_descendant_that_keeps_the_pipe_keeps_no_descriptor_of_ours(run: Run) -> None:
    async def scenario() -> None:
        first = await spawn(["true"], VARIABLES, None, None)
        assert await first.wait() == 0
        first.close()
        await asyncio.sleep(0)  # the loop has its own descriptors by now
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(10):
            spawned = await spawn(["sh", "-c", "sleep 1000 &"], VARIABLES, None, None)
            assert await asyncio.wait_for(spawned.wait(), 10.0) == 0
            spawned.close()
            os.killpg(spawned.pid, 9)
        await asyncio.sleep(0)
        assert len(os.listdir("/proc/self/fd")) <= before

    run(scenario())
