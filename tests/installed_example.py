"""A package of `examples/`, installed in an environment of its own, whose Python can be run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.sources import ROOT


class InstalledExample:
    """`name` of a folder of `examples/`; nothing is asked of any network."""

    def __init__(self, name: str, folder: Path) -> None:
        self._folder = folder
        shutil.copytree(
            ROOT / "examples" / name,
            folder / "source",
            ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"),
        )
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
        self._python = folder / "venv" / "bin" / "python"
        site = subprocess.run(
            [self._python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        install = ["install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--target", site]
        self._environ = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
        subprocess.run(
            [sys.executable, "-m", "pip", *install, str(folder / "source")],
            check=True,
            cwd=folder,
            env=self._environ | {"PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        )
        # What the example runs with: ours, and what the tests run with.
        known = [str(ROOT), *(path for path in sys.path if path.endswith("-packages"))]
        Path(site, "known.pth").write_text("\n".join(known), "utf-8")

    def run(self, *words: str, code: int = 0) -> str:
        """Return what Python, run with these words, has written; it must end with `code`."""
        result = subprocess.run(
            [self._python, *words],
            capture_output=True,
            text=True,
            cwd=self._folder,
            env=self._environ,
            check=False,
            timeout=300,
        )
        assert result.returncode == code, result.stdout + result.stderr
        return result.stdout + result.stderr
