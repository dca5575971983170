"""Where the output of programs goes: the memory of the last lines, files that are renamed, our own streams."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activator.control_plane.sources.process.program_log import (
    FILE_LINES_MAX,
    HISTORY_BYTES_MAX,
    HISTORY_LINES_MAX,
    FileSettings,
    History,
    LogFile,
    ProgramLog,
    Terminal,
)
from tests.manual_clock import ManualClock


@given(st.lists(st.sampled_from([1, 7, 300, 5_000]), max_size=120), st.integers(0, 130))
def test_the_last_lines_are_kept_and_those_missed_are_counted(sizes: list[int], after: int) -> None:
    history = History()
    for number, size in enumerate(sizes, 1):
        history.add(float(number), "p", "stderr", "x" * size)
    kept: list[int] = []
    total = 0
    for number in range(len(sizes), 0, -1):
        total += sizes[number - 1]
        if total > HISTORY_BYTES_MAX or len(kept) == HISTORY_LINES_MAX:
            break
        kept.insert(0, number)
    lines, missed = history.after(after)
    assert [line.number for line in lines] == [number for number in kept if number > after]
    assert missed == len([number for number in range(after + 1, len(sizes) + 1) if number not in kept])
    assert history.last == len(sizes)


def test_many_short_lines_are_bounded_too() -> None:
    history = History()
    for _ in range(3 * HISTORY_LINES_MAX):
        history.add(0.0, "p", "stdout", "a")
    lines, missed = history.after(0)
    assert (len(lines), missed) == (HISTORY_LINES_MAX, 2 * HISTORY_LINES_MAX)


def test_a_file_is_renamed_when_it_is_full(tmp_path: Path) -> None:
    path = tmp_path / "p.log"
    file = LogFile(FileSettings(str(path), 1_000, 2))
    for number in range(100):
        file.write(f"app#1 line {number:03}")
    file.close()
    file.wait_closed(10.0)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["p.log", "p.log.1", "p.log.2"]
    text = "".join((tmp_path / name).read_text() for name in ("p.log.2", "p.log.1", "p.log"))
    numbers = [int(line.rpartition(" ")[2]) for line in text.splitlines()]
    assert numbers == list(range(numbers[0], 100))
    assert all(one.stat().st_size <= 1_000 for one in tmp_path.iterdir())
    assert file.lost_lines == 0


def test_a_file_that_cannot_be_written_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = LogFile(FileSettings(str(tmp_path / "missing" / "p.log"), 1_000, 2))
    with caplog.at_level(logging.ERROR, "activator.process"):
        for _ in range(5):
            file.write("a")
        file.close()
        file.wait_closed(10.0)
    assert len(caplog.records) == 1 and "p.log cannot be written" in caplog.text


def test_a_disk_that_hangs_costs_lines_and_nobody_waits(tmp_path: Path) -> None:
    pipe = tmp_path / "p.log"
    os.mkfifo(pipe)  # opening it waits for a reader, as a disk that hangs does
    file = LogFile(FileSettings(str(pipe), 1_000_000, 2))
    for _ in range(FILE_LINES_MAX + 500):
        file.write("a line")
    assert 450 <= file.lost_lines <= 500
    with pipe.open("rb") as reader:
        file.close()
        seen = reader.read()
    file.wait_closed(10.0)
    assert seen.count(b"a line") + file.lost_lines == FILE_LINES_MAX + 500


def test_lines_carry_the_name_of_their_process(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    clock = ManualClock()
    terminal = Terminal()
    program = ProgramLog(terminal, clock.now)
    program.configure(True, FileSettings(str(tmp_path / "p.log"), 10_000, 1))
    program.add_line("default/app#1", "stdout", b"\x1b[32mgreen\x1b[0m")
    program.add_line("team/app#2", "stderr", b"\xff\x00odd")
    program.configure(False, None)
    program.add_line("default/app#1", "stdout", b"not shown")
    clock.pass_time(2.0)
    terminal.close()
    program.close(10.0)
    out, err = capfd.readouterr()
    assert out == "app#1 | \x1b[32mgreen\x1b[0m\n"
    assert err.endswith("odd\n") and err.startswith("team/app#2 | ")
    shown = program.after(0)
    assert [line["text"] for line in shown["lines"]] == ["green", "\ufffd\\x00odd", "not shown"]
    assert [line["age_s"] for line in shown["lines"]] == [2.0, 2.0, 2.0]
    assert program.after(2)["lines"][0]["text"] == "not shown" and program.after(3)["lines"] == []
