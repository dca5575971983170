"""The demo's picture fits a terminal of 80 columns and 24 lines, and its words can be typed as they stand."""

from __future__ import annotations

import io
from pathlib import Path
from typing import cast

import pytest
from rich.console import Console

from activator.data_plane.tables.apply import RevisionTables
from activator.demo.picture import PHASES, PlainLines, Snapshot, frame
from activator.demo.tour import command_name, summary
from tests.data_plane.proxy.proxy_fakes import World

WIDTH, HEIGHT = 80, 24
COLD_START = [(name, 12_345.6) for name in PHASES]
CLIENT = {"requests": 1_234_567, "rps": 123_456.7, "p50_ms": 1_234.56, "p99_ms": 12_345.67, "failures": 12}
RESULT = {
    "requests": 1_234_567,
    "failures": 0,
    "p50_ms": 1_234.56,
    "p99_ms": 12_345.67,
    "cold_start_ms": 12_345.67,
    "max_pods": 4,
    "compiled": False,
}


class Tables:
    """The tables that the snapshot reads."""

    def __init__(self, world: World) -> None:
        self.throttlers = {world.spec.key: world.throttler}


def snapshot(world: World, key: str = "ns/app") -> Snapshot:
    made = Snapshot(cast("RevisionTables", Tables(world)), key)
    made.begin("2 of 4: an act", "No process gets more than 8 requests at a time; the others wait. Look how they come.")
    return made


def drawn(shown: Snapshot) -> list[str]:
    console = Console(file=io.StringIO(), width=WIDTH, height=HEIGHT)
    console.print(frame(shown))
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue().splitlines()


def test_the_picture_is_always_as_high_and_fits() -> None:
    world = World()
    shown = snapshot(world)
    heights = {len(drawn(shown)), len(drawn(snapshot(world, "ns/none")))}
    for number in range(1, 5):
        world.pod(f"p{number}", limit=8)
        heights.add(len(drawn(shown)))
    shown.client = CLIENT
    shown.cold_start = COLD_START
    lines = drawn(shown)
    heights.add(len(lines))
    (height,) = heights
    assert height < HEIGHT
    assert max(map(len, lines)) <= WIDTH
    text = "\n".join(lines)
    for word in ("p1", "p4", "12,345.6 ms", "failures 12", *PHASES):
        assert word in text


def test_who_waits_and_for_what_is_shown() -> None:
    world = World()
    world.begin()
    world.begin()
    shown = snapshot(world)
    shown.asked_s = 1.0  # of the machine's clock: long ago
    text = "\n".join(drawn(shown))
    assert "2 requests  for a pod to become ready" in text
    assert "ms …" in text
    world.pod("p1", limit=1)
    assert "1 requests  for a slot to come free" in "\n".join(drawn(shown))
    assert shown.most_queued == 2


def test_plain_lines_tell_each_thing_once(capsys: pytest.CaptureFixture[str]) -> None:
    world = World()
    world.begin()
    shown = snapshot(world)
    shown.asked_s = 1.0
    lines = PlainLines()
    lines.show(shown)
    told = capsys.readouterr().out
    assert told.startswith("== 2 of 4: an act\n   No process")
    assert "1 requests wait for a pod to become ready" in told
    world.pod("p1")
    shown.cold_start = COLD_START
    lines.show(shown)
    told = capsys.readouterr().out
    assert "processes [0: ready], in flight 1, queued 0" in told
    assert "process starts 12,345.6 ms" in told
    lines.show(shown)
    assert capsys.readouterr().out == ""


def test_the_summary_fits_and_says_how_it_ended() -> None:
    shown = snapshot(World())
    shown.cold_start = COLD_START
    shown.back_at_zero = True
    lines = summary(RESULT, shown, ".venv/bin/activator")
    assert max(map(len, lines)) <= WIDTH
    assert len(lines) < HEIGHT
    assert "processes 0 -> 4 -> 0" in lines[0]
    shown.back_at_zero = False
    assert "some that were not stopped" in summary(RESULT, shown, "activator")[0]


def test_commands_are_shown_as_they_must_be_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / ".venv" / "bin" / "activator"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n", "utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", "/nowhere")
    python = program.with_name("python")
    assert command_name(str(program), tmp_path, python) == ".venv/bin/activator"
    assert command_name(str(program), Path("/usr"), python) == str(program)
    assert command_name("/somewhere/cli.py", tmp_path, python) == ".venv/bin/activator"
    assert command_name("/somewhere/cli.py", tmp_path, Path("/usr/bin/none")) == "/usr/bin/none -m activator.cli"
    monkeypatch.setenv("PATH", str(program.parent))
    assert command_name(str(program), Path("/usr"), python) == "activator"
