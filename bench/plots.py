"""`python -m bench report FILE --plots FOLDER`: the figures of `bench micro` and `bench scale` as pictures for docs/.

Rules
  1. Pictures show only what the files contain; a file without the figures of a picture is refused.
  2. The same figures give the same bytes: no dates and no random identifiers, so that a picture in the repository
     changes only with its figures.
  3. Pictures are readable on light and dark pages: no background, text and grid in colours of the reader's scheme,
     lines in medium tones that contrast with both.

Only this module needs matplotlib (`pip install '.[bench]'`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from bench.processes import UsageError
from bench.results import Result
from bench.seed_figures import ARRAY_NS, SCALE_CPU_S, SCALE_WALL_S, SCAN_NS, SCAN_PODS

SCALE: Final = "scale."  # prefix of the names of its figures
SCALE_PHASES: Final = ("deploy", "pods-ready", "steady", "half", "back", "delete")
INK: Final = "#010203"  # placeholders, replaced in the finished picture with the reader's colours
GRID: Final = "#010204"
COLOURS: Final = (
    "#3b82f6", "#e8590c", "#2f9e44", "#a35fe0", "#e03131", "#0c8599", "#b7791f", "#d6457f", "#74808c",
)  # fmt: skip
STYLE: Final = """<style>
svg { color: #1f2328; --grid: #d1d9e0 }
@media (prefers-color-scheme: dark) { svg { color: #e6edf3; --grid: #3d444d } }
</style>
"""
SETTINGS: Final = {
    "svg.fonttype": "none",
    "svg.hashsalt": "activator",
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "legend.frameon": False,
}


def draw(found: list[Result], folder: str) -> list[Path]:
    """Draw every picture into the folder. Raises UsageError."""
    try:
        import matplotlib as mpl
    except ImportError:
        raise UsageError("pictures need matplotlib: pip install '.[bench]'") from None
    mpl.use("svg")
    pictures = chosen(found)
    written = []
    with mpl.rc_context(SETTINGS):
        for name, picture in pictures.items():
            path = Path(folder) / name
            _save(picture(found), path)
            written.append(path)
    return written


def chosen(found: list[Result]) -> dict[str, Callable[[list[Result]], Any]]:
    """Return the pictures for the figures in these files. Raises UsageError."""
    pictures: dict[str, Callable[[list[Result]], Any]] = {}
    if any("group" in one.params for one in found):
        pictures |= {"pick-cost.svg": pick_cost, "fragmentation.svg": fragmentation}
    if any(one.name.startswith(SCALE) for one in found):
        pictures |= {"scale-phases.svg": scale_phases, "scale-techniques.svg": scale_techniques}
    if not pictures:
        raise UsageError("no figures of `bench micro` or `bench scale` in these files")
    return pictures


def pick_cost(found: list[Result]) -> Any:
    """Draw the cost of pick + reserve + release by number of pods, log-log: idle (left), one slot free (right)."""
    picks = [one for one in found if one.params.get("group") == "policies" and one.params.get("caller") == "in_place"]
    if not picks:
        raise UsageError("no figures of the group policies in these files: python -m bench micro --json FILE")
    figure, panels = _figure(2, sharey=True)
    for panel, load, title in zip(panels, ("idle", "one_free"), ("all pods idle", "one slot free in all")):
        here = [one for one in picks if one.params["load"] == load]
        compiled = _lines([one for one in here if one.params["compiled"]], "policy", "pods")
        plain = _lines([one for one in here if not one.params["compiled"]], "policy", "pods")
        _plain_band(panel, {policy: line for policy, line in plain.items() if policy != "scan"})
        for colour, (policy, line) in zip(COLOURS, compiled.items()):
            if policy != "scan":
                panel.plot(*zip(*line), "o-", color=colour, markersize=3, linewidth=1.6, label=policy)
        if "scan" in compiled:
            panel.plot(*zip(*compiled["scan"]), "s-", color=INK, markersize=3, linewidth=1.6, label="scan of all slots")
        panel.plot(SCAN_PODS, SCAN_NS, "--", color=COLOURS[-1], label="seed (Go) before")
        panel.fill_between(
            [10, 10_000],
            *([edge, edge] for edge in ARRAY_NS),
            color=COLOURS[-1],
            alpha=0.5,
            label="seed after: 53 - 57",
        )
        panel.set(xscale="log", yscale="log", xlabel="pods", title=title)
    panels[0].set_ylabel("pick + reserve + release, ns")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def fragmentation(found: list[Result]) -> Any:
    """Draw the benefit (a shorter walk) and the cost (trims) of the threshold in each scenario."""
    lives = [one for one in found if one.params.get("group") == "fragmentation"]
    if not lives:
        raise UsageError("no figures of the group fragmentation in these files: python -m bench micro --json FILE")
    world = any(one.params["compiled"] for one in lives)  # the walk is the same in both; prefer the compiled one
    lives = [one for one in lives if one.params["compiled"] == world]
    figure, panels = _figure(2)
    for panel, key, label in zip(panels, ("length_mean", "trims"), ("slots in a walk, on average", "trims in all")):
        for colour, (life, line) in zip(COLOURS, _lines(lives, "scenario", "threshold", key).items()):
            panel.plot(*zip(*line), "o-", color=colour, markersize=4, linewidth=1.6, label=life.replace("-", " "))
        panel.set(xlabel="trailing_fragmentation_threshold", title=label, xticks=[0, 0.25, 0.5, 0.75, 1])
        panel.set_ylim(bottom=0)
    panels[1].set_yscale("symlog", linthresh=1)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def scale_phases(found: list[Result]) -> Any:
    """Draw each phase of `bench scale` beside the seed's figures, if any: wall-clock and CPU time."""
    figure, panels = _figure(2)
    sides = (("wall", SCALE_WALL_S, "wall-clock, s"), ("cpu", SCALE_CPU_S, "own CPU, s"))
    for panel, (what, seed, title) in zip(panels, sides):
        ours = [_scaled(found, "all-techniques", phase, what) for phase in SCALE_PHASES]
        _bars(panel, list(SCALE_PHASES), {"ours": ours} | _seed_bars(seed))
        panel.set(yscale="log", title=title)
        panel.tick_params(axis="x", rotation=30)
    figure.legend(*panels[1].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def scale_techniques(found: list[Result]) -> Any:
    """Draw own CPU time and calls with all techniques, and with each of them disabled."""
    names = [one.name.split(".")[1] for one in found if one.name.endswith(".deploy.cpu")]
    stages = {"deploy": ("deploy",), "half and back": ("half", "back"), "delete": ("delete",)}
    figure, panels = _figure(2)
    for panel, read, title in ((panels[0], _cpu, "own CPU, s"), (panels[1], _calls, "calls")):
        groups: dict[str, list[float | None]] = {
            name.replace("-", " "): [sum(read(found, name, phase) for phase in phases) for phases in stages.values()]
            for name in dict.fromkeys(names)
        }
        _bars(panel, list(stages), groups)
        panel.set(title=title)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def _scaled(found: list[Result], variant: str, phase: str, what: str) -> float | None:
    name = f"{SCALE}{variant}.{phase}.{what}"
    return next((one.value for one in found if one.name == name), None)


def _cpu(found: list[Result], variant: str, phase: str) -> float:
    return _scaled(found, variant, phase, "cpu") or 0.0


def _calls(found: list[Result], variant: str, phase: str) -> float:
    params = next(one.params for one in found if one.name == f"{SCALE}{variant}.{phase}.cpu")
    return sum(float(str(count)) for name, count in params.items() if name.startswith("calls "))


def _seed_bars(known: dict[str, tuple[float, float]]) -> dict[str, list[float | None]]:
    return {
        f"seed (Go) {word}": [known[phase][place] if phase in known else None for phase in SCALE_PHASES]
        for place, word in enumerate(("before", "after"))
    }


def _bars(panel: Any, places: list[str], groups: dict[str, list[float | None]]) -> None:
    """Draw a group of bars at each place; None is no bar."""
    width = 0.8 / len(groups)
    for number, (colour, (label, values)) in enumerate(zip(COLOURS, groups.items())):
        at = [place + (number + 0.5) * width - 0.4 for place in range(len(places))]
        panel.bar(at, [0.0 if one is None else one for one in values], width, color=colour, label=label)
    panel.set_xticks(range(len(places)), places)
    panel.grid(visible=False, axis="x")
    panel.set_axisbelow(True)


def _figure(columns: int, **more: Any) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 4.2), layout="constrained")
    return figure, figure.subplots(1, columns, **more)


def _lines(found: list[Result], name: str, x: str, y: str | None = None) -> dict[str, list[tuple[float, float]]]:
    """Return points in order of x, grouped by the parameter `name`; y is the figure or another parameter."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for one in found:
        value = one.value if y is None else float(str(one.params[y]))
        lines.setdefault(str(one.params[name]), []).append((float(str(one.params[x])), value))
    return {key: sorted(points) for key, points in lines.items()}


def _plain_band(panel: Any, lines: dict[str, list[tuple[float, float]]]) -> None:
    """Draw all policies in plain Python as one band from the cheapest to the most expensive."""
    if not lines:
        return
    pods = [x for x, _ in next(iter(lines.values()))]
    costs = list(zip(*([y for _, y in line] for line in lines.values())))
    panel.fill_between(
        pods, [min(at) for at in costs], [max(at) for at in costs], color=COLOURS[0], alpha=0.25, label="plain Python"
    )


def _save(figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
    text = path.read_text("utf-8")
    head, tag, rest = text.partition("<defs>")
    text = head + STYLE + tag + rest
    text = text.replace(INK, "currentColor").replace(GRID, "var(--grid)")
    path.write_text("\n".join(line.rstrip() for line in text.splitlines()) + "\n", "utf-8")
