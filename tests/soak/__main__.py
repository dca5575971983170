"""The endurance test: hours of everything at once, and nothing that grows (`make soak HOURS=1`).

    python -m tests.soak --hours 1 [--seed N]

Rules
  1. The warm-up is a tenth of the time, a minute at least. Figures after it and at the end are compared; both are taken
     after an upgrade, `settle` seconds of load without disturbances, and with no load (figures.py).
  2. It prints a line per minute, and at the end its result as Markdown; exit code 1: a promise was broken. Then logs
     and disturbances are in build/soak-SEED.log.
  3. Ctrl-C, SIGTERM and SIGHUP end a run early, and leave no process and no file behind.
  4. A seed repeats the disturbances and their order, though not the moments at which the kernel does what.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Final, NamedTuple

from tests.soak.clients import STREAM_S
from tests.soak.disturbances import Disturber
from tests.soak.figures import Sample, compare
from tests.soak.report import line, report
from tests.soak.world import World
from tests.sources import ROOT

LOGS: Final = ROOT / "build"
MINUTE_S: Final = 60.0
ENDING: Final = (signal.SIGTERM, signal.SIGHUP)
PAUSE_S: Final = 1.5  # between two disturbances, on average


class Length(NamedTuple):
    """The parts of a run, and its shortest and longest stream, in seconds."""

    warm_up: float
    rest: float
    settle: float
    stream: tuple[float, float] = STREAM_S

    @classmethod
    def of(cls, seconds: float) -> Length:
        warm_up = max(seconds / 10.0, MINUTE_S)
        return cls(warm_up, max(seconds - warm_up, MINUTE_S), 20.0)


def run(folder: Path, seed: int, length: Length, pause_s: float = PAUSE_S) -> tuple[list[str], str]:
    """Return the violations and the result as Markdown."""
    began_s = time.monotonic()
    with World(folder, seed, length.stream) as world:
        for words in world.left_out:
            print(f"left out: {words}", flush=True)
        disturber = Disturber(world, seed, pause_s)
        over = threading.Event()
        minutes = threading.Thread(target=_tell, args=(world, over))
        minutes.start()
        try:
            _phase(world, disturber, 0, length.warm_up)
            before = _samples(world, 1, length.settle)
            _phase(world, disturber, 2, length.rest)
            after = _samples(world, 3, length.settle)
        except Exception:
            _keep_logs(world, seed)
            raise
        finally:
            over.set()
            minutes.join()
        world.judge_executions()
        world.judge_logs()
        world.ledger.judge_successes()
        for door in before:
            for problem in compare(door, before[door], after[door]):
                world.ledger.violate(problem)
        if world.ledger.violations:
            _keep_logs(world, seed)
        return world.ledger.violations, report(world, seed, time.monotonic() - began_s, before, after)


def _keep_logs(world: World, seed: int) -> None:
    """Write the evidence: the disturbances, and all logs."""
    LOGS.mkdir(exist_ok=True)
    parts = ["\n".join(world.ledger.disturbances())]
    parts += [f"--- {name} ---\n{activator.text()}" for name, activator in world.logs()]
    path = LOGS / f"soak-{seed}.log"
    path.write_text("\n".join(parts), encoding="utf-8")
    print(f"the logs are in {path}")


def _phase(world: World, disturber: Disturber, number: int, seconds: float) -> None:
    """Load with disturbances."""
    crowd = world.crowd(number)
    try:
        disturber.start(number)
        try:
            time.sleep(seconds)
        finally:
            disturber.stop()
    finally:
        crowd.stop()


def _samples(world: World, number: int, settle_s: float) -> dict[str, Sample]:
    """Sample the figures after an upgrade and some load."""
    done = world.machine.try_upgrade()
    if done.code != 0:
        world.ledger.violate(f"the upgrade before the sample failed: {done}")
    crowd = world.crowd(number)
    try:
        time.sleep(settle_s)
    finally:
        crowd.stop()
    return world.samples()


def _tell(world: World, over: threading.Event) -> None:
    began_s = time.monotonic()
    while not over.wait(MINUTE_S):
        world.judge_executions()
        print(line(world, time.monotonic() - began_s), flush=True)


def end_on_signals() -> None:
    """Make SIGTERM and SIGHUP end the run as Ctrl-C does, so that its processes and files go.

    A signal that was ignored stays so. Later signals do not disturb that end.
    """

    def end(number: int, frame: FrameType | None) -> None:
        for one in chosen:
            signal.signal(one, lambda *_: None)  # not SIG_IGN, which commands that are still run would inherit
        sys.exit(128 + number)

    chosen = [one for one in ENDING if signal.getsignal(one) is not signal.SIG_IGN]
    for one in chosen:
        signal.signal(one, end)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description="everything at once, for hours")
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    end_on_signals()
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        violations, text = run(Path(folder), options.seed, Length.of(options.hours * 3_600.0))
    print(text)
    sys.exit(1 if violations else 0)


if __name__ == "__main__":
    main()
