"""The image: it is built, and a program that it starts answers a request.

`python -I tests/release_image.py`; `make release-check` does it. Without Docker, Podman or the base image it prints why
nothing was built. It uses the standard library only.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
ENGINES: Final = ("docker", "podman")
IMAGE: Final = "activator:release-check"
RUN: Final = ("run", "--", "python", "-m", "http.server", "--bind", "127.0.0.1", "{port}")
REQUEST: Final = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:8012/', timeout=5).status)"
START_S: Final = 60.0
PAUSE_S: Final = 0.5


def run(*command: str, timeout_s: float = 120.0) -> tuple[int, str]:
    """Run a command; return its exit code and its output, with its errors if it failed."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False, text=True, timeout=timeout_s)
    return done.returncode, (done.stdout if done.returncode == 0 else done.stdout + done.stderr).strip()


def must(*command: str) -> str:
    code, output = run(*command)
    if code != 0:
        raise SystemExit(f"{' '.join(command)}: exit code {code}\n{output}")
    return output


def usable(engines: Sequence[str] = ENGINES) -> str:
    """Return the first engine that is installed and works; an empty string without one."""
    return next((one for one in engines if shutil.which(one) and run(one, "info")[0] == 0), "")


def base_of(dockerfile: str) -> str:
    """Return the image that both stages begin with."""
    version = re.search(r"^ARG PYTHON_VERSION=(\S+)$", dockerfile, re.MULTILINE)
    if version is None:
        raise SystemExit("the Dockerfile has no PYTHON_VERSION")
    return f"docker.io/library/python:{version[1]}-slim-bookworm"


def has_base(engine: str) -> bool:
    base = base_of((ROOT / "Dockerfile").read_text("utf-8"))
    return run(engine, "image", "inspect", base)[0] == 0 or run(engine, "pull", base, timeout_s=600.0)[0] == 0


def check(engine: str, image: str, start_s: float = START_S) -> str:
    """Run the image with a program, send a request within it, and stop it. Return its version."""
    version = must(engine, "run", "--rm", image, "version")
    if not re.fullmatch(r"activator \d+\.\d+\.\d+ \(compiled\)", version):
        raise SystemExit(f"the image is {version!r}, expected a compiled activator")
    container = must(engine, "run", "--detach", "--read-only", "--tmpfs", "/tmp", image, *RUN)
    try:
        until_s = time.monotonic() + start_s
        while (answer := run(engine, "exec", container, "python", "-c", REQUEST)) != (0, "200"):
            if time.monotonic() > until_s:
                logs = run(engine, "logs", container)[1]
                raise SystemExit(f"the image did not answer a request: {answer[1]}\n{logs}")
            time.sleep(PAUSE_S)
        must(engine, "exec", container, "activator", "status")
        must(engine, "stop", "-t", "30", container)
        code = must(engine, "inspect", "--format", "{{.State.ExitCode}}", container)
        if code != "0":
            raise SystemExit(f"the image ended with exit code {code} after SIGTERM")
    finally:
        run(engine, "rm", "--force", container)
    return version


def main() -> None:
    engine = usable()
    if not engine:
        print("make: neither Docker nor Podman works here: the image is not built")
    elif not has_base(engine):
        print(f"make: {engine} has no base image and cannot pull it: the image is not built")
    else:
        subprocess.run([engine, "build", "--tag", IMAGE, "."], cwd=ROOT, check=True)
        print(f"{IMAGE}: {check(engine, IMAGE)}, and it serves")


if __name__ == "__main__":
    main()
