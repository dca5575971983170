"""The programs of grpc_program.py, started by tests."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = [sys.executable, "-m", "tests.http2.grpc_program"]
PATIENCE_S = 20.0


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "GRPC_VERBOSITY": "NONE"}


@contextlib.contextmanager
def serving(library: str, port: int = 0) -> Iterator[int]:
    """The gRPC service by one of the libraries, on a port of 127.0.0.1."""
    process = subprocess.Popen(
        [*PROGRAM, "serve", library, str(port)], stdout=subprocess.PIPE, env=environment(), cwd=ROOT
    )
    assert process.stdout is not None
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            assert selector.select(PATIENCE_S), f"{library} did not say its port"
        yield int(process.stdout.readline())
    finally:
        process.terminate()
        process.stdout.close()
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def ask(
    library: str, target: str, *, ca: Path | None = None, authority: str = "", patience_s: float = 10.0
) -> dict[str, str]:
    """What is wrong with each interop case against `target` (host:port); empty for one that is as it must be."""
    more = [*(["--ca", str(ca)] if ca else []), *(["--authority", authority] if authority else [])]
    done = subprocess.run(
        [*PROGRAM, "ask", library, target, "--patience", str(patience_s), *more],
        capture_output=True,
        text=True,
        timeout=4 * patience_s + PATIENCE_S,
        env=environment(),
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    found: dict[str, str] = json.loads(done.stdout)
    return found
