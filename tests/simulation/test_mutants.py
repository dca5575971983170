"""The simulation finds deliberate bugs of the protocol: some here, and all of them by `make deep` (`mutants.py`).

In a program of its own, since the sources must not have been imported where a bug is put into them.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.simulation.mutants import ROOT, battery, mutants, to_find
from tests.simulation.no_difference import NO_DIFFERENCE, NOT_FOUND

SOME = 8
WANTED = 200  # and there are more than three times as many


def run_mutants(*arguments: str, timeout_s: float) -> None:
    environment = {**os.environ, "ACTIVATOR_COMPILE": "0", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.simulation.mutants", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=timeout_s, check=False)
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
    print(done.stdout.decode())


def test_the_battery_finds_nothing_where_there_is_no_bug() -> None:
    battery()


def test_names_are_of_one_mutant_each_and_none_is_out_of_date() -> None:
    names = [one.name for one in mutants()]
    assert len(names) == len(set(names))
    assert not NO_DIFFERENCE.keys() & NOT_FOUND.keys()
    assert (NO_DIFFERENCE.keys() | NOT_FOUND.keys()) <= set(names)
    assert len(to_find()) >= WANTED


def test_some_bugs_are_found() -> None:
    run_mutants("--some", str(SOME), "--seed", "20261123", "--jobs", "1", timeout_s=300.0)


@pytest.mark.deep
def test_all_bugs_are_found() -> None:
    run_mutants(timeout_s=7_200.0)
