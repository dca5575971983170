"""`python -m bench micro`: pytest-benchmark on bench/micro, and its figures as one table.

A benchmark may say itself what its figure is, in `extra_info`: `ns` (per operation, since a round is many of them) or
`bytes…`; otherwise it is the median of a round. Other numbers in `extra_info` stand beside it, in `params`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec

import lb
from bench import header, results
from bench.processes import ROOT, BenchError
from bench.results import Document, Result

TIMEOUT_S = 1800.0


class Statistics(msgspec.Struct, frozen=True):
    """Of one benchmark; pytest-benchmark writes more."""

    min: float
    median: float
    rounds: int


class Benchmark(msgspec.Struct, frozen=True):
    """One entry of pytest-benchmark's file."""

    name: str
    group: str | None
    stats: Statistics
    extra_info: dict[str, Any] = {}


class Written(msgspec.Struct, frozen=True):
    """pytest-benchmark's file."""

    benchmarks: list[Benchmark]


def run(select: str | None, json_path: str | None) -> int:
    """The whole of `python -m bench micro`. Raises BenchError."""
    head = header.collect([])
    print(header.one_line(head), flush=True)
    if warning := header.warning(head):
        print(warning, file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        written = Path(name) / "benchmarks.json"
        code = _pytest(select, written)
        if not written.is_file() or written.stat().st_size == 0:
            raise BenchError(f"pytest wrote no figures (exit code {code})")
        benchmarks = msgspec.json.decode(written.read_bytes(), type=Written).benchmarks
    found = [figure(benchmark) for benchmark in benchmarks]
    print("\n" + results.table(*rows(found)) + "\n")
    print(
        'Measured: pytest-benchmark, garbage collection as it is; "ns" is the best round divided by its operations;\n'
        "loop_ns and floor_ns beside it are what the empty loop and empty calls cost, not subtracted.\n"
        f"The code under test is {'compiled' if lb.COMPILED else 'plain Python'}."
    )
    if json_path is not None:
        results.write(json_path, Document(head, found))
    return 1 if code else 0


def _pytest(select: str | None, written: Path) -> int:
    command = [sys.executable, "-m", "pytest", "bench/micro", "-q", "--benchmark-enable", "--benchmark-quiet"]
    command += ["-p", "no:cacheprovider", f"--benchmark-json={written}"]
    if select is not None:
        command += ["-k", select]
    try:
        return subprocess.run(command, cwd=ROOT, timeout=TIMEOUT_S, check=False).returncode
    except subprocess.TimeoutExpired:
        raise BenchError(f"the micro benchmarks took longer than {TIMEOUT_S:.0f} s") from None


def figure(benchmark: Benchmark) -> Result:
    """What a benchmark found, in the unit that it names."""
    info = benchmark.extra_info
    value, unit, used = benchmark.stats.median * 1e9, "ns", ""
    for name, number in info.items():
        if name == "ns" or name.startswith("bytes"):
            value, unit, used = float(number), "ns" if name == "ns" else name.replace("_", " "), name
            break
    params = {name: entry for name, entry in info.items() if name != used and isinstance(entry, str | int | float)}
    name = f"micro.{benchmark.name.removeprefix('test_')}"
    return Result(name, value, unit, True, {**params, "compiled": lb.COMPILED, "group": benchmark.group or ""})


def rows(found: list[Result]) -> tuple[list[str], list[list[str]]]:
    """The table on the terminal."""
    hidden = ("compiled", "group", "world")
    lines = []
    for one in found:
        beside = ", ".join(f"{name} {value}" for name, value in one.params.items() if name not in hidden)
        lines.append([one.name.removeprefix("micro."), results.figure(one.value, 1), one.unit, beside])
    return ["benchmark", "figure", "unit", "beside"], lines
