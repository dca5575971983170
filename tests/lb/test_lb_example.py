"""A policy of somebody else's: installed as a package, found by its name or its path, under contract, in this world."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import lb
from tests.sources import ROOT

EXAMPLE = ROOT / "examples" / "lb_policy"
Run = Callable[..., str]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs the Python of an environment in which the example is installed; nothing is asked of any network."""
    folder = tmp_path_factory.mktemp("installed")
    shutil.copytree(EXAMPLE, folder / "source", ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"))
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
    python = folder / "venv" / "bin" / "python"
    site = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    install = ["install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--target", site]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    subprocess.run(
        [sys.executable, "-m", "pip", *install, str(folder / "source")],
        check=True,
        cwd=folder,
        env=environ | {"PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
    )
    # What the example runs with: ours, and what the tests run with.
    known = [str(ROOT), *(path for path in sys.path if path.endswith("-packages"))]
    Path(site, "known.pth").write_text("\n".join(known), "utf-8")

    def run_python(*words: str, code: int = 0) -> str:
        result = subprocess.run(
            [python, *words], capture_output=True, text=True, cwd=folder, env=environ, check=False, timeout=300
        )
        assert result.returncode == code, result.stdout + result.stderr
        return result.stdout + result.stderr

    return run_python


TABLE = """
import lb
from lb.registry import create, names
from lb.rng import Rng
from lb.table import TrackerTable
from lb.tracker import READY

assert "emptiest" in names()
for name in ("emptiest", "emptiest_policy:Emptiest"):
    policy = create(name, Rng(1))
    assert policy.name == "emptiest"
    table = TrackerTable(policy, 4)
    small, large = table.add("s", "10.0.0.1:80", 2, READY), table.add("l", "10.0.0.2:80", 8, READY)
    for _ in range(5):
        table.reserve(table.pick(0, 0.0))
    assert (small.in_flight, large.in_flight) == (1, 4), table
    table.release(large, large.generation, 0.1)
    assert table.pick(0, 0.0) is large
    table.check_invariants()
print("compiled" if lb.COMPILED else "plain")
"""


def test_it_runs_a_table_by_its_name_and_by_its_path(run: Run) -> None:
    assert run("-c", TABLE).strip() == ("compiled" if lb.COMPILED else "plain")


def test_it_keeps_the_contract(run: Run) -> None:
    found = run("-m", "pytest", "-q", "-p", "no:cacheprovider", "source/test_emptiest_policy.py")
    assert "12 passed" in found


def test_a_configuration_may_name_it(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    text = "revisions: [{name: a, hosts: [a], pods: ['127.0.0.1:1'], policy: POLICY}]"
    for policy in ("emptiest", "emptiest_policy:Emptiest"):
        file.write_text(text.replace("POLICY", policy), "utf-8")
        assert "fine" in run("-m", "activator.cli", "check", str(file))
    file.write_text(text.replace("POLICY", "emptiest_policy:Fullest"), "utf-8")
    assert "cannot be loaded" in run("-m", "activator.cli", "check", str(file), code=1)
