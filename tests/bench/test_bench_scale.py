"""`python -m bench scale`: what it takes, its tables, and a small run of all phases against the fake cluster."""

from __future__ import annotations

import json
import pstats
from pathlib import Path

import pytest

from bench import scale, scale_noop
from bench.__main__ import main
from bench.scale import Options, figures, noop_rows, rows
from bench.scale_noop import Noop
from bench.scale_run import PHASES, Phase

CALLS = {"get deployments/scale": 2, "patch deployments/scale": 3, "delete services": 1}


@pytest.mark.parametrize(("activations", "pods"), [("5001", "5001"), ("10", "5"), ("10", "25")])
def test_what_cannot_be_measured(activations: str, pods: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scale", "--activations", activations, "--pods", pods]) == 2
    assert capsys.readouterr().err.startswith("bench: --")


def test_tables_and_figures() -> None:
    phases = [Phase(name, 2.0, 0.5, CALLS, 10, 3, 7) for name in PHASES]
    title, lines = rows(phases)
    assert [line[0] for line in lines] == [*PHASES, "total"] and {len(line) for line in lines} == {len(title)}
    assert lines[0][title.index("waiting s")] == "1.500" and lines[0][title.index("writes")] == "4"
    assert lines[0][title.index("seed s")] == "CPU 14.98 -> 10"
    noop = Noop(500, 20.0, None)
    assert noop_rows([noop]) == (["objects", "us", "allocations", "bytes"], [["500", "20.0", "-", "-"]])
    found = {one.name: one for one in figures(Options(), {"all techniques": phases}, [noop])}
    assert found["scale.all-techniques.deploy.cpu"].value == 0.5
    assert found["scale.all-techniques.deploy.writes"].params["calls get deployments/scale"] == 2
    assert found["scale.noop.500"].value == 20.0


def test_an_event_that_changes_nothing_writes_nothing_whatever_the_number_of_objects() -> None:
    few, many = scale_noop.run([100, 1_000])
    assert few.event_us < 500 and many.event_us < 3 * few.event_us


@pytest.mark.e2e
def test_all_phases_of_a_small_run(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    assert scale.run(Options(4, 8, 2, 2, 0.1, is_brief=True), str(file)) == 0
    found = {one["name"]: one["value"] for one in json.loads(file.read_bytes())["results"]}
    assert found["scale.all-techniques.steady.writes"] == 0
    assert all(found[f"scale.all-techniques.{phase}.writes"] > 0 for phase in ("deploy", "half", "back"))


@pytest.mark.e2e
@pytest.mark.deep
def test_each_phase_leaves_its_profile_and_each_technique_is_switched_off_once(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    assert scale.run(Options(4, 8, 2, 2, 0.1, profiles=str(tmp_path)), str(file)) == 0
    assert {one.name for one in tmp_path.glob("*.prof")} == {f"scale-{phase}.prof" for phase in PHASES}
    for phase in PHASES:
        assert pstats.Stats(str(tmp_path / f"scale-{phase}.prof")).total_tt > 0  # type: ignore[attr-defined]
    found = {one["name"] for one in json.loads(file.read_bytes())["results"]}
    for variant in scale.VARIANTS:
        key = variant.name.replace(",", "").replace(" ", "-")
        assert {f"scale.{key}.{phase}.cpu" for phase in PHASES} <= found
