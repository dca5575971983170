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

pytestmark = pytest.mark.e2e

HOOKS = "import sys, setuptools.build_meta as hooks; print(getattr(hooks, 'build_' + sys.argv[1])(sys.argv[2]))"
SMALLEST = "listen: 127.0.0.1:0\nrevisions:\n  - {name: app, hosts: ['*'], pods: [127.0.0.1:9]}\n"


def run(words: list[str], cwd: Path) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ACTIVATOR_", "PYTHON"))}
    done = subprocess.run(
        words,
        cwd=cwd,
        env={**kept, "ACTIVATOR_COMPILE": "0"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"{words}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


def build(kind: str, source: Path, folder: Path) -> Path:
    folder.mkdir()
    return folder / run([sys.executable, "-c", HOOKS, kind, str(folder)], source).splitlines()[-1]


def sources_in(names: list[str]) -> list[str]:
    return sorted(name for name in names if name.endswith(".py") and name.partition("/")[0] in PACKAGES)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """An sdist, and the wheel that was built from it and nothing else."""
    folder = tmp_path_factory.mktemp("built")
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
    sdist = build("sdist", checkout, folder / "sdist")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    return sdist, build("wheel", unpacked, folder / "wheel")


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
