"""Local processes when something of ours goes wrong: it is counted, and after a backoff there is another one. What
only one can have, and what the reaper does of more than processes.
"""

from __future__ import annotations

import asyncio
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from activator.config.model.containers import Container
from activator.config.model.file import Config
from activator.config.model.kinds import Duration
from activator.config.model.programs import Process, Readiness
from activator.config.model.queueing import Timeouts
from activator.config.model.revision import Revision
from activator.config.model.sleep import Sleep
from activator.control_plane.sources.container.units import ContainerUnits
from activator.control_plane.sources.local_units import LocalUnits
from activator.control_plane.sources.process import reaper
from activator.control_plane.sources.process.addresses import AddressAllocator
from activator.control_plane.sources.process.child import ChildProcess, ChildProcesses
from activator.control_plane.sources.process.other_port import OTHER_PORT_INITIAL_S
from activator.control_plane.sources.process.output import OnLine
from activator.control_plane.sources.process.reaping import Reaping
from activator.control_plane.sources.process.source import ProcessSource
from activator.control_plane.sources.process.supervisor import CRASHES_MAX, ProcessSupervisor
from activator.control_plane.sources.process.unit import Unit
from activator.control_plane.state.supervision import Supervision
from activator.messages import Change, ObservedPod, PodStatus, RevisionFailed, RevisionRecovered
from activator.runtime.clock import Now
from activator.runtime.tasks import TaskGroupOwner, pause
from tests.control_plane.sources.program_reports import ProgramReports
from tests.sources import ROOT

SERVING = ROOT / "tests" / "e2e" / "programs" / "serving.py"
KEY = "default/app"
REVISION = Revision("app", process=Process([sys.executable, "-I", "-S", str(SERVING), "{port}"], max_scale=1))


class DefectiveReaping(Reaping):
    """Raises for the first so many processes."""

    def __init__(self, failures: int) -> None:
        super().__init__(None, "")
        self.failures = failures

    def add_group(self, group: int) -> None:
        if self.failures:
            self.failures -= 1
            raise ValueError("injected")


class NoPortAtFirst(AddressAllocator):
    """Finds no free port at first."""

    misses = 2

    def free_port(self) -> int:
        if self.misses:
            self.misses -= 1
            raise OSError("no port")
        return super().free_port()


class Portless(ChildProcesses):
    """Whose processes have no place at first."""

    def __init__(self, tasks: TaskGroupOwner, now: Now, reaping: Reaping) -> None:
        super().__init__(tasks, now, reaping)
        self.addresses = NoPortAtFirst(reaping)


def until_ready(make: Callable[..., ChildProcesses], reaping: Reaping) -> tuple[Supervision, list[BaseException]]:
    """Ask for one process, and wait until there is one that is ready."""
    supervision = Supervision()
    errors: list[BaseException] = []

    async def scenario() -> None:
        ready = asyncio.Event()

        def hear(change: Change) -> None:
            if isinstance(change, ObservedPod) and change.status is PodStatus.READY:
                ready.set()

        tasks = TaskGroupOwner(lambda name, error: errors.append(error))
        supervisor = ProcessSupervisor(
            tasks, hear, time.monotonic, make(tasks, time.monotonic, reaping), supervision.panicked, ProgramReports()
        )
        supervisor.set_revision(KEY, REVISION)
        supervisor.grant(KEY, 1)
        await asyncio.wait_for(ready.wait(), 20.0)
        assert supervisor.fleets.statistics()[KEY]["processes"] == 1
        await supervisor.close()
        await tasks.close()

    asyncio.run(scenario())
    return supervision, errors


def test_a_defect_in_the_life_of_a_process_costs_that_process() -> None:
    supervision, errors = until_ready(ChildProcesses, DefectiveReaping(2))
    assert (supervision.panics_total, errors) == (2, [])
    assert "injected" in supervision.dead_letters[0].error


def test_what_cannot_be_started_is_tried_again_though_nobody_asks_again() -> None:
    supervision, errors = until_ready(Portless, Reaping(None, ""))
    assert (supervision.panics_total, errors) == (2, [])
    assert supervision.over_budget(1, time.monotonic()) == []


class Watched:
    """A supervisor of real programs, and what it submits."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.errors: list[BaseException] = []
        self.tasks = TaskGroupOwner(lambda name, error: self.errors.append(error))
        units = ChildProcesses(self.tasks, time.monotonic, Reaping(None, ""))
        self.reports = ProgramReports()
        self.supervisor = ProcessSupervisor(
            self.tasks, self.changes.append, time.monotonic, units, Supervision().panicked, self.reports
        )

    def want(self, *command: str, **more: Any) -> None:
        self.supervisor.set_revision(KEY, Revision("app", process=Process(list(command), max_scale=1, **more)))
        self.supervisor.grant(KEY, 1)

    def failures(self) -> list[str]:
        return [one.cause for one in self.changes if isinstance(one, RevisionFailed)]

    def is_ready(self) -> bool:
        fleet = self.supervisor.fleets.get(KEY)
        return fleet is not None and fleet.ready() > 0

    async def until(self, check: Callable[[], object], limit_s: float = 10.0) -> None:
        async with asyncio.timeout(limit_s):
            while not check():
                await pause(0.01)

    async def close(self) -> None:
        await self.supervisor.close()
        await self.tasks.close()
        assert self.errors == []


SERVE = (sys.executable, "-I", "-S", str(SERVING), "{port}")


def test_a_corrected_program_is_started_at_once() -> None:
    async def scenario() -> None:
        watched = Watched()
        fails = ("sh", "-c", "exit 3")
        watched.want(*fails)
        await watched.until(watched.failures)  # the next start would come in 1.6 s, and later ones in up to 30 s
        fleet = watched.supervisor.fleets.get(KEY)
        assert fleet is not None and fleet.crashes >= CRASHES_MAX
        began_s, not_before_s = time.monotonic(), fleet.not_before_s
        watched.want(*SERVE)
        assert fleet.not_before_s < began_s < not_before_s and fleet.crashes == 0
        await watched.until(watched.is_ready)
        assert isinstance(watched.changes[-1], ObservedPod)
        assert any(isinstance(one, RevisionRecovered) for one in watched.changes)
        await watched.close()

    asyncio.run(scenario())


def test_the_last_failure_is_told_until_a_program_works() -> None:
    """Also when nothing is wanted any more: without it, a program that cannot start looks like one that is idle."""

    async def scenario() -> None:
        watched = Watched()
        fleets = watched.supervisor.fleets
        watched.want("sh", "-c", "echo no model file; exit 3")
        await watched.until(watched.failures)
        assert fleets.problems(KEY) == [], "the failure is told already"
        watched.supervisor.grant(KEY, 0)
        await watched.until(lambda: fleets.problems(KEY))
        assert fleets.problems(KEY) == ["the last run failed: the program exited with code 3: no model file"]
        watched.want(*SERVE)
        assert fleets.problems(KEY) == [], "it may have been corrected"
        await watched.until(watched.is_ready)
        fleet = fleets.get(KEY)
        assert fleet is not None
        (process,) = fleet.processes.values()
        assert isinstance(process.unit, ChildProcess)
        await process.unit.signal("SIGKILL")
        await watched.until(lambda: fleets.problems(KEY))
        assert fleets.problems(KEY) == ["the last run failed: the program was ended by SIGKILL"]
        await watched.until(watched.is_ready)
        assert fleets.problems(KEY) == []
        await watched.close()

    asyncio.run(scenario())


def test_an_unchanged_program_keeps_its_backoff() -> None:
    async def scenario() -> None:
        watched = Watched()
        watched.want("sh", "-c", "exit 3")
        await watched.until(watched.failures)
        fleet = watched.supervisor.fleets.get(KEY)
        assert fleet is not None
        not_before_s = fleet.not_before_s
        watched.want("sh", "-c", "exit 3")
        assert (fleet.not_before_s, fleet.crashes >= CRASHES_MAX) == (not_before_s, True)
        await watched.close()

    asyncio.run(scenario())


def test_the_end_of_a_program_that_was_corrected_meanwhile_is_no_failure_of_its_successor() -> None:
    async def scenario() -> None:
        watched = Watched()
        watched.want("sh", "-c", "sleep 0.3; exit 3")
        await watched.until(lambda: watched.supervisor.fleets.statistics()[KEY]["processes"])
        watched.want(*SERVE)
        await watched.until(watched.is_ready)
        assert watched.failures() == []
        await watched.close()

    asyncio.run(scenario())


def test_load_and_restart_do_not_wait_for_the_backoff() -> None:
    async def scenario(ask: Callable[[ProcessSource], str]) -> None:
        tasks = TaskGroupOwner(lambda name, error: None)
        changes: list[Change] = []
        units = ChildProcesses(tasks, time.monotonic, Reaping(None, ""))
        source = ProcessSource(
            tasks, changes.append, time.monotonic, time.time, units, Supervision().panicked, lambda _: None
        )
        revision = Revision("app", process=Process(["sh", "-c", "exit 3"], max_scale=1, min_scale=1))
        source.configure(Config(revisions=[revision]), {KEY: revision})
        async with asyncio.timeout(10.0):
            while not any(isinstance(one, RevisionFailed) for one in changes):
                await pause(0.01)
        fleet = source.supervisor.fleets.get(KEY)
        assert fleet is not None and fleet.not_before_s > time.monotonic()
        assert ask(source) == ""
        assert (fleet.not_before_s, fleet.crashes) == (0.0, 0)
        await source.close()
        await tasks.close()

    asyncio.run(scenario(lambda source: source.load(KEY, 60.0)))
    asyncio.run(scenario(lambda source: source.restart(KEY)))


def test_a_grace_of_zero_puts_an_idle_program_to_sleep_and_stops_a_busy_one_at_once() -> None:
    async def scenario(is_idle: bool) -> None:
        watched = Watched()
        watched.reports.grace_s = 0.0
        watched.want(*SERVE, sleep=Sleep(signal="SIGSTOP"))
        await watched.until(watched.is_ready)
        identity = next(one.identity for one in watched.changes if isinstance(one, ObservedPod))
        watched.supervisor.grant(KEY, 0)
        if is_idle:
            await pause(0.05)  # as the data plane reports
            watched.supervisor.drained(KEY, identity)
            await watched.until(lambda: watched.supervisor.fleets.statistics()[KEY].get("sleeping"))
        else:
            await watched.until(lambda: not watched.supervisor.fleets.of(KEY), 5.0)
        await watched.close()

    asyncio.run(scenario(True))
    asyncio.run(scenario(False))


class Full(ChildProcesses):
    """One has to end first."""

    def make(self, revision: Revision, identity: str, gpus: tuple[str, ...], on_line: OnLine) -> Unit | None:
        return None


def test_where_another_has_to_end_first_nothing_is_started_and_its_gpu_is_free() -> None:
    async def scenario() -> None:
        changes: list[Change] = []
        tasks = TaskGroupOwner(lambda name, error: None)
        units = Full(tasks, time.monotonic, Reaping(None, ""))
        supervisor = ProcessSupervisor(
            tasks, changes.append, time.monotonic, units, Supervision().panicked, ProgramReports()
        )
        supervisor.gpus.configure(["0"])
        supervisor.set_revision(KEY, Revision("app", process=Process(["x"], gpus=1)))
        supervisor.grant(KEY, 1)
        assert supervisor.fleets.statistics()[KEY]["processes"] == 0
        assert (supervisor.gpus.free(), changes) == (["0"], [])
        await supervisor.close()
        await tasks.close()

    asyncio.run(scenario())


def test_what_one_leaves_is_told_to_those_that_may_have_it() -> None:
    tasks, reaping = TaskGroupOwner(lambda name, error: None), Reaping(None, "")
    units = LocalUnits(
        ChildProcesses(tasks, time.monotonic, reaping), ContainerUnits(tasks, time.monotonic, time.time, reaping)
    )
    fixed = Revision("fixed", process=Process(["x"], port=9005))
    several = Revision("several", process=Process(["x"], port="9000-9010"))
    anywhere = Revision("anywhere", process=Process(["x"]))
    on_host = Revision("on-host", container=Container(image="x", network="host", port=9005))
    apart = Revision("apart", container=Container(image="x", port=9005))
    every = (fixed, several, anywhere, on_host, apart)
    assert [units.claim_of(one) for one in every] == ["port 9005", "", "", "port 9005", ""]
    assert [units.may_claim(one, "port 9005") for one in every] == [True, True, False, True, False]
    assert [units.may_claim(one, "port 9011") for one in every] == [False] * 5


def test_the_reaper_removes_folders_and_asks_engines(tmp_path: Path) -> None:
    folder = tmp_path / "sockets"
    (folder / "1").mkdir(parents=True)
    asked: list[bytes] = []
    with socket.socket(socket.AF_UNIX) as engine:
        path = str(tmp_path / "engine.sock")
        engine.bind(path)
        engine.listen()

        def answer() -> None:
            connection, _ = engine.accept()
            with connection:
                asked.append(connection.recv(4096))
                connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n[]")

        thread = threading.Thread(target=answer)
        thread.start()
        lines = f"={folder}\n+{path}\n"
        subprocess.run([sys.executable, "-I", "-S", reaper.__file__, "a-mark"], input=lines, text=True, check=True)
        thread.join(5.0)
    assert not folder.exists() and tmp_path.exists()
    assert asked and b"activator.instance=a-mark" in asked[0]


def test_a_program_that_listens_elsewhere_is_reported_while_it_starts(caplog: pytest.LogCaptureFixture) -> None:
    code = (
        "import signal, socket; s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(); "
        "print('other', s.getsockname()[1], flush=True); signal.pause()"
    )

    async def scenario() -> None:
        watched = Watched()
        watched.supervisor.set_revision(
            KEY,
            Revision(
                "app",
                process=Process([sys.executable, "-I", "-S", "-c", code], max_scale=1),
                timeouts=Timeouts(startup=Duration(5.0 * OTHER_PORT_INITIAL_S)),
            ),
        )
        watched.supervisor.grant(KEY, 1)
        await watched.until(lambda: "listens on" in caplog.text)
        fleet = watched.supervisor.fleets.get(KEY)
        assert fleet is not None
        (process,) = fleet.processes.values()
        other = next(line.split()[1] for line in process.unit.output.lines() if line.startswith("other"))
        port = process.unit.address.rpartition(":")[2]
        found = re.search(r"pid (\d+) listens on (\d+), not on (\d+): if that is its port", caplog.text)
        assert found is not None and (found[2], found[3]) == (other, port)
        (shown,) = watched.supervisor.fleets.problems(KEY)
        assert (
            shown.endswith(f"or set `port: {other}`")
            and f"{process.identity}: {shown.partition(': ')[2]}" in caplog.text
        )
        await watched.until(watched.failures)
        assert f"listens on {other}, not on {port}" in watched.failures()[0]
        assert f"or set `port: {other}`" in watched.failures()[0]
        assert caplog.text.count(f"{process.identity}: pid ") == 1
        await watched.close()

    asyncio.run(scenario())


def test_a_program_that_listens_on_its_port_at_the_other_loopback_address_is_not_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    code = (
        "import os, signal, socket; s = socket.socket(socket.AF_INET6); s.bind(('::1', int(os.environ['PORT']))); "
        "s.listen(); signal.pause()"
    )

    async def scenario() -> None:
        watched = Watched()
        command = [sys.executable, "-I", "-S", "-c", code]
        timeouts = Timeouts(startup=Duration(5.0 * OTHER_PORT_INITIAL_S))
        process = Process(command, max_scale=1, readiness=Readiness(http_get="/never"))
        watched.supervisor.set_revision(KEY, Revision("app", process=process, timeouts=timeouts))
        watched.supervisor.grant(KEY, 1)
        await watched.until(watched.failures)
        assert "listens on" not in watched.failures()[0] and "listens on" not in caplog.text
        await watched.close()

    asyncio.run(scenario())
