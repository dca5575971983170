"""The memory of programs: whose processes are whose, and what a GPU's driver reports."""

from __future__ import annotations

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
from activator.control_plane.sources.process.memory_use import (
    Gpus,
    descendants,
    measured,
    resident_bytes,
    trees_of,
)

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
