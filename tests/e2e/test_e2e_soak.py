"""A short run of the endurance test (`make soak HOURS=1`): a few disturbances, and all of its judges."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.running import ROOT, eventually, state_of
from tests.soak.__main__ import Length, run

SHORT = Length(warm_up=8.0, rest=12.0, settle=2.0, stream=(0.5, 3.0))
BEGUN_S = 60.0  # until the clients are at work, on a busy machine
ENDED_S = 150.0  # until a run has ended: streams end first, and a disturbance that goes on


@pytest.mark.deep
def test_nothing_is_violated_in_a_short_run(tmp_path: Path) -> None:
    violations, text = run(tmp_path, seed=16, length=SHORT, pause_s=0.3)
    print(text)
    assert violations == []
    assert "|upgrade|" in text and "|kept|ok|" in text


@pytest.mark.deep
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_run_that_is_ended_leaves_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "tests.soak", "--hours", "0.1", "--seed", "5"]
    before = signal.signal(number, signal.SIG_DFL)  # under nohup, SIGHUP is ignored
    process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "TMPDIR": str(tmp_path)})
    signal.signal(number, before)
    try:
        eventually(lambda: any("begin" in path.read_text() for path in tmp_path.glob("soak-*/record-app")), "", BEGUN_S)
        process.send_signal(number)
        assert process.wait(ENDED_S) == 128 + number
        assert list(tmp_path.iterdir()) == []
        assert of_folder(tmp_path) == []
    finally:
        process.kill()
        process.wait()
        for pid in of_folder(tmp_path):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def of_folder(folder: Path) -> list[int]:
    """The living processes whose temporary files are in a folder."""
    sought = f"TMPDIR={folder}".encode()
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                if sought in Path(f"/proc/{name}/environ").read_bytes() and state_of(int(name)) != "Z":
                    found.append(int(name))
    return found
