"""The two worlds: this run is in the one that was asked for, and a checkout's stale compiled files are refused."""

from __future__ import annotations

import importlib
import importlib.machinery
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import activator
import lb
from lb import world
from tests.sources import COMPILED_MODULES, ROOT

EXPECTED = os.environ.get("ACTIVATOR_EXPECT_COMPILED")


def test_the_world_is_the_one_that_was_asked_for() -> None:
    if EXPECTED is not None:
        assert int(lb.COMPILED) == int(EXPECTED)
    assert activator.COMPILED == lb.COMPILED


@pytest.mark.parametrize("name", COMPILED_MODULES)
def test_every_listed_module_is_in_this_world(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__file__ is not None
    is_compiled = module.__file__.endswith(tuple(importlib.machinery.EXTENSION_SUFFIXES))
    assert is_compiled == lb.COMPILED


def test_plain_python_can_be_had_wherever_compiled_files_lie() -> None:
    code = "import lb.table, activator.runtime.clock as clock; print(lb.COMPILED, lb.table.__file__, clock.__file__)"
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | {"ACTIVATOR_COMPILE": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    compiled, table_path, clock_path = result.stdout.split()
    assert compiled == "False"
    assert table_path.endswith("table.py")
    assert clock_path.endswith("clock.py")


@pytest.fixture
def stamped(tmp_path: Path) -> Callable[[str], Path]:
    """A checkout with one source and the stamp that is given for it."""

    def make(stamp: str) -> Path:
        (tmp_path / "lb").mkdir()
        (tmp_path / "lb" / "table.py").write_text("x = 1\n", "utf-8")
        (tmp_path / "lb" / world.STAMP_NAME).write_text(stamp, "utf-8")
        return tmp_path

    return make


def test_a_stamp_that_agrees_is_fresh(stamped: Callable[[str], Path]) -> None:
    root = stamped("# maker\n")
    digest = world.file_hash(str(root / "lb" / "table.py"))
    (root / "lb" / world.STAMP_NAME).write_text(f"# maker\n{digest} lb/table.py\n", "utf-8")
    assert world.stale_file(str(root)) is None


@pytest.mark.parametrize(
    ("stamp", "stale"),
    [
        pytest.param(f"# maker\n{'0' * 64} lb/table.py\n", "lb/table.py", id="edited"),
        pytest.param(f"{'0' * 64} lb/gone.py\n", "lb/gone.py", id="removed"),
    ],
)
def test_a_changed_source_is_named(stamped: Callable[[str], Path], stamp: str, stale: str) -> None:
    assert world.stale_file(str(stamped(stamp))) == stale


def test_compiled_files_without_a_stamp_are_stale(tmp_path: Path) -> None:
    assert world.stale_file(str(tmp_path)) == os.path.join("lb", world.STAMP_NAME)
