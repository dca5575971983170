"""Running programs that one supervisor hands over to another, as two processes of the activator do."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import socket
import time
import uuid
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest
import uvloop

from activator.config.model.kinds import Duration
from activator.config.model.programs import Process, Readiness, Stop
from activator.config.model.queueing import Timeouts
from activator.config.model.revision import Revision
from activator.control_plane.sources.container.units import ContainerUnits
from activator.control_plane.sources.local_units import LocalUnits
from activator.control_plane.sources.process.child import ChildProcesses
from activator.control_plane.sources.process.handed import DESCRIPTORS, Received
from activator.control_plane.sources.process.reaping import Reaping
from activator.control_plane.sources.process.supervisor import ProcessSupervisor
from activator.control_plane.state.supervision import Supervision
from activator.messages import Change, ObservedPod, PodGone, PodStatus
from activator.runtime.tasks import TaskGroupOwner, pause
from tests.control_plane.sources.program_reports import ProgramReports

KEY = "default/app"
MARK = f"handover-test-{uuid.uuid4()}"  # other runs of this file on the machine keep theirs
PATIENCE_S = 10.0

# It says READY, then a number every 10 ms on standard output, and every second one on standard error.
COUNTING = """
import itertools, sys, time
print("READY", flush=True)
for number in itertools.count():
    print(f"line {number}", file=sys.stderr if number % 2 else sys.stdout, flush=True)
    time.sleep(0.001)
"""

# It says READY, then half a line, and the other half once there is a file.
HESITATING = """
import os, sys, time
print("READY\\nbegun", end="", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
print(" and ended", flush=True)
time.sleep(60)
"""


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[None, None, None]], None]:
    """The loop of the tests, and that of the program."""
    found: Callable[[Coroutine[None, None, None]], None] = request.param
    return found


class Side:
    """The supervisor of one process of the activator."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.changes: list[Change] = []
        self.errors: list[BaseException] = []
        self.tasks = TaskGroupOwner(lambda name, error: self.errors.append(error))
        self.reaping = Reaping(None, MARK)
        children = ChildProcesses(self.tasks, now, self.reaping)
        units = LocalUnits(children, ContainerUnits(self.tasks, now, time.time, self.reaping))
        panicked = Supervision().panicked
        self.supervisor = ProcessSupervisor(self.tasks, self.changes.append, now, units, panicked, ProgramReports())

    def ready(self) -> list[str]:
        """The pods that are ready and have not gone."""
        found: dict[str, bool] = {}
        for change in self.changes:
            if isinstance(change, ObservedPod):
                found[change.identity] = change.status is PodStatus.READY
            elif isinstance(change, PodGone):
                found[change.identity] = False
        return [identity for identity, is_ready in found.items() if is_ready]

    def lines(self) -> list[str]:
        log = self.supervisor.fleets.log_of(KEY)
        assert log is not None
        return [line.text for line in log.history.kept()]

    async def until(self, condition: Callable[[], bool]) -> None:
        until_s = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < until_s, (self.changes, self.errors)
            await pause(0.002)

    async def started(self, revision: Revision, count: int = 1) -> None:
        self.supervisor.set_revision(KEY, revision)
        self.supervisor.grant(KEY, count)
        await self.until(lambda: len(self.ready()) == count)


async def hand_over(old: Side, revision: Revision) -> tuple[Side, Received]:
    """Take the programs of `old` over, as far as the old process may still continue."""
    old.supervisor.freeze()
    programs, descriptors = old.supervisor.given.hand_over()
    new = Side()
    received = Received(programs, descriptors)
    new.supervisor.freeze()
    new.supervisor.take_over(received)
    new.supervisor.set_revision(KEY, revision)
    new.supervisor.grant(KEY, sum(len(fleet.programs) for fleet in programs.fleets))
    return new, received


async def own(old: Side, new: Side) -> None:
    """Make the new process the activator."""
    old.supervisor.detach()
    new.supervisor.take_ownership([os.getpid()])
    new.supervisor.unfreeze()
    await old.tasks.close()


def counting() -> Revision:
    command = ["python3", "-uc", COUNTING]
    return Revision(
        "app", process=Process(command, readiness=Readiness(log="READY"), max_scale=4, stop=Stop(grace=Duration(1.0)))
    )


def numbers(lines: list[str]) -> list[int]:
    return [int(line.split()[1]) for line in lines if line.startswith("line ")]


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_program_continues_and_no_line_is_lost_or_repeated(
    run: Callable[[Coroutine[None, None, None]], None],
) -> None:
    async def scenario() -> None:
        old = Side()
        await old.started(counting())
        await old.until(lambda: len(old.lines()) > 50)
        before = old.ready()
        process = next(iter(old.reaping.groups))
        new, received = await hand_over(old, counting())
        await own(old, new)
        received.close()
        await new.until(lambda: new.ready() == before)
        await new.until(lambda: len(new.lines()) > 200)
        os.kill(process, 0)
        lines = new.lines()
        found = numbers(lines)
        for stream in (0, 1):
            of_stream = [number for number in found if number % 2 == stream]
            assert of_stream == list(range(of_stream[0], of_stream[-1] + 1, 2)), "in order, without gaps"
        assert new.reaping.groups == {process}
        await new.supervisor.close()
        await new.tasks.close()
        assert (old.errors, new.errors) == ([], [])
        with pytest.raises(ProcessLookupError):
            os.killpg(process, 0)

    run(scenario())


def test_a_begun_line_is_completed_by_the_new_process_alone(
    run: Callable[[Coroutine[None, None, None]], None], tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    process = Process(["python3", "-uc", HESITATING, str(gate)], readiness=Readiness(log="READY"))

    async def scenario() -> None:
        old = Side()
        await old.started(Revision("app", process=process))
        fleet = old.supervisor.fleets.get(KEY)
        assert fleet is not None
        (program,) = fleet.processes.values()
        await old.until(lambda: b"begun" in program.unit.output.unfinished().values())
        new, received = await hand_over(old, Revision("app", process=process))
        await own(old, new)
        received.close()
        gate.touch()
        await new.until(lambda: "begun and ended" in new.lines())
        assert (old.lines(), new.lines()) == (["READY"], ["READY", "begun and ended"])
        await new.supervisor.close()
        await new.tasks.close()
        assert (old.errors, new.errors) == ([], [])

    run(scenario())


@pytest.mark.parametrize("is_orderly", [True, False])
def test_the_old_process_continues_if_the_new_one_gives_up(
    run: Callable[[Coroutine[None, None, None]], None], is_orderly: bool
) -> None:
    async def scenario() -> None:
        old = Side()
        await old.started(counting())
        process = next(iter(old.reaping.groups))
        new, received = await hand_over(old, counting())
        if is_orderly:  # after an error at its start
            await asyncio.wait_for(new.supervisor.close(), PATIENCE_S)
        await new.tasks.close()  # as at the end of a process: what it has taken over is not touched
        received.close()
        os.kill(process, 0)
        count = len(old.lines())
        old.supervisor.unfreeze()
        await old.until(lambda: len(old.lines()) > count + 50)
        found = numbers(old.lines())
        assert sorted(set(found)) == sorted(found), "none twice"
        await old.supervisor.close()
        await old.tasks.close()
        assert (old.errors, new.errors) == ([], [])

    run(scenario())


def test_descriptors_stay_level() -> None:
    async def scenario() -> None:
        side = Side()
        await side.started(counting())
        counts = []
        for _ in range(4):
            former = side
            side, received = await hand_over(former, counting())
            await own(former, side)
            received.close()
            await side.until(lambda: bool(side.ready()))  # noqa: B023
            await pause(0.05)
            counts.append(open_descriptors())
        # Each former process still waits for the end of its child: one descriptor of the process.
        assert [later - earlier for earlier, later in itertools.pairwise(counts)] == [0, 0, 0]
        await side.supervisor.close()
        await side.tasks.close()

    uvloop.run(scenario())


def test_a_program_that_ends_during_the_hand_over_is_replaced_afterwards() -> None:
    async def scenario() -> None:
        old = Side()
        await old.started(counting())
        process = next(iter(old.reaping.groups))
        new, received = await hand_over(old, counting())
        os.kill(process, signal.SIGKILL)
        await new.until(lambda: not new.ready() and any(isinstance(one, PodGone) for one in new.changes))
        await own(old, new)
        received.close()
        await new.until(lambda: new.ready() == [f"{KEY}#2"])
        assert len(new.reaping.groups) == 1
        assert process not in new.reaping.groups
        await new.supervisor.close()
        await new.tasks.close()
        assert (old.errors, new.errors) == ([], [])

    uvloop.run(scenario())


def test_a_port_is_free_again_if_its_program_ends_during_the_hand_over() -> None:
    serving = (
        "import http.server, os; http.server.HTTPServer(('127.0.0.1', int(os.environ['PORT'])), None).serve_forever()"
    )
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
    revision = Revision("app", process=Process(["python3", "-c", serving], port=port, stop=Stop(grace=Duration(1.0))))

    async def scenario() -> None:
        old = Side()
        await old.started(revision)
        process = next(iter(old.reaping.groups))
        new, received = await hand_over(old, revision)
        os.kill(process, signal.SIGKILL)
        await new.until(lambda: any(isinstance(one, PodGone) for one in new.changes))
        await own(old, new)
        received.close()
        await new.until(lambda: new.ready() == [f"{KEY}#2"])
        await new.supervisor.close()
        await new.tasks.close()

    uvloop.run(scenario())


def test_what_is_not_settled_is_named() -> None:
    async def scenario() -> None:
        side = Side()
        await side.started(counting(), 2)
        assert side.supervisor.given.unsettled() == ""
        side.supervisor.grant(KEY, 1)
        assert "is being stopped" in side.supervisor.given.unsettled()
        side.supervisor.drop_revision(KEY)
        assert "of a revision that was removed" in side.supervisor.given.unsettled()
        await side.supervisor.close()
        await side.tasks.close()

    uvloop.run(scenario())


def test_a_line_of_readiness_is_not_awaited_twice() -> None:
    """It may have been written, and read by the former process, just before the hand-over."""

    async def scenario() -> None:
        old = Side()
        old.supervisor.set_revision(KEY, counting())
        old.supervisor.grant(KEY, 1)
        fleet = old.supervisor.fleets.get(KEY)
        assert fleet is not None
        while not any(one.unit.output.ready.is_set() for one in fleet.processes.values()):
            await pause(0.0)
        assert old.ready() == [], "some turns of the loop are missing"
        new, received = await hand_over(old, counting())
        await own(old, new)
        received.close()
        await new.until(lambda: bool(new.ready()))
        await new.supervisor.close()
        await new.tasks.close()

    uvloop.run(scenario())


def test_each_program_has_its_descriptors() -> None:
    async def scenario() -> None:
        old = Side()
        await old.started(counting(), 3)
        old.supervisor.freeze()
        programs, descriptors = old.supervisor.given.hand_over()
        assert len(descriptors) == DESCRIPTORS * 3
        received = Received(programs, descriptors)
        taken = received.take(f"{KEY}#2")
        assert taken == descriptors[3:6]
        for descriptor in taken:
            os.close(descriptor)
        received.close()
        for descriptor in descriptors:
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.fstat(descriptor)
        old.supervisor.unfreeze()
        await old.supervisor.close()
        await old.tasks.close()

    uvloop.run(scenario())


def test_a_reaper_is_shared_and_hears_of_groups_only_from_the_commit_on() -> None:
    """A new process that gives up leaves no group behind that the reaper would kill later."""
    reading, writing = os.pipe()
    reaping = Reaping.continued(writing, MARK)
    reaping.add_group(41)
    reaping.remove_group(41)
    reaping.add_group(42)
    reaping.adopt_group(40)
    os.set_blocking(reading, False)
    with pytest.raises(BlockingIOError):
        os.read(reading, 100)
    reaping.report_queued()
    assert os.read(reading, 100) == b"+41\n-41\n+42\n"
    assert reaping.groups == {40, 42}
    reaping.close()
    assert os.read(reading, 100) == b""
    os.close(reading)


def test_a_reaper_that_has_ended_is_no_obstacle(caplog: pytest.LogCaptureFixture) -> None:
    reaping = Reaping.continued(-1, MARK)
    reaping.add_group(41)
    reaping.report_queued()
    reaping.close()
    assert "there is no reaper" in caplog.text


def test_a_start_that_takes_too_long_by_the_new_file_is_ended_by_the_process_that_owns_it() -> None:
    """Before that the former process may continue with it; afterwards it must not be forgotten."""
    process = Process(["python3", "-c", "import time; time.sleep(60)"], readiness=Readiness(log="READY"))

    async def scenario() -> None:
        old = Side()
        old.supervisor.set_revision(KEY, Revision("app", process=process))
        old.supervisor.grant(KEY, 1)
        await old.until(lambda: old.supervisor.given.unsettled() == "" and bool(old.reaping.groups))
        group = next(iter(old.reaping.groups))
        impatient = Revision("app", process=process, timeouts=Timeouts(startup=Duration(0.01)))
        new, received = await hand_over(old, impatient)
        await pause(0.2)
        os.killpg(group, 0)
        assert [one.identity for one in new.supervisor.fleets.of(KEY)] == [f"{KEY}#1"]
        await own(old, new)
        received.close()
        await new.until(lambda: group not in new.reaping.groups)
        with pytest.raises(ProcessLookupError):
            os.killpg(group, 0)
        await new.supervisor.close()
        await new.tasks.close()
        assert (old.errors, new.errors) == ([], [])

    uvloop.run(scenario())
