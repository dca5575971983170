"""The judge of resources: figures of the processes behind one door when nothing is under way, and their bounds.

Rules
  1. A sample is taken without load, at an equal age: after an upgrade and the same time of load. So processes that
     were replaced are compared with those before them at the same point of their lives.
  2. Gauges of what is under way must be 0 in every sample; the others may grow by the named bound, which the number of
     requests and of disturbances must not change. A sample without one of its figures is an error.
  3. `Probe` makes a Python process count its own objects: tasks, armed timers, and all that the collector knows.
"""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from tests.e2e.running import ROOT, Activator, eventually, resident_bytes

MIB: Final = 1 << 20
COUNT_SIGNAL: Final = signal.SIGRTMIN + 9

# How much more a door's processes may have at the end than after the warm-up, all together.
BOUNDS: Final[dict[str, tuple[float, str]]] = {
    "processes": (0, "each has its place"),
    "resident MiB": (24, "buffers, and what an allocator keeps: docs/reliability.md"),
    "descriptors": (4, "those that a process opens for a moment, to read /proc or a file"),
    "threads": (12, "executors start up to cores + 4 threads in each process, one after the other"),
    "tasks": (4, "probes and checks that happen to run"),
    "timers": (8, "those of such probes"),
    "objects": (15_000, "code that is used for the first time, and the history of the live page"),
}
# The gauges of /metrics that must be 0 without load.
NOTHING: Final = (
    *("activator_client_connections", "activator_client_handshakes", "activator_exchanges", "activator_held_bytes"),
    *("activator_held_requests", "activator_http2_connections", "activator_http2_streams", "activator_file_bytes"),
    *("activator_answers", "activator_errors_total", "activator_state_worker_panics_total"),
    *("activator_state_parked_revisions", "activator_state_queue_length"),
)
OF_REVISIONS: Final = ("activator_in_flight", "activator_queued", "activator_upgrade_tunnels", "activator_gathering")

COUNTING: Final = f"""
import os, signal
def count(number, frame):
    import asyncio, gc, json
    from collections import Counter
    frozen = gc.get_freeze_count()
    gc.unfreeze()  # what a process has frozen after its start is counted too
    gc.collect()
    found = gc.get_objects()
    if frozen:
        gc.freeze()
    kinds = Counter(type(one).__name__ for one in found)
    told = {{
        "objects": len(found),
        "tasks": sum(type(one) is asyncio.Task and not one.done() for one in found),
        "timers": sum(one.armed for one in found if type(one).__name__ == "TimingWheel"),
        "kinds": kinds.most_common(40),
    }}
    path = os.path.join(os.environ["SOAK_OBJECTS"], str(os.getpid()))
    with open(path + ".new", "w") as file:
        json.dump(told, file)
    os.replace(path + ".new", path)
signal.signal({int(COUNT_SIGNAL)}, count)
"""


class Counts(NamedTuple):
    """What one Python process has counted in itself."""

    objects: int
    tasks: int
    timers: int
    kinds: dict[str, int]


class Probe:
    """Counts the objects of the Python processes that were started with `variables`."""

    def __init__(self, folder: Path) -> None:
        site, self._counts = folder / "site", folder / "objects"
        site.mkdir()
        self._counts.mkdir()
        (site / "sitecustomize.py").write_text(COUNTING)
        self.variables = {
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(site)]),
            "SOAK_OBJECTS": str(self._counts),
        }

    def count(self, pid: int) -> Counts | None:
        """None for a process that has no counter, for example one without Python's `site`."""
        caught = re.search(r"SigCgt:\s+([0-9a-f]+)", Path(f"/proc/{pid}/status").read_text())
        if caught is None or not int(caught[1], 16) >> (int(COUNT_SIGNAL) - 1) & 1:
            return None
        path = self._counts / str(pid)
        path.unlink(missing_ok=True)
        os.kill(pid, COUNT_SIGNAL)
        eventually(path.exists, f"process {pid} has counted its objects")
        told = json.loads(path.read_text())
        return Counts(told["objects"], told["tasks"], told["timers"], dict(told["kinds"]))


class Sample(NamedTuple):
    """The figures of one door. `kinds`: its most frequent objects by the name of their type, as evidence.

    `counted`: the number of processes that have counted their own objects.
    """

    figures: dict[str, float]
    nothing: dict[str, float]
    kinds: dict[str, int]
    counted: int = 1


def sample(activator: Activator, pids: Iterable[int], probe: Probe) -> Sample:
    """Sample an activator, whose own processes have these PIDs.

    AssertionError if no process could be counted, or a gauge that must be 0 is missing.
    """
    chosen = list(pids)
    figures: dict[str, float] = {
        "processes": len(chosen),
        "resident MiB": round(sum(resident_bytes(pid) for pid in chosen) / MIB, 1),
        "descriptors": sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in chosen),
        "threads": sum(len(os.listdir(f"/proc/{pid}/task")) for pid in chosen),
    }
    counts = [one for one in (probe.count(pid) for pid in chosen) if one is not None]
    assert counts, f"none of the processes {chosen} has counted its objects"
    figures["tasks"] = sum(one.tasks for one in counts)
    figures["timers"] = sum(one.timers for one in counts)
    figures["objects"] = sum(one.objects for one in counts)
    kinds: dict[str, int] = {}
    for count in counts:
        for name, many in count.kinds.items():
            kinds[name] = kinds.get(name, 0) + many
    nothing = gauges(activator.ask("/metrics")[2].decode())
    missing = sorted({*NOTHING, *OF_REVISIONS} - nothing.keys())
    assert not missing, f"/metrics has no {', '.join(missing)}"
    return Sample(figures, nothing, kinds, len(counts))


def gauges(text: str) -> dict[str, float]:
    """Read the gauges that must be 0 from the text of /metrics; those of revisions are added up."""
    found: dict[str, float] = {}
    for name, value in re.findall(r"^(\w+)(?:\{.*\})? (\S+)", text, re.MULTILINE):
        if name in NOTHING or name in OF_REVISIONS:
            found[name] = found.get(name, 0.0) + float(value)
    return found


def compare(door: str, before: Sample, after: Sample) -> list[str]:
    """Return what has grown by more than its bound, and what is not 0."""
    problems = [
        f"{door}: {name} grew from {before.figures[name]:,} to {after.figures[name]:,}; allowed are {bound:g} more"
        for name, (bound, _) in BOUNDS.items()
        if after.figures[name] - before.figures[name] > bound
    ]
    if problems:
        grown = {name: many - before.kinds.get(name, 0) for name, many in after.kinds.items()}
        most = sorted(grown.items(), key=lambda one: -one[1])[:8]
        problems.append(f"{door}: objects that have become more: {dict(most)}")
    if before.counted != after.counted:
        problems.append(f"{door}: {before.counted} processes had counted their objects, then {after.counted}")
    for one in (before, after):
        problems += [f"{door}: {name} is {value:g} without load" for name, value in one.nothing.items() if value]
    return problems
