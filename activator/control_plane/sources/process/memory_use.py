"""The memory that programs use: resident memory by /proc, that of NVIDIA's GPUs by NVML (the package nvidia-ml-py).

Rules
  1. Every SAMPLE_S, and when a program has become ready, but at most every SAMPLE_MIN_S, one walk over /proc, in a
     thread, finds the descendants of all programs.
  2. Pages that processes share are counted for each of them, and so are the pages of a model that is read by mmap(2).
  3. A value of one copy is compared with what its revision declares in `needs` under the names of RESOURCES. A larger
     one is logged once.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from activator.config.model.groups import GPU_MEMORY, MEMORY
from activator.config.model.programs import Program
from activator.control_plane.sources.process.fleets import Fleets
from activator.runtime.clock import Now
from activator.runtime.process_stat import GROUP, PARENT, stat_fields
from activator.runtime.tasks import TaskGroupOwner
from activator.runtime.units import GIB, MIB

SAMPLE_S: Final = 10.0
SAMPLE_MIN_S: Final = 1.0
RESOURCES: Final = (MEMORY, GPU_MEMORY)
STEP_SHARE: Final = 0.05  # a peak that rises by less is not reported

Use = dict[str, int]  # bytes by resource; one that cannot be measured is missing

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")

log = logging.getLogger("activator.process")


class MemoryWatch:
    """The memory of all programs.

    `peak_rose()` is called when a copy of a revision has used more than any copy before.
    """

    def __init__(self, tasks: TaskGroupOwner, fleets: Fleets, now: Now, peak_rose: Callable[[], None]) -> None:
        self._tasks = tasks
        self._fleets = fleets
        self._now = now
        self._peak_rose = peak_rose
        self._gpus = Gpus()
        self._measured_s = 0.0
        self._is_measuring = False
        self._use: dict[str, Use] = {}  # by identity
        self._peaks: dict[str, tuple[Program, Use]] = {}  # by revision, and its program at the time
        self._warned: dict[tuple[str, str], int] = {}  # the declared amount, by revision and resource

    def tick(self) -> None:
        """Measure when it is time; to be called several times in a second."""
        now_s, present = self._now(), [one for one in self._fleets.processes() if one.unit.leader]
        is_due = now_s - self._measured_s >= SAMPLE_S
        is_new = any(one.ready and one.identity not in self._use for one in present)
        if (is_due or (is_new and now_s - self._measured_s >= SAMPLE_MIN_S)) and not self._is_measuring:
            leaders = {one.identity: one.unit.leader for one in present}
            self._measured_s = now_s
            if leaders or self._use:
                self._is_measuring = True
                self._tasks.start("memory of programs", self._measure(leaders))

    def use_of(self, key: str) -> Use:
        """Return what all programs of a revision used when they were measured last."""
        total: Use = {}
        for process in self._fleets.of(key):
            for resource, amount in self._use.get(process.identity, {}).items():
                total[resource] = total.get(resource, 0) + amount
        return total

    def peaks(self) -> dict[str, Use]:
        """Return the most that one copy of each revision has used, by key."""
        return {key: use for key, (program, use) in self._peaks.items() if self._is_present(key, program)}

    async def _measure(self, leaders: Mapping[str, int]) -> None:
        try:
            self._use = await asyncio.to_thread(measured, leaders, self._gpus)
        finally:
            self._is_measuring = False
        has_risen = False
        for fleet in self._fleets.all():
            for process in fleet.processes.values():
                if process.revision is not None and process.revision.program is not None and process.ready:
                    use = self._use.get(process.identity, {})
                    has_risen |= self._note(fleet.key, process.revision.program, use)
                    self._compare(fleet.key, process.revision.needs, use)
        if has_risen:
            self._peak_rose()

    def _note(self, key: str, program: Program, use: Use) -> bool:
        """Add a measurement to the peaks; return True if one has risen noticeably."""
        before, peak = self._peaks.get(key, (program, {}))
        if before != program:
            peak = {}
        risen = {name: amount for name, amount in use.items() if amount > (1.0 + STEP_SHARE) * peak.get(name, 0)}
        if risen or before != program:
            self._peaks[key] = program, {**peak, **risen}
        return bool(risen)

    def _compare(self, key: str, needs: Mapping[str, int], use: Use) -> None:
        for name, amount in use.items():
            declared = int(needs.get(name, 0))
            if 0 < declared < amount and self._warned.get((key, name)) != declared:
                self._warned[key, name] = declared
                text = "%s: a copy uses %s of %s, more than it declares: `needs.%s: %s`"
                log.warning(text, key, shown(amount), name, name, shown(declared))

    def _is_present(self, key: str, program: Program) -> bool:
        fleet = self._fleets.get(key)
        return fleet is not None and fleet.revision.program == program


class Gpus:
    """The GPUs of this machine, if the package nvidia-ml-py and a driver are there."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._is_tried = False

    def bytes_by_process(self) -> dict[int, int] | None:
        """Return the bytes that each process has on all GPUs; None if that is not known."""
        if not self._is_tried:
            self._is_tried = True
            self._nvml = _nvml()
        nvml = self._nvml
        if nvml is None:
            return None
        found: dict[int, int] = {}
        try:
            for index in range(nvml.nvmlDeviceGetCount()):
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                for one in nvml.nvmlDeviceGetComputeRunningProcesses(handle):
                    found[one.pid] = found.get(one.pid, 0) + (one.usedGpuMemory or 0)  # None: not known
        except nvml.NVMLError as error:
            log.warning("the memory of GPUs is not measured any more: %s", error)
            self._nvml = None
            return None
        return found


def _nvml() -> Any:
    """Return the module of NVML; None if it is not installed, or finds no driver."""
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        log.info("the memory of GPUs is not measured: %s", error)
        return None
    return nvml


def measured(leaders: Mapping[str, int], gpus: Gpus) -> dict[str, Use]:
    """Return what each program uses; `leaders` are their first processes, by the name of the program."""
    trees = descendants(leaders.values())
    on_gpus = gpus.bytes_by_process() if trees else None
    found: dict[str, Use] = {}
    for identity, leader in leaders.items():
        tree = trees.get(leader)
        if tree:
            found[identity] = {MEMORY: sum(resident_bytes(process) for process in tree)}
            if on_gpus is not None:
                found[identity][GPU_MEMORY] = sum(on_gpus.get(process, 0) for process in tree)
    return found


def descendants(leaders: Iterable[int]) -> dict[int, list[int]]:
    """Return each of these processes that is alive, with its descendants; a leader is no descendant of another one."""
    parents: dict[int, int] = {}
    groups: dict[int, int] = {}  # a daemon's parent is the activator, but its process group may be the program's
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                fields = stat_fields(name)
                parents[int(name)], groups[int(name)] = int(fields[PARENT]), int(fields[GROUP])
            except OSError:  # it has ended
                continue
    trees: dict[int, list[int]] = {leader: [] for leader in leaders if leader in parents}
    for process in parents:
        ancestor, steps = process, 0
        while ancestor not in trees and ancestor in parents and steps < len(parents):
            ancestor, steps = parents[ancestor], steps + 1
        leader = ancestor if ancestor in trees else groups[process]
        if leader in trees:
            trees[leader].append(process)
    return trees


def resident_bytes(process: int) -> int:
    """Return the resident memory of a process; 0 if it has ended."""
    try:
        with open(f"/proc/{process}/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError):
        return 0


def shown(amount: int) -> str:
    """Return an amount in GiB, or in MiB if it is smaller than one."""
    return f"{amount / GIB:.1f}GiB" if amount >= GIB else f"{amount / MIB:.0f}MiB"
