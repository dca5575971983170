"""That processes of this machine have ended, by real processes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field

import pytest

from activator.members.handshake import Process
from activator.members.proof import EndOfProcesses, started_at, this_process


@dataclass
class Sleepers:
    """Processes that wait to be killed."""

    running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self) -> Process:
        one = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        self.running.append(one)
        return Process(this_process().machine, one.pid, started_at(one.pid))

    def kill(self, index: int) -> None:
        self.running[index].kill()
        self.running[index].wait(10.0)


@pytest.fixture
def sleepers() -> object:
    made = Sleepers()
    yield made
    for index in range(len(made.running)):
        made.kill(index)


async def ends_within(ended: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await ended.wait()
    except TimeoutError:
        return False
    return True


def test_all_must_have_ended(sleepers: Sleepers) -> None:
    async def story() -> None:
        ended = asyncio.Event()
        processes = [sleepers.start(), sleepers.start()]
        EndOfProcesses(processes, None, ended.set)
        sleepers.kill(0)
        assert not await ends_within(ended, 0.2)
        os.kill(processes[1].process, signal.SIGSTOP)  # one that stands still has not ended
        assert not await ends_within(ended, 0.2)
        sleepers.kill(1)
        assert await ends_within(ended, 5.0)

    asyncio.run(story())


def test_a_process_that_ended_before_is_known_at_once_even_if_its_number_is_used_again(sleepers: Sleepers) -> None:
    async def story() -> None:
        gone = sleepers.start()
        sleepers.kill(0)
        reused = sleepers.start()
        for process in (gone, Process(gone.machine, reused.process, reused.started - 1)):
            ended = asyncio.Event()
            EndOfProcesses([process], None, ended.set)
            assert not ended.is_set(), "not within the call"
            assert await ends_within(ended, 5.0)

    asyncio.run(story())


def test_who_does_not_look_any_more_hears_nothing_and_keeps_no_descriptor(sleepers: Sleepers) -> None:
    async def story() -> None:
        before = len(os.listdir("/proc/self/fd"))
        ended = asyncio.Event()
        watch = EndOfProcesses([sleepers.start()], None, ended.set)
        watch.close()
        sleepers.kill(0)
        assert not await ends_within(ended, 0.2)
        assert len(os.listdir("/proc/self/fd")) == before

    asyncio.run(story())


def test_this_process_is_itself() -> None:
    one = this_process()
    assert one == this_process() and one.process == os.getpid() and one.machine and one.started > 0


def test_of_a_process_whose_start_is_not_known_nothing_is_said(sleepers: Sleepers) -> None:
    async def story() -> None:
        ended: list[bool] = []
        one = sleepers.start()
        unknown = Process(one.machine, one.process, 0)
        watch = EndOfProcesses([unknown], None, lambda: ended.append(True))
        assert not watch.is_watching
        await asyncio.sleep(0.05)
        assert ended == []

    asyncio.run(story())


def test_it_is_known_which_of_them_have_ended(sleepers: Sleepers) -> None:
    async def story() -> None:
        one, other = sleepers.start(), sleepers.start()
        watch = EndOfProcesses([one, other], None, lambda: None)
        sleepers.kill(0)
        async with asyncio.timeout(10.0):
            while watch.watches(one):  # noqa: ASYNC110  (of the kernel)
                await asyncio.sleep(0.001)
        assert watch.watches(other)
        watch.close()

    asyncio.run(story())
