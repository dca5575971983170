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

from activator.control_plane.sources.process.spawned import ChildHandle, spawn, spawn_silent
from tests.sources import ROOT

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
        spawned = ChildHandle(process, watch=refused)
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


CLOSING = """
import asyncio, os, threading, uvloop
from activator.control_plane.sources.process.spawned import OutputPipe

lost = 0
is_over = threading.Event()

def others():
    global lost
    while not is_over.is_set():
        descriptors = [os.open(os.devnull, os.O_RDONLY) for _ in range(4)]
        for descriptor in descriptors:
            try:
                os.fstat(descriptor)
                os.close(descriptor)
            except OSError:
                lost += 1

async def main():
    for _ in range(1_000):
        pipes = [OutputPipe("output") for _ in range(20)]
        for pipe in pipes:
            await pipe.connect(None)
            os.close(pipe.writing_end)
        for pipe in pipes:
            pipe.close()
        await asyncio.sleep(0)

threads = [threading.Thread(target=others) for _ in range(2)]
for thread in threads:
    thread.start()
try:
    uvloop.run(main())
finally:
    is_over.set()
for thread in threads:
    thread.join()
assert lost == 0, f"{lost} descriptors of others were closed"
"""


def test_a_pipe_that_is_closed_closes_no_descriptor_of_a_thread() -> None:
    """In a process of its own, which the bug aborts: connections that are not its own are closed as well."""
    done = subprocess.run([sys.executable, "-c", CLOSING], cwd=ROOT, capture_output=True, timeout=60.0, check=False)
    assert done.returncode == 0, done.stderr.decode()[-2_000:]
