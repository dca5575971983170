"""Looks for flaky tests: the end-to-end tests again and again, in random order, beside processes that use the cores.

    python -m tests.flaky [--runs 10] [--first SEED] [--busy 2] [-- PYTEST_ARGS]

Prints each failure with the seed of its run and keeps what the run printed in build/flaky-SEED.log. Exits with 1 if
there was a failure. Each busy process uses a core for up to two seconds and then pauses as long, as a neighbour on a
machine of continuous integration does.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import subprocess
import sys
import time
from collections.abc import Iterator

from tests.sources import ROOT

BURST_S_MAX = 2.0
LOGS = ROOT / "build"
RUN_TIMEOUT_S = 2_400.0


def be_busy() -> None:
    chance = random.Random()
    while True:
        until_s = time.monotonic() + chance.uniform(0.0, BURST_S_MAX)
        while time.monotonic() < until_s:
            pass
        time.sleep(chance.uniform(0.0, BURST_S_MAX))


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    neighbours = [
        subprocess.Popen([sys.executable, "-c", "from tests.flaky import be_busy; be_busy()"], cwd=ROOT)
        for _ in range(count)
    ]
    try:
        yield
    finally:
        for one in neighbours:
            one.kill()
            one.wait()


def failures(seed: int, args: list[str]) -> list[str]:
    """Return the failed tests of one run, and its last line. Raises TimeoutExpired."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "e2e and not deep and not soak", "tests/e2e", "tests/bench"]
    command += ["-n", "3", "--dist", "loadfile", "--order", str(seed), "-p", "no:cacheprovider", *args]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False)
    LOGS.mkdir(exist_ok=True)
    (LOGS / f"flaky-{seed}.log").write_text(done.stdout + done.stderr, encoding="utf-8")
    lines = done.stdout.splitlines()
    found = [line for line in lines if line.startswith(("FAILED ", "ERROR "))]
    if done.returncode != 0 and not found:
        found = [f"pytest exited with {done.returncode}: {done.stderr[-500:]}"]
    return [*found, lines[-1] if lines else ""]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.flaky")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--first", type=int, default=1, metavar="SEED")
    parser.add_argument("--busy", type=int, default=2, metavar="PROCESSES")
    parser.add_argument("args", nargs="*", metavar="PYTEST_ARGS")
    options = parser.parse_args()
    failed = False
    with busy(options.busy):
        for seed in range(options.first, options.first + options.runs):
            *found, last = failures(seed, options.args)
            failed = failed or bool(found)
            print(f"seed {seed}: {last}", *found, sep="\n  ", flush=True)
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
