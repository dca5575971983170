"""Programs that die, that never start, and that are killed while they serve."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import RunActivator
from tests.e2e.http_client import Answer, CutShortError, Visitor, ask, burst, request
from tests.e2e.load import Load
from tests.e2e.running import OWN_PROCESSES, SERVING, configured, eventually, figures, is_dead, process_revision


class Answers:
    """`answers` is what the clients of a load got."""

    def __init__(self, address: str, clients: int, data: bytes) -> None:
        self.answers: list[Answer | CutShortError] = []
        self._load = Load([address], clients, data, lambda answer, _: self.answers.append(answer))

    async def run(self, meanwhile: Callable[[], Any]) -> None:
        """Load, and meanwhile this, in a thread; then it ends."""
        await self._load.run(meanwhile)

    def good(self) -> list[int]:
        """The process ids that have answered, in order."""
        return [int(one.body) for one in list(self.answers) if isinstance(one, Answer) and one.status == 200]

    def bad(self) -> list[Answer | CutShortError]:
        return [one for one in self.answers if not isinstance(one, Answer) or one.status != 200]


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_child_killed_under_load_is_replaced(run_activator: RunActivator, method: str) -> None:
    """Only what it was processing may fail, with 502.

    A request that is not idempotent and went out on a kept connection in the very moment of the death cannot be told
    from one that was being processed, so there may be a few more of these; a GET is simply sent again.
    """
    concurrency = 4
    revision = {**process_revision(SERVING, max_scale=2), "container_concurrency": concurrency}
    activator = run_activator(configured([revision]))
    load = Answers(activator.address, 20, request("/sleep/0.02", method))
    killed: list[int] = []

    def kill_two() -> None:
        for _ in range(2):
            eventually(lambda: figures(activator)["processes"] == 2 and figures(activator)["starting"] == 0)
            eventually(lambda: len(set(load.good()) - set(killed)) == 2, "both answer")
            killed.append((set(load.good()) - set(killed)).pop())
            os.kill(killed[-1], signal.SIGKILL)
            eventually(lambda: len(set(load.good()) - set(killed)) == 2, "a new one answers")

    asyncio.run(load.run(kill_two))
    assert len(load.bad()) <= 2 * concurrency * (1 if method == "GET" else 2)
    assert all(isinstance(one, Answer) for one in load.bad()), load.bad()
    assert {(one.status, one.reason) for one in load.bad() if isinstance(one, Answer)} <= {(502, "pod_closed")}
    assert len(set(load.good())) >= 4
    shown = activator.revision("app")
    assert shown["failure"] is None
    assert sum(shown["failed"].values()) == len(load.bad())


def test_a_child_that_ends_between_requests_is_replaced(run_activator: RunActivator) -> None:
    """Nobody fails: no request was there."""
    activator = run_activator(configured([process_revision(SERVING)]))
    pids = set()
    for _ in range(3):
        answer = ask(activator.address, request())
        assert answer.status == 200
        assert int(answer.body) not in pids
        pids.add(int(answer.body))
        os.kill(int(answer.body), signal.SIGKILL)
        # While it dies its listener may still take a connection, which is then reset: that request is lost.
        eventually(lambda pid=int(answer.body): is_dead(pid))  # type: ignore[misc]


CRASHING = """
import sys, time
with open({starts!r}, "a") as file:
    file.write(f"{{time.time()}}\\n")
sys.stderr.write("warming up\\nno database\\n\\n")
sys.exit(7)
"""


def test_a_crash_at_start_is_told_and_recovered_from(run_activator: RunActivator, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    starts = tmp_path / "starts"
    program.write_text(CRASHING.format(starts=str(starts)))
    activator = run_activator(configured([process_revision([sys.executable, "-I", "-S", str(program), "{port}"])]))
    answers = burst(activator.address, 10, request())
    observed_latency_s = time.time()
    attempts = [float(line) for line in starts.read_text().split()]
    assert len(attempts) == 5
    assert observed_latency_s - attempts[-1] < 5.0
    for answer in answers:
        assert isinstance(answer, Answer)
        assert (answer.status, answer.reason) == (503, "revision_failed")
        assert int(answer.header("retry-after")) >= 1
        assert answer.body == b"the revision cannot start: the program exited with code 7: no database\n"
    newcomer = ask(activator.address, request())
    assert (newcomer.status, newcomer.reason) == (503, "revision_failed")
    assert b"no database" in newcomer.body
    assert "no database" in activator.revision("app")["failure"]

    program.write_text(Path(SERVING[3]).read_text())
    eventually(lambda: ask(activator.address, request()).status == 200, "it serves once the program is mended")
    assert activator.revision("app")["failure"] is None
    assert figures(activator)["crashes"] == 0


def test_programs_that_cannot_start(run_activator: RunActivator) -> None:
    """Absent, not executable, gone at once, killed: each is told as what it was, and none holds up another."""
    causes = {
        "absent": (
            ["/no/such/program"],
            "cannot start /no/such/program: no such file; check its spelling (~ and $VAR are not expanded here)",
        ),
        "forbidden": (
            ["/etc/passwd"],
            "cannot start /etc/passwd: it is not executable; make it so (chmod +x), or put its interpreter before it",
        ),
        "done": (["true"], "the program exited with code 0; if it goes into the background, run it in the foreground"),
        "killed": (["sh", "-c", "kill -9 $$"], "the program was ended by SIGKILL"),
    }
    activator = run_activator(
        configured(
            [
                {"name": name, "hosts": [f"{name}.test"], "process": {"command": command}}
                for name, (command, _) in causes.items()
            ]
        )
    )

    async def ask_all() -> list[Answer]:
        visitors = [await Visitor.connect(activator.address) for _ in causes]
        answers = await asyncio.gather(
            *(visitor.ask(request(host=f"{name}.test")) for visitor, name in zip(visitors, causes))
        )
        for visitor in visitors:
            await visitor.close()
        return answers

    for answer, (_, cause) in zip(asyncio.run(ask_all()), causes.values()):
        assert (answer.status, answer.reason) == (503, "revision_failed")
        assert answer.body.decode() == f"the revision cannot start: {cause}\n"


def test_a_directory_that_does_not_exist(run_activator: RunActivator) -> None:
    activator = run_activator(configured([process_revision(SERVING, directory="/no/such/folder")]))
    answer = ask(activator.address, request())
    assert (answer.status, answer.reason) == (503, "revision_failed")
    cause = "cannot start in /no/such/folder: no such directory; create it, or correct `directory`"
    assert answer.body == f"the revision cannot start: {cause}\n".encode()


def test_a_program_that_never_listens(run_activator: RunActivator) -> None:
    """The startup timeout ends the wait, for those who came first and for those who came later; no queue timeout."""
    revision = {**process_revision(["sleep", "1000"]), "timeouts": {"startup": "1s"}}
    activator = run_activator(configured([revision]))
    started_s = time.monotonic()
    answers = burst(activator.address, 5, request())
    assert time.monotonic() - started_s >= 0.9
    for answer in answers:
        assert isinstance(answer, Answer)
        assert (answer.status, answer.reason) == (503, "revision_failed"), answer
        assert b"did not answer on port" in answer.body
        assert b"within 1 s" in answer.body


def test_a_slow_start_is_waited_for_longer_than_the_queue_timeout(run_activator: RunActivator) -> None:
    """60 s is the default for a line; here the wait is shown to follow the startup timeout instead."""
    slowly = ["sh", "-c", 'sleep 1.5; exec "$@"', "sh", *SERVING]
    revision = {**process_revision(slowly), "timeouts": {"startup": "20s"}}
    activator = run_activator(configured([revision]))
    assert ask(activator.address, request()).status == 200


FAMILY = [
    "sh",
    "-c",
    'sleep 1000 & setsid sleep 1001 & setsid sh -c "sleep 1002 & exec sleep 1003" & exec "$@"',
    "sh",
    *SERVING,
]


def test_nothing_outlives_a_killed_activator(run_activator: RunActivator) -> None:
    """Neither children nor grandchildren, nor those that made a session of their own, and not the reaper either."""
    revision = process_revision(FAMILY, max_scale=3, min_scale=2)
    activator = run_activator(configured([revision]))
    activator.wait_ready_pods("app", 2)
    assert len(activator.processes()) == OWN_PROCESSES + 2 * 5
    activator.signal(signal.SIGKILL)
    activator.wait_nothing_left(1.5)


def test_nothing_outlives_an_activator_killed_while_programs_start(run_activator: RunActivator) -> None:
    slowly = ["sh", "-c", "sleep 1000"]
    revision = {**process_revision(slowly, max_scale=4, min_scale=4), "container_concurrency": 1}
    activator = run_activator(configured([revision]))
    activator.wait_log("started default/app#4")
    activator.signal(signal.SIGKILL)
    activator.wait_nothing_left(1.5)


def test_scale_to_zero_ends_grandchildren_too(run_activator: RunActivator) -> None:
    quiet = ["sh", "-c", 'sleep 1000 & exec "$@"', "sh", *SERVING]
    activator = run_activator(configured([process_revision(quiet, idle="300ms")]))
    assert ask(activator.address, request()).status == 200
    assert len(activator.processes()) == OWN_PROCESSES + 2
    eventually(lambda: len(activator.processes()) == OWN_PROCESSES, "only its own are left")


def test_a_program_that_ignores_sigterm_is_killed_on_the_second_signal(run_activator: RunActivator) -> None:
    stubborn = ["sh", "-c", 'trap "" TERM; "$@" & wait', "sh", *SERVING]
    activator = run_activator(configured([process_revision(stubborn)]))
    assert ask(activator.address, request()).status == 200
    activator.signal(signal.SIGTERM)
    activator.wait_log("draining")
    activator.signal(signal.SIGTERM)
    assert activator.wait_end() == 130
    activator.wait_nothing_left(1.5)
