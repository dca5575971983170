"""The memory of programs: whose processes are whose, and what a GPU's driver reports."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from activator.config.model.groups import GPU_MEMORY, MEMORY
from activator.config.model.kinds import Size
from activator.config.model.programs import Process
from activator.config.model.revision import Revision
from activator.control_plane.sources.process.fleet import LocalProcess
from activator.control_plane.sources.process.fleets import Fleets
from activator.control_plane.sources.process.memory_use import (
    SAMPLE_MIN_S,
    SAMPLE_S,
    Gpus,
    MemoryWatch,
    descendants,
    measured,
    resident_bytes,
    trees_of,
)
from activator.control_plane.sources.process.supervisor import ProcessSupervisor
from activator.control_plane.state.supervision import Supervision
from activator.runtime.tasks import TaskGroupOwner, pause
from tests.control_plane.sources.program_reports import ProgramReports
from tests.control_plane.sources.test_process_orderings import KEY, ToldUnits

MIB = 1 << 20
ALLOCATES = "import sys; data = b'x' * int(sys.argv[1]); print('ready', flush=True); sys.stdin.read()"


@contextmanager
def program(*words: str) -> Iterator[subprocess.Popen[str]]:
    """A program that leads a process group, from its first line of output on."""
    made = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert made.stdin is not None and made.stdout is not None
    try:
        assert made.stdout.readline() == "ready\n"
        yield made
    finally:
        os.killpg(made.pid, 9)
        made.wait()
        made.stdin.close()
        made.stdout.close()


def test_all_descendants_count_and_each_for_its_own_program() -> None:
    script = """{ sh -c '"$@"; true' sh "$@" <&3 & } 3<&0; wait"""
    with (
        program("sh", "-c", script, "sh", sys.executable, "-c", ALLOCATES, str(50 * MIB)) as parent,
        program(sys.executable, "-c", ALLOCATES, str(20 * MIB)) as single,
    ):
        found = measured({"parent": parent.pid, "single": single.pid}, None)
        assert 50 * MIB < found["parent"][MEMORY] < 90 * MIB
        assert 20 * MIB < found["single"][MEMORY] < 50 * MIB
        trees = descendants([parent.pid, single.pid])
        assert len(trees[parent.pid]) == 3 and trees[single.pid] == [single.pid]


def test_a_program_below_another_one_counts_once() -> None:
    with program("sh", "-c", "sh -c 'echo ready; read x; true'; true") as outer:
        (inner,) = [process for process in descendants([outer.pid])[outer.pid] if process != outer.pid]
        assert descendants([outer.pid, inner]) == {outer.pid: [outer.pid], inner: [inner]}


def test_a_daemon_of_its_process_group_counts() -> None:
    """Its parent is no process of the program any more."""
    with program("sh", "-c", "(sleep 50 & echo ready); read x; true") as parent:
        until_s = time.monotonic() + 20.0
        while len(descendants([parent.pid])[parent.pid]) != 2:  # the shell in between may still be ending
            assert time.monotonic() < until_s


def test_what_has_ended_uses_nothing() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert resident_bytes(ended.pid) == 0
    assert measured({"ended": ended.pid}, None) == {}


class NvmlError(Exception):
    """As the package's."""


class Used:
    def __init__(self, pid: int, used: int | None) -> None:
        self.pid = pid
        self.usedGpuMemory = used


def nvml(gpus: list[list[Used]], **replaced: Any) -> types.ModuleType:
    """The functions of the package nvidia-ml-py that are used, with its names and types."""
    made = types.ModuleType("pynvml")
    functions: dict[str, Any] = {
        "NVMLError": NvmlError,
        "nvmlInit": lambda: None,
        "nvmlDeviceGetCount": lambda: len(gpus),
        "nvmlDeviceGetHandleByIndex": lambda index: gpus[index],
        "nvmlDeviceGetComputeRunningProcesses": lambda handle: handle,
    }
    for name, function in {**functions, **replaced}.items():
        setattr(made, name, function)
    return made


def fails(*_: object) -> None:
    raise NvmlError("Driver Not Loaded")


def test_the_memory_on_all_gpus_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    own = os.getpid()
    monkeypatch.setitem(
        sys.modules, "pynvml", nvml([[Used(own, 3 * MIB), Used(1, 7)], [Used(own, 4 * MIB), Used(2, None)]])
    )
    gpus = Gpus()
    assert gpus.bytes_by_process() == {own: 7 * MIB, 1: 7, 2: 0}
    assert measured({"own": own}, gpus.latest())["own"][GPU_MEMORY] >= 7 * MIB


def test_without_a_driver_or_after_an_error_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml([], nvmlInit=fails))
    assert Gpus().bytes_by_process() is None
    monkeypatch.setitem(sys.modules, "pynvml", nvml([[]], nvmlDeviceGetComputeRunningProcesses=fails))
    gpus = Gpus()
    assert gpus.bytes_by_process() is None
    monkeypatch.setitem(sys.modules, "pynvml", nvml([[]]))
    assert gpus.bytes_by_process() is None, "it is not asked again"
    assert GPU_MEMORY not in measured({"own": os.getpid()}, gpus.latest())["own"]


def test_a_driver_that_hangs_costs_nothing_but_its_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on = threading.Event()
    asked: list[object] = []

    def hangs(handle: object) -> object:
        asked.append(handle)
        goes_on.wait(20.0)
        return handle

    monkeypatch.setitem(sys.modules, "pynvml", nvml([[Used(7, 5)]], nvmlDeviceGetComputeRunningProcesses=hangs))
    gpus = Gpus()
    began_s = time.monotonic()
    assert [gpus.latest() for _ in range(3)] == [None] * 3 and len(asked) == 1
    assert time.monotonic() - began_s < 10.0
    goes_on.set()
    while gpus.latest() is None:
        assert time.monotonic() - began_s < 20.0
    assert gpus.latest() == {7: 5}


def test_a_long_chain_of_processes_is_walked_once() -> None:
    """Each is the child of the one before: with a walk for each, this would take minutes."""
    parents = {number: number - 1 for number in range(50_000, 9, -1)}
    began_s = time.process_time()
    assert {leader: len(tree) for leader, tree in trees_of([20, 60], parents, parents).items()} == {20: 40, 60: 49_941}
    assert time.process_time() - began_s < 10.0


def test_numbers_that_are_used_again_end_the_walk() -> None:
    assert trees_of([3], {1: 2, 2: 1, 3: 1, 4: 3}, {1: 1, 2: 3, 3: 3, 4: 4}) == {3: [1, 2, 3, 4]}


def test_without_the_package_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert Gpus().bytes_by_process() is None


# --- the watch over all programs ---


class Watched(ProgramReports):
    """A supervisor of units whose first processes the test has started, and the watch over their memory."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1_000.0
        self.errors: list[object] = []
        self.changes = 0
        self.units = ToldUnits()
        self.tasks = TaskGroupOwner(lambda name, error: self.errors.append(error))
        self.supervisor = ProcessSupervisor(
            *(self.tasks, lambda change: None, time.monotonic, self.units, Supervision().panicked, self)
        )
        self.watch = MemoryWatch(self.tasks, self.supervisor.fleets, lambda: self.now_s, self._changed)

    def _changed(self) -> None:
        self.changes += 1

    def programs_changed(self, key: str, group: str) -> None:
        self.watch.programs_changed(key)

    async def run(self, revision: Revision, *leaders: int) -> None:
        """Run the revision with these first processes; return when all copies are ready."""
        before = len(self.units.made)
        self.supervisor.set_revision(KEY, revision)
        self.supervisor.grant(KEY, len(leaders))
        while len(self.units.made) < before + len(leaders):
            await pause(0.001)
        for unit, leader in zip(self.units.made[before:], leaders, strict=True):
            unit.leader = leader
            unit.is_ready.set()
        while self.supervisor.fleets.of(KEY) and not all(one.ready for one in self.supervisor.fleets.of(KEY)):
            await pause(0.001)

    async def unload(self) -> None:
        self.supervisor.grant(KEY, 0)
        for one in self.supervisor.fleets.of(KEY):
            one.drained.set()
        while self.supervisor.fleets.of(KEY):
            await pause(0.001)

    async def measure(self, seconds: float = SAMPLE_S) -> None:
        """Tick after so many seconds, and once more when the walk over /proc is done."""
        self.now_s += seconds
        self.watch.tick()
        await pause(0.0)
        while self.watch.is_measuring:
            await pause(0.001)
        self.watch.tick()

    async def close(self) -> None:
        await self.supervisor.close()
        await self.tasks.close()
        assert self.errors == []


def app(*command: str, **needs: int) -> Revision:
    return Revision(
        "app",
        process=Process(list(command) or ["x"], max_scale=2),
        needs={name: Size(amount) for name, amount in needs.items()},
    )


def test_the_peak_of_a_copy_counts_once_its_revision_is_unloaded() -> None:
    async def scenario() -> None:
        watched = Watched()
        with (
            program(sys.executable, "-c", ALLOCATES, str(60 * MIB)) as large,
            program(sys.executable, "-c", ALLOCATES, str(10 * MIB)) as small,
        ):
            await watched.run(app(), large.pid, small.pid)
            await watched.measure()
            both = watched.watch.use_of(KEY)[MEMORY]
            assert both > 70 * MIB
            assert watched.watch.counted() == {} and watched.changes == 0, "running programs may need more"
            await watched.unload()  # from then on: the next load need not wait for a tick
            peak = watched.watch.counted()[KEY][MEMORY]
            assert 60 * MIB < peak < both and watched.changes == 1
            await watched.measure()
            assert watched.changes == 1, "nothing new"
            # A smaller run of the same program changes nothing; another program has a peak of its own.
            await watched.run(app(), small.pid)
            await watched.measure()
            await watched.unload()
            await watched.measure()
            assert watched.watch.counted()[KEY][MEMORY] == peak
            await watched.run(app("other"), small.pid)
            await watched.measure()
            await watched.unload()
            await watched.measure()
            assert 10 * MIB < watched.watch.counted()[KEY][MEMORY] < 50 * MIB
            watched.supervisor.drop_revision(KEY)
            await watched.measure()
            assert watched.watch.counted() == {} and watched.watch.use_of(KEY) == {}
        await watched.close()

    asyncio.run(scenario())


def test_a_copy_that_uses_more_than_it_declares_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        watched = Watched()
        with program(sys.executable, "-c", ALLOCATES, str(60 * MIB)) as large:
            await watched.run(app(memory=20 * MIB), large.pid)
            for _ in range(3):
                await watched.measure()
            assert caplog.text.count("more than it declares: `needs.memory: 20MiB`") == 1
            # Another amount that is too small is another mistake; one that is large enough is none.
            await watched.unload()
            await watched.run(app(memory=30 * MIB), large.pid)
            await watched.measure()
            assert caplog.text.count("more than it declares: `needs.memory: 30MiB`") == 1
            await watched.unload()
            await watched.run(app(memory=500 * MIB), large.pid)
            await watched.measure()
            assert caplog.text.count("more than it declares") == 2
        await watched.close()

    asyncio.run(scenario())


class WalkedFleets(Fleets):
    """Count the walks over all revisions."""

    walks = 0

    def processes(self) -> list[LocalProcess]:
        self.walks += 1
        return super().processes()


def test_a_tick_does_not_walk_over_all_revisions() -> None:
    """With 10,000 idle ones, a walk in each tick took 3 % of a core."""
    fleets = WalkedFleets()
    now_s = 1_000.0
    watch = MemoryWatch(TaskGroupOwner(lambda name, error: None), fleets, lambda: now_s, lambda: None)
    for _ in range(1_000):
        watch.tick()
        now_s += 0.1
    assert fleets.walks == pytest.approx(100.0 / SAMPLE_S, abs=1)


def test_a_new_program_is_measured_soon_and_nothing_is_measured_without_one() -> None:
    async def scenario() -> None:
        watched = Watched()
        watched.watch.tick()
        assert not watched.watch.is_measuring
        with program(sys.executable, "-c", ALLOCATES, str(5 * MIB)) as small:
            await watched.run(app(), small.pid)
            await watched.measure(SAMPLE_MIN_S / 2)
            assert watched.watch.use_of(KEY) == {}, "the last walk was just now"
            await watched.measure(SAMPLE_MIN_S)
            assert watched.watch.use_of(KEY)[MEMORY] > 5 * MIB
        await watched.close()

    asyncio.run(scenario())
