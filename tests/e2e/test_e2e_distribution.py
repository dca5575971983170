"""The distribution: an sdist, the wheel from it, both in plain Python, installed where nothing of the checkout is.

What build frontends call is called here (setuptools' hooks), and what the program needs is lent by this environment, so
that no index is asked. `make wheel` builds the compiled one, as an index takes it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import activator
from tests.sources import PACKAGES, PRODUCT_FILES, ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.deep]

HOOKS = "import sys, setuptools.build_meta as hooks; print(getattr(hooks, 'build_' + sys.argv[1])(sys.argv[2]))"
SMALLEST = "listen: 127.0.0.1:0\nrevisions:\n  - {name: app, hosts: ['*'], pods: [127.0.0.1:9]}\n"


def run(words: list[str], cwd: Path, **variables: str) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ACTIVATOR_", "PYTHON"))}
    done = subprocess.run(
        words,
        cwd=cwd,
        env={**kept, **(variables or {"ACTIVATOR_COMPILE": "0"})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"{words}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


def build(kind: str, source: Path, folder: Path, **variables: str) -> Path:
    folder.mkdir()
    return folder / run([sys.executable, "-c", HOOKS, kind, str(folder)], source, **variables).splitlines()[-1]


def sources_in(names: list[str]) -> list[str]:
    return sorted(name for name in names if name.endswith(".py") and name.partition("/")[0] in PACKAGES)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """An sdist, and the wheel that was built from it and nothing else."""
    folder = tmp_path_factory.mktemp("built")
    checkout = fresh_checkout(folder)
    sdist = build("sdist", checkout, folder / "sdist")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    return sdist, build("wheel", unpacked, folder / "wheel")


def fresh_checkout(folder: Path) -> Path:
    checkout = folder / "checkout"
    checkout.mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        (checkout / name).write_bytes((ROOT / name).read_bytes())
    for path in PRODUCT_FILES:
        place = checkout / path.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(path.read_bytes())
    for package in PACKAGES:
        (checkout / package / "py.typed").touch()
    return checkout


def test_both_hold_the_program_and_nothing_else(built: tuple[Path, Path]) -> None:
    sdist, wheel = built
    ours = sorted(path.relative_to(ROOT).as_posix() for path in PRODUCT_FILES)
    with tarfile.open(sdist) as archive:
        inside = [name.partition("/")[2] for name in archive.getnames()]
    assert sources_in(inside) == ours
    assert {"pyproject.toml", "setup.py", "README.md", "LICENSE"} <= set(inside)
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert sources_in(names) == ours
    others = {name for name in names if name.partition("/")[0] not in PACKAGES}
    assert all(name.partition("/")[0].endswith(".dist-info") for name in others)
    assert wheel.name == f"activator_proxy-{activator.__version__}-py3-none-any.whl"


def test_it_runs_where_it_is_installed(built: tuple[Path, Path], tmp_path: Path) -> None:
    home = tmp_path / "environment"
    venv.create(home, with_pip=True)
    python = home / "bin" / "python"
    run([str(python), "-m", "pip", "install", "-q", "--no-deps", "--no-index", str(built[1])], tmp_path)
    # What it needs, from here: a line of a .pth file, which does not read the .pth files there (ours among them).
    (lent,) = {str(Path(path)) for path in sys.path if path.endswith("site-packages")}
    (site_packages,) = home.glob("lib/*/site-packages")
    (site_packages / "lent.pth").write_text(lent + "\n", "utf-8")
    (tmp_path / "activator.yaml").write_text(SMALLEST, "utf-8")
    program = str(home / "bin" / "activator")
    assert run([program, "version"], tmp_path) == f"activator {activator.__version__} (plain Python)\n"
    assert run([program, "check", "activator.yaml"], tmp_path) == "activator.yaml: fine, 1 revision\n"
    where = run([str(python), "-c", "import activator, lb; print(activator.__file__, lb.__file__)"], tmp_path)
    assert where.count(str(home)) == 2


KILLED = """#!/bin/sh
case "$*" in *probe.c*) exec cc "$@";; esac
kill -KILL $$
"""


def test_a_compiler_that_is_killed_makes_no_wheel_that_says_compiled(tmp_path: Path) -> None:
    """The probe finds a compiler, as `make wheel` does; then it dies, as where memory runs out."""
    checkout = fresh_checkout(tmp_path)
    text = (checkout / "pyproject.toml").read_text("utf-8")
    start = text.index("include = [", text.index("[tool.activator.compile]"))
    end = text.index("]", start) + 1
    (checkout / "pyproject.toml").write_text(text[:start] + 'include = ["lb/rng.py"]' + text[end:], "utf-8")
    compiler = tmp_path / "cc"
    compiler.write_text(KILLED, "utf-8")
    compiler.chmod(0o755)
    wheel = build("wheel", checkout, tmp_path / "wheel", CC=str(compiler))
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (about,) = [name for name in names if name.endswith("/WHEEL")]
        assert "Root-Is-Purelib: true" in archive.read(about).decode()
    assert not [name for name in names if name.endswith(".so")]
    with pytest.raises(AssertionError, match="error: not compiled"):
        build("wheel", checkout, tmp_path / "demanded", CC=str(compiler), ACTIVATOR_COMPILE="1")


def test_whether_compiling_is_possible_is_asked_without_setuptools(tmp_path: Path) -> None:
    """A fresh clone may have an old setuptools, or none: that is no machine without a compiler."""
    (tmp_path / "setuptools").mkdir()
    (tmp_path / "setuptools" / "__init__.py").write_text("raise ImportError('none')", "utf-8")
    run([sys.executable, "setup.py", "-q", "can_compile"], ROOT, PYTHONPATH=str(tmp_path))
    with pytest.raises(AssertionError):
        run([sys.executable, "setup.py", "-q", "can_compile"], ROOT, PYTHONPATH=str(tmp_path), CC="false")


def test_the_test_of_the_wheel_finds_a_wheel_that_lies(built: tuple[Path, Path], tmp_path: Path) -> None:
    home = tmp_path / "environment"
    venv.create(home, with_pip=True)
    python = str(home / "bin" / "python")
    run([python, "-m", "pip", "install", "-q", "--no-deps", "--no-index", str(built[1])], tmp_path)
    (lent,) = {str(Path(path)) for path in sys.path if path.endswith("site-packages")}
    (site_packages,) = home.glob("lib/*/site-packages")
    (site_packages / "lent.pth").write_text(lent + "\n", "utf-8")
    words = [python, "-I", str(ROOT / "tests" / "wheel.py")]
    assert "the wheel: plain" in run([*words, "plain", str(ROOT / "pyproject.toml")], tmp_path)
    with pytest.raises(AssertionError, match="the wheel says plain and is plain, expected compiled"):
        run([*words, "compiled", str(ROOT / "pyproject.toml")], tmp_path)
    (about,) = site_packages.glob("activator_proxy-*.dist-info/WHEEL")
    about.write_text(about.read_text("utf-8").replace("Purelib: true", "Purelib: false"), "utf-8")
    with pytest.raises(AssertionError, match="the wheel says compiled and is plain"):
        run([*words, "compiled", str(ROOT / "pyproject.toml")], tmp_path)
