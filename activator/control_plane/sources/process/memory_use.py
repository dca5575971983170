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
import threading
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
ANSWER_S: Final = 0.05  # how long to wait for the answer about GPUs; without it the last one counts
RESOURCES: Final = (MEMORY, GPU_MEMORY)

Use = dict[str, int]  # bytes by resource; one that cannot be measured is missing

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")

log = logging.getLogger("activator.process")


class MemoryWatch:
    """The memory of all programs.

    `counted_changed()` is called when `counted()` has changed because a revision was unloaded.
    """

    def __init__(self, tasks: TaskGroupOwner, fleets: Fleets, now: Now, counted_changed: Callable[[], None]) -> None:
        self._tasks = tasks
        self._fleets = fleets
        self._now = now
        self._counted_changed = counted_changed
        self._gpus = Gpus()
        self._measured_s = 0.0
        self._has_new = False  # a program has become ready since the last walk
        self.is_measuring = False  # a walk over /proc is under way
        self._use: dict[str, Use] = {}  # by identity of the process: the last measurement
        self._peaks: dict[str, tuple[Program, Use]] = {}  # by revision, and its program at the time
        self._counted: dict[str, tuple[Program, Use]] = {}  # the peaks when the last program of a revision ended
        self._warned: dict[tuple[str, str], int] = {}  # the declared amount, by revision and resource

    def tick(self) -> None:
        """Measure when it is time; to be called several times in a second."""
        now_s = self._now()
        if now_s - self._measured_s < (SAMPLE_MIN_S if self._has_new else SAMPLE_S) or self.is_measuring:
            return
        self._measured_s = now_s
        self._has_new = False
        leaders = {one.identity: one.unit.leader for one in self._fleets.processes() if one.unit.leader}
        if leaders or self._use:
            self.is_measuring = True
            self._tasks.start("memory of programs", self._measure(leaders))

    def programs_changed(self, key: str) -> None:
        """Measure soon after a program has become ready; count the peak of a revision when its last one has ended."""
        present = self._fleets.of(key)
        if any(one.ready and one.identity not in self._use for one in present):
            self._has_new = True
        peak = self._peaks.get(key)
        if not present and peak is not None and peak != self._counted.get(key):  # a running one may need more
            self._counted[key] = peak
            self._counted_changed()

    def counted(self) -> dict[str, Use]:
        """Return, for each revision that was unloaded since, the most that one copy of it has used."""
        return {key: use for key, (program, use) in self._counted.items() if self._is_present(key, program)}

    def use_of(self, key: str) -> Use:
        """Return what all programs of a revision used when they were measured last."""
        total: Use = {}
        for process in self._fleets.of(key):
            for resource, amount in self._use.get(process.identity, {}).items():
                total[resource] = total.get(resource, 0) + amount
        return total

    def _sample(self, leaders: Mapping[str, int]) -> dict[str, Use]:
        return measured(leaders, self._gpus.latest() if leaders else None)

    async def _measure(self, leaders: Mapping[str, int]) -> None:
        try:
            self._use = await asyncio.to_thread(self._sample, leaders)
        finally:
            self.is_measuring = False
        for key in self._peaks.keys() - self._fleets.by_key.keys():
            del self._peaks[key]
            self._counted.pop(key, None)
        self._warned = {name: amount for name, amount in self._warned.items() if name[0] in self._fleets.by_key}
        for fleet in self._fleets.all():
            program = fleet.revision.program
            for process in fleet.processes.values():
                if process.revision is not None and program is not None and process.ready:
                    use = self._use.get(process.identity, {})
                    self._warn_if_more(fleet.key, process.revision.needs, use)
                    if process.revision.program == program:
                        self._raise_peak(fleet.key, program, use)

    def _raise_peak(self, key: str, program: Program, use: Use) -> None:
        before, peak = self._peaks.get(key, (program, {}))
        peak = peak if before == program else {}
        names = peak.keys() | use.keys()
        self._peaks[key] = program, {name: max(peak.get(name, 0), use.get(name, 0)) for name in names}

    def _warn_if_more(self, key: str, needs: Mapping[str, int], use: Use) -> None:
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
    """The GPUs of this machine, if the package nvidia-ml-py and a driver are there.

    A driver may hang: a thread of its own asks it, and not even the end of the activator waits for that thread.
    """

    def __init__(self) -> None:
        self._nvml: Any = None
        self._is_tried = False
        self._thread: threading.Thread | None = None
        self._found: dict[int, int] | None = None

    def latest(self) -> dict[int, int] | None:
        """Return the bytes that each process had on all GPUs at the last answer, and ask again; None: not known."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._fetch, name="GPUs", daemon=True)
            self._thread.start()
            self._thread.join(ANSWER_S)
        return self._found

    def _fetch(self) -> None:
        self._found = self.bytes_by_process()

    def bytes_by_process(self) -> dict[int, int] | None:
        """Return the bytes that each process has on all GPUs; None if that is not known. It may take any time."""
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


def measured(leaders: Mapping[str, int], on_gpus: Mapping[int, int] | None) -> dict[str, Use]:
    """Return what each program uses; `leaders` are their first processes, by the name of the program.

    `on_gpus`: bytes by process; None: not known.
    """
    trees = descendants(leaders.values())
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
    return trees_of(leaders, parents, groups)


def trees_of(leaders: Iterable[int], parents: Mapping[int, int], groups: Mapping[int, int]) -> dict[int, list[int]]:
    """Return `descendants`, given the parent and the process group of each process."""
    trees: dict[int, list[int]] = {leader: [] for leader in leaders if leader in parents}
    known = {leader: leader for leader in trees}  # the leader of each visited process; 0: none
    for process in parents:
        path: list[int] = []
        ancestor = process
        while ancestor not in known and ancestor in parents:
            known[ancestor] = 0  # ends a loop, which a reused process number could cause
            path.append(ancestor)
            ancestor = parents[ancestor]
        for one in reversed(path):
            leader = known.get(parents[one], 0) or groups[one]
            known[one] = leader if leader in trees else 0
        if known[process]:
            trees[known[process]].append(process)
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
