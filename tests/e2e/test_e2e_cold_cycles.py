"""0 -> 1 -> 0 again and again, with requests at any moment of it: the very one at which the program is ended included.

None fails, none is left behind: no process, no descriptor.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

import pytest

from tests.e2e.conftest import RunActivator
from tests.e2e.http_client import Answer, ask, burst, failures, request
from tests.e2e.running import OWN_PROCESSES, PROGRAMS, SERVING, Activator, configured, eventually

IDLE_S: Final = 0.2
MANNERS: Final = ("plain", "forks", "stubborn", "crashes")
CLIENTS: Final = 8  # two revisions of each kind, a client each
SAMPLES: Final = 50
PATIENCE_S: Final = 600.0


def revision(number: int, folder: Path) -> dict[str, Any]:
    manners = MANNERS[number % len(MANNERS)]
    unruly = [sys.executable, "-I", "-S", str(PROGRAMS / "unruly.py"), "{port}", manners, str(folder / f"{number}")]
    return {
        "name": f"r{number}",
        "hosts": [f"r{number}.test"],
        "process": {
            "command": SERVING if manners == "plain" else unruly,
            "max_scale": 1,
            "idle": f"{IDLE_S * 1000:.0f}ms",
            "stop": {"grace": "300ms"},
        },
    }


def pause_s(rng: random.Random) -> float:
    """Mostly around the moment at which an idle program is ended."""
    if rng.random() < 0.3:
        return rng.uniform(0.0, 3.0 * IDLE_S)
    return max(rng.gauss(IDLE_S * rng.choice((1.0, 1.2, 1.5)), 0.03), 0.0)


class Cycles:
    """One client of one revision: asks, pauses, and counts the programs that have answered."""

    def __init__(self, activator: Activator, number: int, wanted: int) -> None:
        self.failed: list[Answer] = []
        self.programs: set[bytes] = set()
        self.requests = 0
        self._activator = activator
        self._host = f"r{number}.test"
        self._wanted = wanted
        self._rng = random.Random(number)
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        until_s = time.monotonic() + PATIENCE_S
        while len(self.programs) < self._wanted and not self.failed and time.monotonic() < until_s:
            answer = ask(self._activator.address, request(host=self._host))
            self.requests += 1
            if answer.status == 200:
                self.programs.add(answer.body)
            else:
                self.failed.append(answer)
            time.sleep(pause_s(self._rng))


def descriptors(activator: Activator) -> int:
    """Of the activator's own processes, once no program runs."""
    eventually(lambda: len(activator.processes()) == OWN_PROCESSES, "no program is left")
    return sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in activator.processes())


@pytest.mark.parametrize("cycles", [24, pytest.param(1000, marks=pytest.mark.soak)])
def test_no_request_fails_and_nothing_is_left_behind(run_activator: RunActivator, tmp_path: Path, cycles: int) -> None:
    activator = run_activator(configured([revision(number, tmp_path) for number in range(CLIENTS)]))
    for number in range(CLIENTS):
        assert ask(activator.address, request(host=f"r{number}.test")).status == 200
    before = min(descriptors(activator) for _ in range(SAMPLES))  # some are open for a moment, to read /proc

    clients = [Cycles(activator, number, cycles // CLIENTS) for number in range(CLIENTS)]
    for one in clients:
        one.thread.start()
    for one in clients:
        one.thread.join()
    assert [one.failed for one in clients if one.failed] == []
    assert sum(len(one.programs) for one in clients) >= cycles // CLIENTS * CLIENTS
    assert sum(one.requests for one in clients) > cycles, "some found a program that ran"

    activator.wait_idle()
    eventually(lambda: descriptors(activator) == before, f"{before} descriptors")
    assert sum(one["failed"].get("start_failed", 0) for one in activator.revisions().values()) == 0


@pytest.mark.deep
def test_a_program_that_needs_half_a_minute(run_activator: RunActivator) -> None:
    """The first requests wait for it, and none is lost."""
    command = ["/bin/sh", "-c", f"sleep 30; exec {' '.join(SERVING)}".replace("{port}", "$PORT")]
    activator = run_activator(configured([{"name": "app", "hosts": ["*"], "process": {"command": command}}]))
    began_s = time.monotonic()
    answers = burst(activator.address, 50, request())
    assert failures(answers) == []
    assert 30.0 < time.monotonic() - began_s < 40.0
