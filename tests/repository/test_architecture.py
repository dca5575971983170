"""The walls: what import-linter cannot say about names, imports and the list of compiled modules."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.sources import COMPILED_SOURCES, PACKAGES, PRODUCT_FILES, PRODUCT_MODULES, ROOT, module_of

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
# `__main__` runs the program when it is imported.
IMPORTABLE = [name for name in PRODUCT_MODULES if not name.endswith("__main__")]
LINES_MAX = 500  # of a file
METHODS_MAX = 45  # of a class
HOT_FOLDERS = ("lb", "activator/codec/http1", "activator/data_plane/throttle", "activator/data_plane/upstream")


# Imports each module in a process of its own, forked from one that has imported only what is not ours.
FORKING = """
import importlib, os, sys, traceback
for name in ("aiohttp", "asyncio", "msgspec", "prometheus_client", "uvloop", "yaml"):
    importlib.import_module(name)
for name in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        try:
            importlib.import_module(name)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1] != 0:
        print(name, flush=True)
"""


def test_every_module_imports_alone() -> None:
    """A hidden cycle, or a module that relies on another one's imports, shows; warnings are errors."""
    command = [sys.executable, "-W", "error", "-c", FORKING, *IMPORTABLE]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0 and result.stdout.split() == [], result.stderr


def test_what_is_compiled_imports_with_what_an_isolated_build_has() -> None:
    """A wheel is built where only the build's requirements are installed; with one import more it is not compiled."""
    requires = [re.split(r"[=\[]", one)[0] for one in PYPROJECT["build-system"]["requires"]]
    code = f"""
import importlib, importlib.abc, sys
allowed = {{*sys.stdlib_module_names, "lb", "activator", *{requires}}}
class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in allowed:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Finder())
for name in {sorted(module_of(ROOT / source) for source in COMPILED_SOURCES)}:
    importlib.import_module(name)
"""
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_no_compiled_struct_has_a_tag() -> None:
    """mypyc leaves out the keywords of a class: its messages could not be told apart on the wire."""
    lost = [
        f"{source}: {node.name}"
        for source in COMPILED_SOURCES
        for node in ast.walk(ast.parse((ROOT / source).read_text("utf-8")))
        if isinstance(node, ast.ClassDef) and any(one.arg == "tag" for one in node.keywords)
    ]
    assert lost == []


def test_importing_the_package_is_cheap() -> None:
    heavy = ["uvloop", "httptools", "aiohttp", "prometheus_client", "msgspec", "yaml", "rich", "asyncio"]
    code = f"import activator, sys; print([name for name in {heavy} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_no_file_is_named_after_nothing() -> None:
    vague = {"utils", "util", "helpers", "helper", "common", "misc", "base"}
    assert [path for path in PRODUCT_FILES if path.stem in vague] == []


def test_no_file_and_no_class_is_too_long() -> None:
    for path in PRODUCT_FILES:
        source = path.read_text("utf-8")
        assert len(source.splitlines()) <= LINES_MAX, f"{path}: split it"
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ClassDef):
                methods = sum(isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) for one in node.body)
                assert methods <= METHODS_MAX, f"{path}: {node.name} has {methods} methods: split it"


def test_every_hot_file_is_compiled() -> None:
    hot = {path.relative_to(ROOT) for folder in HOT_FOLDERS for path in (ROOT / folder).rglob("*.py")}
    left_out = {path.as_posix() for path in hot - set(COMPILED_SOURCES) if path.name != "__init__.py"}
    assert left_out <= set(PYPROJECT["tool"]["activator"]["compile"]["exclude"])


def test_every_exclusion_has_its_reason() -> None:
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    names = "dependencies|kubernetes|tracing|all|dev|docs|bench|dist|requires|exclude|ignore"
    lists = re.compile(rf"^(?:{names}) = \[\n(.*?)^\]", re.MULTILINE | re.DOTALL)
    for block in lists.findall(text):
        for line in block.splitlines():
            if line.strip().startswith('"') and '"pytest==' not in line:
                assert "  # " in line, f"no reason given: {line.strip()}"


def imports_of(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None, f"{path}: relative import"
            names.add(node.module)
    return {name.partition(".")[0] for name in names}


@pytest.mark.parametrize("path", [path for path in PRODUCT_FILES if path.is_relative_to(ROOT / "lb")], ids=module_of)
def test_lb_imports_the_standard_library_and_mypy_extensions_only(path: Path) -> None:
    assert imports_of(path) - set(sys.stdlib_module_names) <= {"lb", "mypy_extensions"}


def test_every_room_has_its_layer() -> None:
    layers = " ".join(PYPROJECT["tool"]["importlinter"]["contracts"][0]["layers"])
    rooms = {".".join(name.split(".")[:2]) for name in PRODUCT_MODULES if name.startswith("activator.")}
    assert sorted(rooms - set(re.findall(r"[\w.]+", layers))) == []


def test_the_wheel_holds_our_packages_only() -> None:
    found = PYPROJECT["tool"]["setuptools"]["packages"]["find"]["include"]
    assert found == [pattern for package in PACKAGES for pattern in (package, f"{package}.*")]
    for package in PACKAGES:
        for folder in {path.parent for path in (ROOT / package).rglob("*.py")}:
            assert (folder / "__init__.py").exists(), f"{folder} would be left out of the wheel"


def test_fields_of_a_head_are_changed_by_its_listener_only() -> None:
    """All others make other fields of them: a retry would send what was edited for the attempt before."""
    changed = re.compile(r"\.headers\.block \+?= ")
    found = [path for path in (ROOT / "activator").rglob("*.py") if changed.search(path.read_text("utf-8"))]
    assert found == [ROOT / "activator/data_plane/headers/forwarding.py"]
