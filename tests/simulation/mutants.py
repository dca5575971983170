"""Deliberate bugs of the protocol, one at a time: does the simulation find them?

    python -m tests.simulation.mutants               runs all of them, and names those that are not found
    python -m tests.simulation.mutants NAME          runs one: exit code 0 where it is found

Rules
  1. A mutant is one statement left out, or one condition turned round, of the sources below. Its name says where:
     module, function, and the how-manieth of its kind there.
  2. Each runs in a process of its own, in plain Python, through the same battery of scenarios and short storms. It is
     found when a rule does not hold, anything raises, or nothing ends in MUTANT_S.
"""

from __future__ import annotations

import ast
import importlib.abc
import importlib.machinery
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[2]
SOURCES: Final = {name: f"activator.data_plane.ownership.{name}" for name in ("borrowing", "lending", "member")}
MUTANT_S: Final = 120.0  # the battery takes 15 s on a calm machine


class Mutant(NamedTuple):
    """`name`: `lending.Lending.granted:leave-3`; `change(function, number)` makes the bug."""

    name: str
    module: str
    path: str  # of the function
    change: Callable[[ast.FunctionDef, int], None]
    number: int

    def tree(self) -> ast.Module:
        """The source with the bug."""
        tree = _parsed(self.module)
        (found,) = [one for where, one in _functions(tree, self.module.rpartition(".")[2]) if where == self.path]
        self.change(found, self.number)
        return ast.fix_missing_locations(tree)


def mutants() -> Iterator[Mutant]:
    """All of them, in the order of the sources."""
    for short, module in SOURCES.items():
        for path, function in _functions(_parsed(module), short):
            for number in range(_statements(function)):
                yield Mutant(f"{path}:leave-{number}", module, path, _leave_out, number)
            for number in range(_conditions(function)):
                yield Mutant(f"{path}:turn-{number}", module, path, _turn, number)


def _parsed(module: str) -> ast.Module:
    return ast.parse((ROOT / (module.replace(".", "/") + ".py")).read_text("utf-8"))


def _functions(tree: ast.AST, path: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{path}.{node.name}")
        elif isinstance(node, ast.FunctionDef):
            yield f"{path}.{node.name}", node


def _bodies(function: ast.FunctionDef) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(function):
        for field in ("body", "orelse", "finalbody"):
            body = getattr(node, field, None)
            if isinstance(body, list) and body and isinstance(body[0], ast.stmt):
                yield body


def _is_left_out(statement: ast.stmt) -> bool:
    """Descriptions, and what only says that there is nothing, make no difference."""
    is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return not is_text and not isinstance(statement, ast.Pass | ast.Assert | ast.Import | ast.ImportFrom)


def _statements(function: ast.FunctionDef) -> int:
    return sum(_is_left_out(one) for body in _bodies(function) for one in body)


def _leave_out(function: ast.FunctionDef, number: int) -> None:
    places = [(body, at) for body in _bodies(function) for at, one in enumerate(body) if _is_left_out(one)]
    body, at = places[number]
    body[at] = ast.copy_location(ast.Pass(), body[at])


def _tests(function: ast.FunctionDef) -> list[ast.If | ast.While | ast.IfExp]:
    return [node for node in ast.walk(function) if isinstance(node, ast.If | ast.While | ast.IfExp)]


def _conditions(function: ast.FunctionDef) -> int:
    return len(_tests(function))


def _turn(function: ast.FunctionDef, number: int) -> None:
    node = _tests(function)[number]
    node.test = ast.UnaryOp(ast.Not(), node.test)


# --- one of them ----------------------------------------------------------------------------------------------------


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads the mutant in place of its module."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._mutant.module:
            return None
        return importlib.util.spec_from_loader(fullname, self)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self._mutant.tree(), self._mutant.module, "exec"), module.__dict__)


def battery() -> None:
    """Raises where a rule does not hold."""
    from tests.simulation import scenarios
    from tests.simulation.storm import IN_ORDER, KINDS, REVISIONS_COME, storm

    storm(1, 3, 1.0, 0.0)
    for seed in range(3):
        scenarios.run_all(seed)
    for seed in range(10):
        storm(seed, 2 + seed % 4, 2.0, 6.0, KINDS, suspicions=0.3 * (seed % 2))
        storm(seed, 4, 2.0, 5.0, IN_ORDER)
        storm(seed, 2 + seed % 3, 2.0, 6.0, REVISIONS_COME)
    storm(2, 3, 2.0, 0.0)


def run_one(name: str) -> int:
    """0 where the bug is found."""
    found = [one for one in mutants() if one.name == name]
    if not found:
        print(f"there is no mutant {name}", file=sys.stderr)
        return 2
    importlib.import_module("lb")  # it puts a finder of its own in front, which decides what is compiled
    sys.meta_path.insert(0, _Finder(found[0]))
    try:
        battery()
    except Exception as error:
        print(f"{name}: {type(error).__name__}: {error}")
        return 0
    print(f"{name}: not found")
    return 1


def is_found(name: str) -> bool:
    """In a process of its own."""
    environment = {**os.environ, "ACTIVATOR_COMPILE": "0", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.simulation.mutants", name]
    try:
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=MUTANT_S, check=False)
    except subprocess.TimeoutExpired:
        return True  # it goes on for ever
    assert done.returncode in {0, 1}, done.stderr.decode()
    return done.returncode == 0


def main() -> int:
    if len(sys.argv) > 1:
        return run_one(sys.argv[1])
    names = [one.name for one in mutants()]
    lost = 0
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for name, found in zip(names, pool.map(is_found, names)):
            lost += not found
            if not found:
                print(name, flush=True)
    print(f"{len(names)} mutants, {lost} not found")
    return 0


if __name__ == "__main__":
    sys.exit(main())
