"""A long random life without a violation; and that the judge of it sees what it should."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from bench import trace
from tests.conftest import DEEP
from tests.data_plane.throttle.mutants import MUTANTS
from tests.sources import ROOT

EVENTS = 2_000_000 if DEEP else 60_000


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_promise_is_broken(seed: int) -> None:
    life = trace.Trace(seed)
    life.run(EVENTS // 3)
    for what in ("hand-overs", "exempted", "retries", "raised", "reloads", "failures", "ended: queue_timeout"):
        assert life.counts[what] > 20, f"the trace has seen too little of {what}"


def mutant(name: str) -> subprocess.CompletedProcess[str]:
    """In plain Python, where methods can be replaced, whatever world the suite runs in."""
    return subprocess.run(
        [sys.executable, "-m", "tests.data_plane.throttle.mutants", name],
        cwd=ROOT,
        env={**os.environ, "ACTIVATOR_COMPILE": "0"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize("name", list(MUTANTS))
def test_a_deliberate_bug_is_caught(name: str) -> None:
    done = mutant(name)
    assert done.returncode == 0, done.stdout + done.stderr


def test_without_a_bug_nothing_is_caught() -> None:
    done = mutant("none")
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout == "nothing was found\n"
