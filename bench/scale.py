"""`python -m bench scale`: the cost of writing Kubernetes objects for many Activations, phase by phase.

Rules
  1. The phases are those of the seed's figures, which are shown beside ours for orientation: they come from another
     program, in Go, on another machine, against a real API server.
  2. Each technique is disabled in one run while the others stay enabled. Without watches objects must be read, so reads
     are compared there. Each Deployment also has a Service of its user, whose events a narrow selector leaves out.
  3. With the fake cluster wall-clock times show how often the reconciler waits for the API, but not how long that takes
     in a real one. With --kubeconfig the API server and its controllers are real; nodes are still simulated, by a
     separate process (tests/kube/simulated_nodes.py). The CPU time of the API server covers all its work.
"""

from __future__ import annotations

import gc
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from bench import header, results, scale_noop
from bench.api_server import ReadCpu, cpu_reader
from bench.membership import write_kubeconfig
from bench.processes import UsageError, answers, free_port, running
from bench.results import Document, Result, figure
from bench.scale_noop import Noop
from bench.scale_run import Phase, Run, Size
from bench.scale_source import Watching
from bench.scale_techniques import Techniques
from bench.scale_user import User
from bench.seed_figures import SCALE_CPU_S, SCALE_WALL_S

READY_MS = 1_000  # from scheduled to ready, with the fake nodes
TERMINATE_MS = 200
SHORT_STEADY_S = 2.0  # in runs with a disabled technique
OBJECTS_MAX = 5_000

# grove 545, "reconcile CPU on the 1000-pod scale test": 500 objects, 1,000 pods, 100 simulated nodes, concurrency 20.
SEED_LINES = (
    "The seed (Go, another machine, k3d with 100 simulated nodes), before -> after: total 128.0 -> 110.9 s, pods-ready",
    "47.8 -> 42.8 s, delete 50.0 -> 37.9 s; CPU: deploy 15.0 -> 10 s, steady state (30 s) 680 -> 370 ms.",
)


class Options(msgspec.Struct, frozen=True):
    """The options of the command line."""

    activations: int = 500
    pods: int = 1_000
    nodes: int = 100
    concurrency: int = 20
    steady_s: float = 30.0
    kubeconfig: str = ""
    namespace: str = "activator-bench"
    is_brief: bool = False
    profiles: str = ""


class Variant(msgspec.Struct, frozen=True):
    """A run; `is_watched`: the source passes on what its watches show; `is_narrowed`: they select our label."""

    name: str
    techniques: Techniques = Techniques()
    is_watched: bool = True
    is_narrowed: bool = True


VARIANTS = (
    Variant("all techniques"),
    Variant("one component after the other", Techniques(groups=False)),
    Variant("written though unchanged", Techniques(skip_unchanged=False)),
    Variant("selectors not narrowed", is_narrowed=False),
    Variant("without watches", is_watched=False),
    Variant("without watches, reads not memoised", Techniques(memoised_reads=False), False),
)
PROFILED = Variant("profiled")
Runs = dict[str, list[Phase]]


def check(options: Options) -> None:
    """Check the options. Raises UsageError."""
    if not 1 <= options.activations <= OBJECTS_MAX:
        raise UsageError(f"--activations {options.activations}: from 1 to {OBJECTS_MAX}")
    if options.pods < options.activations or options.pods % options.activations:
        raise UsageError(f"--pods {options.pods}: a multiple of --activations {options.activations}")
    if options.profiles and not Path(options.profiles).is_dir():
        raise UsageError(f"--profiles {options.profiles}: there is no such folder")


def run(options: Options, json_path: str | None) -> int:
    """Run `python -m bench scale`. Raises BenchError or UsageError."""
    check(options)
    head = header.collect([])
    print(header.one_line(head), flush=True)
    warning = header.warning(head)
    if warning is not None:
        print(warning)
    runs: Runs = {}
    if options.profiles:
        with _server(options) as server:
            _measured(options, PROFILED, *server)
    for variant in VARIANTS[:1] if options.is_brief else VARIANTS:
        with _server(options) as server:
            runs[variant.name] = _measured(options, variant, *server)
        print(f"\n{variant.name}: {options.activations} Activations, {options.pods} pods")
        print(results.table(*rows(runs[variant.name])), flush=True)
    print("\ncalls of the reconciler, all techniques:")
    for phase in runs[VARIANTS[0].name]:
        print(f"  {phase.name}: " + (", ".join(f"{call} {count}" for call, count in phase.calls.items()) or "none"))
    noops = scale_noop.run([options.activations, 10 * options.activations])
    print("\nan event that changes nothing, from its line in the watch to the comparison:")
    print(results.table(*noop_rows(noops)))
    print("\n" + "\n".join(SEED_LINES))
    if json_path is not None:
        results.write(json_path, Document(head, figures(options, runs, noops)))
    return 0


@contextmanager
def _server(options: Options) -> Iterator[tuple[str, ReadCpu]]:
    """Provide a kubeconfig (of a new fake cluster or the given one) and a reader of the API server's CPU time."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder, port = Path(name), free_port()
        if options.kubeconfig:
            words = ["--kubeconfig", options.kubeconfig, "--nodes", str(options.nodes), "--ready-ms", str(READY_MS)]
            command = [sys.executable, "-m", "tests.kube.simulated_nodes", *words, "--terminate-ms", str(TERMINATE_MS)]
            with running(command, folder / "nodes.log") as nodes:
                nodes.wait_until(lambda: "ready" in nodes.tail())
                yield options.kubeconfig, cpu_reader(options.kubeconfig)
            return
        command = [sys.executable, "-m", "bench.scale_server", str(port), str(options.nodes)]
        with running([*command, str(READY_MS), str(TERMINATE_MS)], folder / "server.log") as server:
            server.wait_until(answers(port, "/api/v1/namespaces/default/configmaps"))
            yield write_kubeconfig(folder, port), server.cpu_s


def _measured(options: Options, variant: Variant, kubeconfig: str, read_cpu: ReadCpu) -> list[Phase]:
    import uvloop

    return uvloop.run(_phases(options, variant, kubeconfig, read_cpu))


async def _phases(options: Options, variant: Variant, kubeconfig: str, read_cpu: ReadCpu) -> list[Phase]:
    steady_s = options.steady_s if variant is VARIANTS[0] else min(options.steady_s, SHORT_STEADY_S)
    is_settled = bool(options.kubeconfig) and steady_s == options.steady_s
    pods_each = options.pods // options.activations
    size = Size(options.activations, pods_each, options.concurrency, steady_s, is_settled)
    user = User(kubeconfig, options.namespace)
    try:
        await user.prepare()
        watching = Watching(variant.is_watched, variant.is_narrowed)
        running_now = Run(kubeconfig, user, size, variant.techniques, watching, read_cpu)
        if variant is PROFILED:
            running_now.profiles = Path(options.profiles)
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 20, 20)  # as in the program
        try:
            phases = await running_now.all()
            await user.settle()
            return phases
        finally:
            await running_now.close()
    finally:
        user.close()


# --- the results ----------------------------------------------------------------------------------------------------


def rows(phases: list[Phase]) -> tuple[list[str], list[list[str]]]:
    """Return the table of one run."""
    title = [
        "phase",
        "wall s",
        "own CPU s",
        "waiting s",
        "server CPU s",
        "calls",
        "writes",
        "events",
        "folded",
        "applied",
        "seed s",
    ]
    lines = []
    for phase in phases:
        seed = _seed(phase.name)
        times = (phase.wall_s, phase.cpu_s, phase.wall_s - phase.cpu_s, phase.server_cpu_s)
        cells = [figure(value, 3) for value in times]
        counts = (sum(phase.calls.values()), phase.writes, phase.received, phase.folded, phase.applied)
        lines.append([phase.name, *cells, *(figure(count, 0) for count in counts), seed])
    total = [figure(sum(one), 3) for one in zip(*((p.wall_s, p.cpu_s, p.wall_s - p.cpu_s) for p in phases))]
    server = [phase.server_cpu_s for phase in phases if phase.server_cpu_s is not None]
    total.append(figure(sum(server) if len(server) == len(phases) else None, 3))
    sums = zip(*((sum(p.calls.values()), p.writes, p.received, p.folded, p.applied) for p in phases))
    lines.append(["total", *total, *(figure(sum(one), 0) for one in sums), "128.0 -> 110.9"])
    return title, lines


def _seed(phase: str) -> str:
    for word, known in (("CPU", SCALE_CPU_S), ("wall", SCALE_WALL_S)):
        if phase in known:
            before, after = known[phase]
            return f"{word} {before:g} -> {after:g}"
    return "-"


def noop_rows(noops: list[Noop]) -> tuple[list[str], list[list[str]]]:
    lines = []
    for one in noops:
        blocks = None if one.allocated is None else one.allocated.blocks
        size = None if one.allocated is None else one.allocated.bytes
        lines.append([f"{one.objects:,}", figure(one.event_us, 1), figure(blocks, 1), figure(size, 0)])
    return ["objects", "us", "allocations", "bytes"], lines


def figures(options: Options, runs: Runs, noops: list[Noop]) -> list[Result]:
    """Return the results for the JSON file."""
    found = []
    for name, phases in runs.items():
        key = name.replace(",", "").replace(" ", "-")
        for phase in phases:
            params: dict[str, results.Value] = {
                "activations": options.activations,
                "pods": options.pods,
                "concurrency": options.concurrency,
                "server": "real" if options.kubeconfig else "fake",
                "received": phase.received,
                "folded": phase.folded,
                "applied": phase.applied,
                **{f"calls {call}": count for call, count in phase.calls.items()},
            }
            taken = {"wall": phase.wall_s, "cpu": phase.cpu_s}
            if phase.server_cpu_s is not None:
                taken["server_cpu"] = phase.server_cpu_s
            for what, value in taken.items():
                found.append(Result(f"scale.{key}.{phase.name}.{what}", value, "s", True, params))
            found.append(Result(f"scale.{key}.{phase.name}.writes", phase.writes, "calls", True, params))
    for one in noops:
        allocated: dict[str, results.Value] = {}
        if one.allocated is not None:
            allocated = {"allocations": one.allocated.blocks, "bytes": one.allocated.bytes}
        found.append(Result(f"scale.noop.{one.objects}", one.event_us, "us", True, allocated))
    return found
