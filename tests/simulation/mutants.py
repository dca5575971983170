"""Deliberate bugs of the protocol, one at a time: does the simulation find them?

    python -m tests.simulation.mutants                 runs all of them, and names those that are not found
    python -m tests.simulation.mutants --list          only names them
    python -m tests.simulation.mutants NAME …          runs these, and says what each was found by

Exit code 0: all were found, other than those in `no_difference.py`.

Rules
  1. A mutant is one change of one function of the sources below: a statement left out (`leave`), a condition turned
     round (`turn`), an operand of `and` or `or` left out (`part`), a bound moved by one (`edge`), or a change that is
     written down in `by_hand.py` (`hand`).
  2. Its name is the function, the kind, and the text that is changed, so an edit elsewhere does not rename it.
  3. Each runs in a process of its own, in plain Python, through the same battery of scenarios and short storms. It is
     found when a rule does not hold, when anything raises, or when the battery takes more than MUTANT_CPU_S.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import multiprocessing
import os
import random
import resource
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import FrameType, ModuleType
from typing import Final, NamedTuple

from tests.simulation.by_hand import BY_HAND
from tests.simulation.no_difference import NO_DIFFERENCE, NOT_FOUND

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGE: Final = "activator.data_plane.ownership"
SOURCES: Final = ("borrowing", "lending", "member", "view")
MUTANT_CPU_S: Final = 30.0  # several times what the battery takes
MUTANT_BYTES: Final = 2 << 30  # a mutant that goes on for ever may collect things for as long
# Imported once, before the processes of the mutants are forked: what the sources use, and nothing that uses them.
SHARED: Final = (
    "lb",
    "activator.data_plane.tables.rebuild",
    f"{PACKAGE}.messages",
    f"{PACKAGE}.names",
    "lb.registry",
    "hashlib",
)


class OutOfTimeError(BaseException):
    """The mutant goes on for ever. Nothing on the way may take it for an error of its own."""


# --- what is changed ------------------------------------------------------------------------------------------------


class Site(NamedTuple):
    """A place of a function: the text that stands there, and what puts the bug there."""

    text: str
    change: Callable[[], None]


def _bodies(function: ast.FunctionDef) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(function):
        for field in ("body", "orelse", "finalbody"):
            body = getattr(node, field, None)
            if isinstance(body, list) and body and isinstance(body[0], ast.stmt):
                yield body


def _does_something(statement: ast.stmt) -> bool:
    """Descriptions, and what only says that there is nothing, make no difference."""
    is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return not is_text and not isinstance(statement, ast.Pass | ast.Assert | ast.Import | ast.ImportFrom)


def _leave(function: ast.FunctionDef) -> Iterator[Site]:
    def leave_out(body: list[ast.stmt], at: int) -> None:
        body[at] = ast.copy_location(ast.Pass(), body[at])

    if function.name == "__init__":
        return  # an attribute that is missing is no bug of the protocol
    for body in _bodies(function):
        for at, statement in enumerate(body):
            if _does_something(statement):
                yield Site(ast.unparse(statement), lambda body=body, at=at: leave_out(body, at))  # type: ignore[misc]


def _turn(function: ast.FunctionDef) -> Iterator[Site]:
    def turn(node: ast.If | ast.While | ast.IfExp) -> None:
        node.test = ast.UnaryOp(ast.Not(), node.test)

    for node in ast.walk(function):
        if isinstance(node, ast.If | ast.While | ast.IfExp):
            yield Site(ast.unparse(node.test), lambda node=node: turn(node))  # type: ignore[misc]


def _part(function: ast.FunctionDef) -> Iterator[Site]:
    def leave_out(node: ast.BoolOp, at: int) -> None:
        del node.values[at]
        if len(node.values) == 1:
            node.values *= 2  # `x and x`: fewer than two operands are no source

    for node in ast.walk(function):
        if isinstance(node, ast.BoolOp):
            for at in range(len(node.values)):
                text = f"{ast.unparse(node.values[at])} IN {ast.unparse(node)}"
                yield Site(text, lambda node=node, at=at: leave_out(node, at))  # type: ignore[misc]


_EDGES: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
}


def _edge(function: ast.FunctionDef) -> Iterator[Site]:
    def move(node: ast.Compare) -> None:
        node.ops[0] = _EDGES[type(node.ops[0])]()

    for node in ast.walk(function):
        if isinstance(node, ast.Compare) and type(node.ops[0]) in _EDGES:
            yield Site(ast.unparse(node), lambda node=node: move(node))  # type: ignore[misc]


def _hand(path: str, function: ast.FunctionDef) -> Iterator[Site]:
    def put(new: str) -> None:
        (written,) = ast.parse(new).body
        assert isinstance(written, ast.FunctionDef)
        function.body = written.body

    text = ast.unparse(function)
    for one in BY_HAND:
        if one.function == path:
            assert text.count(one.old) == 1, f"{path} must have this once, as ast.unparse writes it: {one.old}"
            yield Site(one.name, partial(put, text.replace(one.old, one.new)))


_KINDS: Final[dict[str, Callable[[ast.FunctionDef], Iterator[Site]]]] = {
    "leave": _leave,
    "turn": _turn,
    "part": _part,
    "edge": _edge,
}


class Mutant(NamedTuple):
    """`path`: of the function, with its module's last name, as in `lending.Lending.granted`; `at`: the how-manieth site
    of its kind there.
    """

    name: str
    path: str
    kind: str
    at: int

    @property
    def module(self) -> str:
        return f"{PACKAGE}.{self.path.partition('.')[0]}"

    def tree(self) -> ast.Module:
        """The source with the bug."""
        short = self.path.partition(".")[0]
        tree = _parsed(short)
        (found,) = [function for path, function in _functions(tree, short) if path == self.path]
        list(_sites(self.path, self.kind, found))[self.at].change()
        return ast.fix_missing_locations(tree)


def mutants() -> Iterator[Mutant]:
    """All of them, in the order of the sources."""
    for short in SOURCES:
        for path, function in _functions(_parsed(short), short):
            for kind in (*_KINDS, "hand"):
                named: Counter[str] = Counter()
                for at, site in enumerate(_sites(path, kind, function)):
                    text = site.text.partition("\n")[0]
                    named[text] += 1
                    more = f" #{named[text]}" if named[text] > 1 else ""
                    yield Mutant(f"{path}: {kind}: {text}{more}", path, kind, at)


def to_find() -> list[Mutant]:
    """All but those in `no_difference.py`."""
    return [one for one in mutants() if one.name not in NO_DIFFERENCE and one.name not in NOT_FOUND]


def some(count: int, seed: int) -> list[Mutant]:
    """So many of them."""
    return random.Random(seed).sample(to_find(), count)


def _sites(path: str, kind: str, function: ast.FunctionDef) -> Iterator[Site]:
    return _hand(path, function) if kind == "hand" else _KINDS[kind](function)


def _parsed(short: str) -> ast.Module:
    return ast.parse((ROOT / PACKAGE.replace(".", "/") / f"{short}.py").read_text("utf-8"))


def _functions(tree: ast.AST, path: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{path}.{node.name}")
        elif isinstance(node, ast.FunctionDef):
            yield f"{path}.{node.name}", node


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
    from tests.members import whole_storm
    from tests.simulation import corner_scenarios, scenarios
    from tests.simulation.storm import IN_ORDER, KINDS, LIMITS_COME, REVISIONS_COME, storm

    for seed in range(2):
        scenarios.run_all(corner_scenarios.CORNERS, seed)
    storm(1, 3, 1.0, 0.0)
    for seed in range(3):
        scenarios.run_all(scenarios.SCENARIOS, seed)
    for seed in range(8):
        storm(seed, 2 + seed % 4, 2.0, 6.0, KINDS, suspicions=0.3 * (seed % 2))
        storm(seed, 4, 2.0, 5.0, IN_ORDER)
        storm(seed, 2 + seed % 3, 2.0, 6.0, REVISIONS_COME)
        storm(seed, 2 + seed % 4, 2.0, 6.0, LIMITS_COME)
    storm(2, 3, 2.0, 0.0)
    for seed in range(3):
        whole_storm.storm(seed, whole_storm.STRICT)
        whole_storm.storm(100 + seed, whole_storm.PROMPT)


def _out_of_time(signum: int, frame: FrameType | None) -> None:
    raise OutOfTimeError


def found_by(mutant: Mutant) -> str:
    """What finds this bug; empty: nothing does. Run in a process of its own: the bug stays."""
    resource.setrlimit(resource.RLIMIT_AS, (MUTANT_BYTES, MUTANT_BYTES))
    signal.signal(signal.SIGVTALRM, _out_of_time)
    signal.setitimer(signal.ITIMER_VIRTUAL, MUTANT_CPU_S)
    sys.meta_path.insert(0, _Finder(mutant))  # before the one of `lb`, which decides what is compiled
    try:
        battery()
    except (Exception, OutOfTimeError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def run(chosen: Sequence[Mutant], jobs: int) -> Iterator[tuple[Mutant, str]]:
    """Each with what finds it. Nothing in this process may have imported the sources."""
    for name in SHARED:
        importlib.import_module(name)
    loaded = [name for name in sys.modules if name.startswith(PACKAGE) and name.rpartition(".")[2] in SOURCES]
    assert not loaded, f"already here: {loaded}"
    with multiprocessing.get_context("fork").Pool(jobs, maxtasksperchild=1) as pool:
        yield from zip(chosen, pool.imap(found_by, chosen, chunksize=1))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.mutants")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--list", action="store_true", help="only name them")
    parser.add_argument("--some", type=int, default=0, metavar="COUNT", help="so many of them, chosen by --seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    asked = parser.parse_args()
    chosen = some(asked.some, asked.seed) if asked.some else to_find()
    if asked.names:
        chosen = [one for one in mutants() if one.name in asked.names]
        if len(chosen) != len(set(asked.names)):
            print(f"there is no mutant {sorted(set(asked.names) - {one.name for one in chosen})}", file=sys.stderr)
            return 2
    if asked.list:
        print("\n".join(one.name for one in chosen))
        return 0
    lost = 0
    for mutant, found in run(chosen, asked.jobs):
        lost += not found
        if asked.names or not found:
            print(f"{mutant.name}\n    {found or 'NOT FOUND'}", flush=True)
    print(f"{len(chosen)} mutants, {lost} not found")
    return 1 if lost else 0


if __name__ == "__main__":
    os.environ["ACTIVATOR_COMPILE"] = "0"
    sys.exit(main())
