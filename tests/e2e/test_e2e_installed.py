"""The wheel in an environment that has nothing else: its commands work there (tests/installed.py)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sources import ROOT

pytestmark = pytest.mark.e2e


@pytest.mark.deep
def test_the_commands_of_the_wheel_work_where_nothing_else_is_installed(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    environment["ACTIVATOR_COMPILE"] = "0"  # what is compiled is for `make wheel` to judge
    wheel = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(tmp_path)]
    subprocess.run([*wheel, str(ROOT)], check=True, timeout=300.0, env=environment)
    python = tmp_path / "empty/bin/python"
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "empty")], check=True, timeout=120.0)
    (file,) = tmp_path.glob("*.whl")
    subprocess.run([python, "-m", "pip", "install", "-q", str(file)], check=True, timeout=300.0, env=environment)
    subprocess.run([python, "-I", str(ROOT / "tests/installed.py")], check=True, timeout=600.0, env=environment)
