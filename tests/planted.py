"""Plants each bug of `planted.csv` in a copy of the sources and runs the tests that found it.

    ACTIVATOR_COMPILE=0 python -m tests.planted          runs all bugs
    ACTIVATOR_COMPILE=0 python -m tests.planted 3 17     runs the bugs of these numbers

Exit code 0: each bug that has a test file in the column `found_by` is still found by a test of that file, and no row is
out of date. A run that takes more than TIMEOUT_S counts as found.

Rules
  1. A bug replaces one line of one function. The names of the file and the function and the text of the line identify
     the place, so edits elsewhere do not matter.
  2. A row is out of date if its place does not exist exactly once, or if its test file does not exist. Such a row is
     reported and not run: correct it, so that it plants the same bug, and run it.
  3. The columns `old` and `new` tell whether the former and the present default suite find the bug.
"""

from __future__ import annotations

import argparse
import ast
import csv
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from tests.sources import ROOT

LIST: Final = ROOT / "tests/planted.csv"
TIMEOUT_S: Final = 240.0  # several times what the slowest file takes
LEFT_OUT: Final = shutil.ignore_patterns(".*", "build", "dist", "__pycache__", "*.so")


class Bug(NamedTuple):
    """A row of the list: the line and what replaces it, without indentation."""

    number: str
    file: str
    function: str
    line: str
    bug: str
    new: str  # "found" or "missed"
    found_by: str  # a test file; empty if the tests do not find the bug


def bugs() -> list[Bug]:
    with LIST.open(encoding="utf-8", newline="") as file:
        return [Bug(*(row[name] for name in Bug._fields)) for row in csv.DictReader(file)]


def _functions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for child in ast.iter_child_nodes(node):
        name = prefix
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            name = f"{prefix}.{child.name}".lstrip(".")
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield name, child
        yield from _functions(child, name)


def _places(source: str, bug: Bug) -> list[int]:
    """Return the indexes of the lines that the row names: one, unless it is out of date."""
    lines = source.splitlines()
    return [
        at
        for name, node in _functions(ast.parse(source))
        for at in range(node.lineno, node.end_lineno or 0)
        if name == bug.function and lines[at].strip() == bug.line
    ]


def with_bug(source: str, bug: Bug) -> str:
    """Return the source with the bug in it. Its row must not be out of date."""
    lines = source.splitlines(keepends=True)
    (at,) = _places(source, bug)
    lines[at] = lines[at].replace(bug.line, bug.bug)
    return "".join(lines)


def out_of_date(bug: Bug) -> str:
    """Return why the row cannot be used with the present sources; an empty string if it can."""
    path = ROOT / bug.file
    if not path.is_file():
        return f"{bug.file} does not exist"
    count = len(_places(path.read_text("utf-8"), bug))
    if count != 1:
        return f"{bug.file}, {bug.function}: `{bug.line}` occurs {count} times, expected once"
    if bug.line == bug.bug:
        return "the bug changes nothing"
    if (bug.new == "found") != bool(bug.found_by):
        return f"`new` is {bug.new} and `found_by` is {bug.found_by or 'empty'}"
    if bug.found_by and not (ROOT / bug.found_by).is_file():
        return f"{bug.found_by} does not exist"
    return ""


def is_found(tree: Path, bug: Bug) -> bool:
    """Run the tests of a bug in `tree`, with the bug in its file; True if one fails or they take too long."""
    path = tree / bug.file
    path.write_text(with_bug(path.read_text("utf-8"), bug), "utf-8")
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", bug.found_by]
    environment = {**os.environ, "PYTHONPATH": str(tree), "ACTIVATOR_COMPILE": "0"}
    process = subprocess.Popen(
        command, cwd=tree, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        return process.wait(TIMEOUT_S) == 1
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return True
    finally:
        shutil.copy2(ROOT / bug.file, path)  # with its time: what was compiled with the bug is out of date


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.planted")
    parser.add_argument("numbers", nargs="*")
    numbers = parser.parse_args().numbers
    chosen = [bug for bug in bugs() if not numbers or bug.number in numbers]
    stale = {bug: reason for bug in chosen if (reason := out_of_date(bug))}
    wanted = [bug for bug in chosen if bug.found_by and bug not in stale]
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        shutil.copytree(ROOT, tree, ignore=LEFT_OUT)
        missed = [bug for bug in wanted if not is_found(tree, bug)]
    for bug in missed:
        print(f"{bug.number}: {bug.file}, {bug.function}: `{bug.bug}` is not found by {bug.found_by}")
    print(f"{len(wanted) - len(missed)} of {len(wanted)} bugs are found")
    for bug, reason in stale.items():
        print(f"{bug.number} is out of date: {reason}")
    return int(bool(missed or stale))


if __name__ == "__main__":
    sys.exit(main())
