"""No test replaces an attribute of a module: probes, clocks and generators are handed in.

Patched globals are not seen by compiled code, and one that is forgotten hides what it was put before: the seed of this
project had a leaked mock that hid its detection of reused addresses.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
from pathlib import Path

import pytest

from tests.sources import ROOT

TESTS = sorted((ROOT / "tests").rglob("*.py"))
# How many there are that have their reason; each is put back by pytest.
EXCUSED = {
    # The library takes its files from where only a cluster has them.
    "tests/kubernetes/test_kube_credentials.py": 1,
    # The interpreter's own hook for exceptions that no caller sees, which is there to be replaced.
    "tests/runtime/test_certificates.py": 1,
}


def modules_named_in(tree: ast.AST) -> set[str]:
    """The names that stand for modules in a file."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names |= {alias.asname or alias.name for alias in node.names if is_module(f"{node.module}.{alias.name}")}
    return names


@functools.cache
def is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ModuleNotFoundError, ValueError):
        return False


def patches(source: str) -> list[int]:
    """The lines that replace an attribute of a module, or use what is made for that."""
    tree = ast.parse(source)
    modules = modules_named_in(tree)
    lines = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            told = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
            if any(name.startswith("unittest.mock") or name == "mock" for name in told):
                lines.append(node.lineno)
        elif isinstance(node, ast.Call) and _name_of(node.func) in {"setattr", "delattr"} and node.args:
            target = node.args[0]
            if isinstance(target, ast.Constant) or _root_of(target) in modules:
                lines.append(node.lineno)
        elif isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(target, ast.Attribute) and _root_of(target.value) in modules for target in targets):
                lines.append(node.lineno)
    return lines


def _name_of(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _root_of(target: ast.expr) -> str:
    """`a` of `a.b.c`, where every step may be a module; empty for anything else."""
    while isinstance(target, ast.Attribute):
        target = target.value
    return target.id if isinstance(target, ast.Name) else ""


@pytest.mark.parametrize("path", TESTS, ids=[str(path.relative_to(ROOT)) for path in TESTS])
def test_no_test_replaces_an_attribute_of_a_module(path: Path) -> None:
    assert len(patches(path.read_text("utf-8"))) == EXCUSED.get(path.relative_to(ROOT).as_posix(), 0)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import time\ntime.monotonic = None", [2]),
        ("from activator import config\nconfig.POD_IDLE_S = 1.0", [2]),
        ("from activator import config\nmonkeypatch.setattr(config, 'POD_IDLE_S', 1.0)", [2]),
        ("monkeypatch.setattr('lb.COMPILED', True)", [1]),
        ("import lb.table\nsetattr(lb.table, 'RELEASED', 3)", [2]),
        ("from unittest.mock import patch", [1]),
        ("from unittest import mock", [1]),
        ("import os\nvalue = os.sep", []),
        ("from activator.config import Config\nConfig.x = 1", []),
        ("thing.attribute = 1\nmonkeypatch.setenv('A', 'b')", []),
    ],
)
def test_what_is_found(source: str, found: list[int]) -> None:
    assert patches(source) == found
