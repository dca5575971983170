"""`python -m bench micro`: pytest-benchmark on bench/micro, compiled and in plain Python, and its figures as tables.

A benchmark names its figure in `extra_info` (`figure` and `unit`); otherwise the figure is the median of a round. The
rest of `extra_info` goes to `params`. Names begin with `micro.`, or with `micro.plain.` for plain Python.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec

import lb
from bench import header, micro_tables, results
from bench.processes import ROOT, BenchError
from bench.results import Document, Result

TIMEOUT_S = 1800.0

GROUPS = {
    "policies": "test_bench_policies.py",
    "table": "test_bench_table.py",
    "memory": "test_bench_table.py",
    "fragmentation": "test_bench_fragmentation.py",
    "state": "test_bench_state.py",
    "telemetry": "test_bench_telemetry.py",
    "throttle": "test_bench_throttle.py",
    "scaling": "test_bench_scaling.py",
    "routing": "test_bench_routing.py",
    "http2": "test_bench_http2.py",
    "quotas": "test_bench_quotas.py",
    "growth": "test_bench_growth.py",
}
WORLDS = ("both", "compiled", "plain")


class Statistics(msgspec.Struct, frozen=True):
    """The statistics of one benchmark, as far as they are used."""

    min: float
    median: float
    rounds: int


class Benchmark(msgspec.Struct, frozen=True):
    """One benchmark in pytest-benchmark's file."""

    name: str
    group: str | None
    stats: Statistics
    extra_info: dict[str, Any] = {}


class Written(msgspec.Struct, frozen=True):
    """The file of pytest-benchmark."""

    benchmarks: list[Benchmark]


def run(select: str | None, groups: list[str], world: str, json_path: str | None) -> int:
    """Run `python -m bench micro`. Raises BenchError."""
    head = header.collect([])
    print(header.one_line(head), flush=True)
    if warning := header.warning(head):
        print(warning, file=sys.stderr)
    found: list[Result] = []
    failed = False
    for compiled in _worlds(world):
        print(f"\nmeasuring the {'compiled' if compiled else 'plain'} world …", flush=True)
        code, benchmarks = _measure(select, groups, compiled)
        failed = failed or code != 0
        found += [figure(one, compiled) for one in benchmarks if one.group in groups]
    print(micro_tables.everything(found))
    if json_path is not None:
        results.write(json_path, Document(head, found))
    return 1 if failed else 0


def _worlds(world: str, compiled: bool = lb.COMPILED) -> list[bool]:
    """Return the builds to measure (True: compiled); `compiled` is True if a compiled one exists."""
    if world == "plain" or (world == "both" and not compiled):
        return [False]
    if not compiled:
        raise BenchError("nothing is compiled here: run `make build`, and do not set ACTIVATOR_COMPILE=0")
    return [True] if world == "compiled" else [True, False]


def _measure(select: str | None, groups: list[str], compiled: bool) -> tuple[int, list[Benchmark]]:
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        written = Path(name) / "benchmarks.json"
        code = _pytest(select, groups, compiled, written)
        if not written.is_file() or written.stat().st_size == 0:
            raise BenchError(f"pytest wrote no figures (exit code {code})")
        return code, msgspec.json.decode(written.read_bytes(), type=Written).benchmarks


def _pytest(select: str | None, groups: list[str], compiled: bool, written: Path) -> int:
    paths = sorted({f"bench/micro/{GROUPS[group]}" for group in groups})
    command = [sys.executable, "-m", "pytest", *paths, "-q", "--benchmark-enable", "--benchmark-quiet"]
    command += ["-p", "no:cacheprovider", f"--benchmark-json={written}"]
    if select is not None:
        command += ["-k", select]
    environment = {name: value for name, value in os.environ.items() if name != "ACTIVATOR_COMPILE"}
    if not compiled:
        environment["ACTIVATOR_COMPILE"] = "0"
    try:
        return subprocess.run(command, cwd=ROOT, env=environment, timeout=TIMEOUT_S, check=False).returncode
    except subprocess.TimeoutExpired:
        raise BenchError(f"the micro benchmarks took longer than {TIMEOUT_S:.0f} s") from None


def figure(benchmark: Benchmark, compiled: bool) -> Result:
    """Return the result of a benchmark, in the unit that it names."""
    info = dict(benchmark.extra_info)
    value = float(info.pop("figure", benchmark.stats.median * 1e9))
    unit = str(info.pop("unit", "ns"))
    params = {name: entry for name, entry in info.items() if isinstance(entry, str | int | float)}
    name = f"micro.{'' if compiled else 'plain.'}{benchmark.name.removeprefix('test_')}"
    return Result(name, value, unit, True, {**params, "compiled": compiled, "group": benchmark.group or ""})
