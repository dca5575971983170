"""The tables of `python -m bench micro` for the terminal, each in a layout that suits its group."""

from __future__ import annotations

from bench import results
from bench.growth import LARGE, SMALL
from bench.results import Result
from bench.seed_figures import LINES

CALLERS = {"in_place": "in place", "lease": "in place, with a lease", "Python": "called from Python"}
BARS = (
    "Bars, compiled: random, choice-of-2, round-robin, least-connections 40 ns, first-available 70, others 200;",
    "a lease + 20; add and remove of a pod 2,000 ns each; 0 bytes left allocated by a pick.",
)
MEASURED = (
    "Measured by pytest-benchmark, garbage collection enabled; a time is the best round divided by its operations,",
    "including loop and calls (loop_ns, floor_ns: their cost alone). B/op and blocks/op are the requests to Python's",
    "allocators, whether freed at once or not (bench/allocations.py); a dash: no C compiler, hence no count.",
    "Growth is in CPU time; linear growth would have a ratio of 100.",
)


def everything(found: list[Result]) -> str:
    """Return all results, group by group."""
    parts = []
    for compiled in (True, False):
        here = [one for one in found if one.params["compiled"] is compiled]
        world = "compiled" if compiled else "plain Python"
        for group, render in RENDERERS.items():
            members = [one for one in here if one.params["group"] == group]
            if members:
                parts.append(f"{group}, {world}\n\n{results.table(*render(members))}")
    return "\n" + "\n\n".join([*parts, "\n".join(MEASURED), "\n".join(BARS), "\n".join(LINES)]) + "\n"


def policies(found: list[Result]) -> tuple[list[str], list[list[str]]]:
    """Return the ns while idle and with one pod free, by number of pods; one line per policy and caller."""
    sizes = sorted({int(str(one.params["pods"])) for one in found})
    lines: dict[tuple[str, str], dict[int, dict[str, Result]]] = {}
    for one in found:
        line = lines.setdefault((str(one.params["caller"]), str(one.params["policy"])), {})
        line.setdefault(int(str(one.params["pods"])), {})[str(one.params["load"])] = one
    rows = []
    for caller, title in CALLERS.items():
        for (by, policy), line in lines.items():
            if by == caller:
                cells = [
                    " / ".join(_ns(line.get(size, {}).get(load)) for load in ("idle", "one_free")) for size in sizes
                ]
                members = [one for at in line.values() for one in at.values()]
                rows.append([title, policy, *cells, _most(members, "bytes_per_op"), _most(members, "blocks_per_op")])
    title_row = ["pick + reserve + release", "policy", *(f"{size:,} pods" for size in sizes), "B/op", "blocks/op"]
    return title_row, rows


def plain_list(found: list[Result]) -> tuple[list[str], list[list[str]]]:
    """Return one line per figure, with its additional values."""
    hidden = ("compiled", "group", "bytes_per_op", "blocks_per_op")
    rows = []
    for one in found:
        extra = ", ".join(f"{name} {value}" for name, value in one.params.items() if name not in hidden)
        name = one.name.removeprefix("micro.").removeprefix("plain.")
        asked = [_most([one], "bytes_per_op"), _most([one], "blocks_per_op")]
        rows.append([name, results.figure(one.value, 0), one.unit, *asked, extra])
    return ["benchmark", "figure", "unit", "B/op", "blocks/op", "more"], rows


def fragmentation(found: list[Result]) -> tuple[list[str], list[list[str]]]:
    """Return one line per scenario and threshold."""
    columns = ("pods", "length", "length_mean", "holes", "trailing", "trims", "slots", "bytes", "change_ns")
    rows = []
    for one in sorted(found, key=lambda one: (str(one.params["scenario"]), float(str(one.params["threshold"])))):
        cells = [results.figure(float(str(one.params[name])), 0) for name in columns]
        rows.append([str(one.params["scenario"]), str(one.params["threshold"]), *cells, results.figure(one.value, 0)])
    title = ["life", "threshold", *(name.replace("_", " ") for name in columns), "walk ns"]
    return title, rows


def growth(found: list[Result]) -> tuple[list[str], list[list[str]]]:
    """Return one line per operation: both figures and their ratio."""
    rows = []
    for one in found:
        cells = [results.figure(float(str(one.params[f"ns_at_{size}"])) / 1e3) for size in (SMALL, LARGE)]
        rows.append([f"{one.params['operation']}: {one.params['what']}", *cells, results.figure(one.value, 1)])
    return ["operation, CPU us", f"at {SMALL:,}", f"at {LARGE:,}", "ratio"], rows


RENDERERS = {
    "policies": policies,
    "table": plain_list,
    "memory": plain_list,
    "fragmentation": fragmentation,
    "state": plain_list,
    "telemetry": plain_list,
    "throttle": plain_list,
    "scaling": plain_list,
    "routing": plain_list,
    "http2": plain_list,
    "quotas": plain_list,
    "growth": growth,
}


def _ns(one: Result | None) -> str:
    return results.figure(None if one is None else one.value, 0 if one is not None and one.value >= 1_000 else 1)


def _most(found: list[Result], name: str) -> str:
    values = [float(str(one.params[name])) for one in found if name in one.params]
    return f"{max(values):g}" if values else "-"
