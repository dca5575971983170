"""`python -m bench crowd` and `trace` from end to end, small."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sources import ROOT


@pytest.mark.e2e
@pytest.mark.deep
@pytest.mark.parametrize(
    "words",
    [["crowd", "--clients", "50"], ["crowd", "--clients", "50", "--h2"], ["trace", "--events", "2000"]],
    ids=" ".join,
)
def test_it_measures_and_writes_its_figures(words: list[str], tmp_path: Path) -> None:
    written = tmp_path / "figures.json"
    done = subprocess.run(
        [sys.executable, "-m", "bench", *words, "--json", str(written)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(written.read_text())["results"]
    assert found
    assert all(one["name"].startswith(f"{words[0]}.") for one in found)
