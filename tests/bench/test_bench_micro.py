"""`bench micro`: how figures become results, tables and pictures, and that allocations are counted truly."""

from __future__ import annotations

import shutil
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from bench import header, micro_run, micro_tables, plots
from bench.__main__ import MICRO_FIGURES, PLOTS, SCALE_FIGURES, main
from bench.allocations import allocations
from bench.processes import BenchError, UsageError
from bench.results import Document, Result, read, write
from bench.scale import VARIANTS
from tests.sources import ROOT


def benchmark(name: str = "test_pick[a]", **info: object) -> micro_run.Benchmark:
    statistics = micro_run.Statistics(min=1e-6, median=2e-6, rounds=3)
    return micro_run.Benchmark(name, "policies", statistics, dict(info))


def pick(policy: str, pods: int, load: str, value: float, **more: str | float) -> Result:
    params = {"policy": policy, "pods": pods, "load": load, "caller": "in_place", "group": "policies", **more}
    return Result(f"micro.in_place[{load}-{pods}-{policy}]", value, "ns", True, {"compiled": True, **params})


PICKS = [
    pick("random", 10, "idle", 10.04, bytes_per_op=0.0, blocks_per_op=0.0),
    pick("random", 10, "one_free", 16.0, bytes_per_op=8.0, blocks_per_op=0.001),
    pick("random", 100, "idle", 11.0),
    pick("scan", 10, "idle", 28_000.0),
]


def test_a_micro_benchmark_names_its_figure() -> None:
    one = micro_run.figure(benchmark(), compiled=True)
    assert (one.name, round(one.value, 6), one.unit) == ("micro.pick[a]", 2000.0, "ns")
    one = micro_run.figure(benchmark(figure=21.5, unit="ns", loop_ns=0.4), compiled=True)
    assert (one.value, one.params["loop_ns"], one.params["compiled"]) == (21.5, 0.4, True)
    one = micro_run.figure(benchmark(figure=200, unit="bytes", list=[1]), compiled=False)
    assert (one.name, one.value, one.unit) == ("micro.plain.pick[a]", 200.0, "bytes")
    assert one.params == {"compiled": False, "group": "policies"}


def test_picks_are_a_table_of_policies_and_sizes() -> None:
    title, rows = micro_tables.policies(PICKS)
    assert title == ["pick + reserve + release", "policy", "10 pods", "100 pods", "B/op", "blocks/op"]
    assert rows == [
        ["in place", "random", "10.0 / 16.0", "11.0 / -", "8", "0.001"],
        ["in place", "scan", "28,000 / -", "- / -", "-", "-"],
    ]


def test_every_group_has_its_table_and_the_seed_stands_beside() -> None:
    assert set(micro_tables.RENDERERS) == set(micro_run.GROUPS)
    printed = micro_tables.everything(PICKS)
    assert "policies, compiled" in printed
    assert "plain" not in printed
    assert "52.96 ns" in printed
    for file in micro_run.GROUPS.values():
        assert (ROOT / "bench" / "micro" / file).is_file()


def test_worlds() -> None:
    assert [micro_run._worlds(world, True) for world in micro_run.WORLDS] == [[True, False], [True], [False]]
    assert micro_run._worlds("both", False) == [False]
    with pytest.raises(BenchError, match="make build"):
        micro_run._worlds("compiled", False)


def test_allocations_are_counted() -> None:
    kept: list[list[bytes]] = []
    counted = allocations(lambda: kept.append([bytes(1_000) for _ in range(100)]), 100)
    if counted is None:
        assert not any(map(shutil.which, ("cc", "gcc", "clang")))
        return
    assert 1.0 <= counted.blocks < 1.3  # the list grows now and then
    assert 1_000 < counted.bytes < 1_150
    nothing = allocations(lambda: None, 100)
    assert nothing is not None
    assert nothing.blocks < 0.1


class Picture:
    """Stands for a figure of matplotlib's."""

    def savefig(self, path: Path, **_: object) -> None:
        path.write_text(f'<svg><defs></defs><text style="fill: {plots.INK}; stroke: {plots.GRID}"/> \n</svg>', "utf-8")


def test_a_picture_takes_its_ink_from_the_reader(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "picture.svg"
    plots._save(Picture(), path)
    text = path.read_text("utf-8")
    assert "fill: currentColor; stroke: var(--grid)" in text
    assert "prefers-color-scheme: dark" in text
    assert plots.INK not in text
    assert not any(line.endswith(" ") for line in text.splitlines())


def test_lines_are_in_order_of_x() -> None:
    assert plots._lines(list(reversed(PICKS)), "policy", "pods")["random"][0][0] == 10.0
    assert plots._lines(PICKS[:1], "policy", "pods", "pods") == {"random": [(10.0, 10.0)]}


def test_figures_that_are_missing_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for picture in (plots.pick_cost, plots.fragmentation):
        with pytest.raises(UsageError, match="bench micro --json"):
            picture([])
    path = tmp_path / "empty.json"
    write(str(path), Document(header.collect([]), []))
    assert main(["report", str(path), "--plots", str(tmp_path)]) == 2
    assert "bench" in capsys.readouterr().err


def test_the_pictures_in_the_documentation_are_whole() -> None:
    assert (ROOT / MICRO_FIGURES).is_file()
    assert (ROOT / SCALE_FIGURES).is_file()
    for page, name in (
        ("table.md", "pick-cost.svg"),
        ("table.md", "fragmentation.svg"),
        ("performance.md", "scale-phases.svg"),
        ("performance.md", "scale-techniques.svg"),
    ):
        root = ET.parse(ROOT / PLOTS / name).getroot()
        assert root.tag.endswith("svg")
        assert f"{PLOTS.removeprefix('docs/')}/{name}" in (ROOT / "docs" / page).read_text("utf-8")


def test_the_pictures_are_those_of_what_was_measured() -> None:
    assert set(plots.chosen(read(str(ROOT / MICRO_FIGURES)).results)) == {"pick-cost.svg", "fragmentation.svg"}
    scaled = read(str(ROOT / SCALE_FIGURES)).results
    assert set(plots.chosen(scaled)) == {"scale-phases.svg", "scale-techniques.svg"}
    for variant in VARIANTS:
        key = variant.name.replace(",", "").replace(" ", "-")
        assert plots._cpu(scaled, key, "deploy") > 0
        assert plots._calls(scaled, key, "deploy") > 0
