"""The program as it is installed: its commands work in an environment that has nothing but the wheel.

`PYTHON -I tests/installed.py`, with the Python of that environment; `make release-check` and the release do it. It uses
the standard library only, and imports nothing of the checkout.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Final

COMMAND: Final = str(Path(sys.executable).with_name("activator"))
START_S: Final = 30.0
DEMO_S: Final = 180.0


def run(folder: Path, *words: str, timeout_s: float = 60.0, **variables: str) -> str:
    """Run a command and return its output; it must end with exit code 0."""
    done = subprocess.run(
        [COMMAND, *words],
        cwd=folder,
        capture_output=True,
        check=False,
        text=True,
        timeout=timeout_s,
        env={**os.environ, **variables},
    )
    if done.returncode != 0:
        raise SystemExit(f"activator {' '.join(words)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def check_files(folder: Path) -> None:
    """The files to begin with are written and valid; a mistake is found."""
    (folder / "llama-server").write_text("#!/bin/sh\n", "utf-8")
    (folder / "llama-server").chmod(0o755)
    path = f"{folder}:{os.environ['PATH']}"
    for situation in ("program", "models", "backends", "cluster"):
        name = f"{situation}.yaml"
        run(folder, "init", situation, "-o", name)
        assert "fine" in run(folder, "check", name, PATH=path), name
    (folder / "bad.yaml").write_text("listn: 127.0.0.1:1\n", "utf-8")
    done = subprocess.run(
        [COMMAND, "check", "bad.yaml"], check=False, cwd=folder, capture_output=True, text=True, timeout=60.0
    )
    assert (done.returncode, 'expected "listen"' in done.stderr) == (1, True), done


def check_run(folder: Path) -> None:
    """A program is started by the first request, and ends with the activator."""
    (folder / "index.html").write_text("served", "utf-8")
    program = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", "{port}"]
    with subprocess.Popen(
        [COMMAND, "run", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--", *program],
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        try:
            address, admin = addresses(running)
            with urllib.request.urlopen(f"http://{address}/", timeout=START_S) as answer:
                assert answer.read() == b"served"
            assert "default/app#1" in run(folder, "status", "--admin", f"http://{admin}")
            run(folder, "drain", "--admin", f"http://{admin}")
            assert running.stderr is not None
            rest = running.stderr.read()
            assert running.wait(START_S) == 0, rest
        finally:
            running.kill()


def addresses(running: subprocess.Popen[str]) -> tuple[str, str]:
    """Return where the program serves and its admin port, from its log."""
    assert running.stderr is not None
    until_s, admin = time.monotonic() + START_S, ""
    for line in running.stderr:
        if found := re.search(r"admin port on (\S+)", line):
            admin = found[1]
        elif found := re.search(r"serving on (\S+)", line):
            return found[1], admin
        if time.monotonic() > until_s:
            break
    raise SystemExit("the program did not serve in time")


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        version = run(folder, "version").strip()
        assert re.fullmatch(r"activator \d+\.\d+\.\d+ \((compiled|plain Python)\)", version), version
        for shell in ("bash", "zsh", "fish"):
            assert "install-service" in run(folder, "completion", shell)
        check_files(folder)
        check_run(folder)
        run(folder, "demo", timeout_s=DEMO_S)
    print(f"{version}: installed, and its commands work")


if __name__ == "__main__":
    main()
