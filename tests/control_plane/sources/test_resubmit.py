"""What was lost of a revision is said again by whoever knows of it: the file, its processes, a cluster, or nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from activator.config.model.file import Config
from activator.config.model.programs import Process
from activator.config.model.revision import Revision
from activator.config.specs import RevisionSpec, RoutingSpec
from activator.control_plane.plane import ControlPlane
from activator.control_plane.sources.process.child import ChildProcesses
from activator.control_plane.sources.process.reaping import Reaping
from activator.control_plane.sources.process.supervisor import CRASHES_MAX, SOURCE, ProcessSupervisor
from activator.control_plane.sources.source import Source
from activator.control_plane.state.model import Model, Reduction
from activator.control_plane.state.reduce import reduce
from activator.control_plane.state.supervision import PANIC_BACKOFF_MAX_S, PANIC_BUDGET
from activator.messages import (
    Change,
    Effect,
    Load,
    PodsListed,
    RevisionFailed,
    RevisionGone,
    RevisionRecovered,
    RevisionSet,
)
from activator.runtime.tasks import TaskGroupOwner
from lb.rng import Rng
from tests.control_plane.sources.program_reports import ProgramReports
from tests.manual_clock import ManualClock

FIXED = Revision("fixed", pods=["127.0.0.1:9001", "127.0.0.1:9002"])
OTHER = Revision("other", pods=["127.0.0.1:9003"])
RUN = Revision("run", process=Process(["true"]))


class Tasks(TaskGroupOwner):
    """Starts nothing."""

    def __init__(self) -> None:
        super().__init__(lambda name, error: None)

    def start(self, name: str, coroutine: Any) -> Any:
        coroutine.close()
        return Task()


class Task:
    """Never ends."""

    def add_done_callback(self, callback: Any) -> None:
        pass

    def cancel(self) -> None:
        pass

    def done(self) -> bool:
        return False


class Cluster(Source):
    def __init__(self, submit: Callable[[Change], None]) -> None:
        self._submit = submit

    def declares(self, key: str) -> bool:
        return True

    def resubmit(self, key: str) -> None:
        self._submit(RevisionSet(RevisionSpec(key)))


class World:
    """A control plane whose state worker the test turns, and loses changes of these kinds."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.tried: list[Change] = []
        self.losing: set[type] = set()
        self.control = ControlPlane(
            self.clock.now,
            lambda effects: None,
            lambda: None,
            Rng(1),
            Tasks(),
            Reaping(None, ""),
            self.clock.now,
            lambda shown: None,
        )
        self.control.worker._reduce = self._reduce

    def _reduce(self, model: Model, change: Change, now_s: float) -> Reduction:
        self.tried.append(change)
        if type(change) in self.losing:
            self.losing.discard(type(change))
            raise RuntimeError("injected")
        return reduce(model, change, now_s)

    def configure(self, *revisions: Revision) -> None:
        specs = [RevisionSpec(f"{one.namespace}/{one.name}") for one in revisions]
        self.control.configure(Config(revisions=list(revisions)), specs)
        self.turn()

    def turn(self) -> None:
        while self.control.worker.turn():
            pass

    def pods(self, key: str) -> set[str]:
        return set(self.control.worker.model.revisions[key].pods)


@pytest.mark.parametrize("lost", [RevisionSet, PodsListed])
def test_what_was_lost_of_a_revision_of_the_file_is_said_again_and_of_no_other(lost: type) -> None:
    world = World()
    world.losing = {lost}
    world.configure(FIXED, OTHER)
    assert world.pods("default/other") == {"127.0.0.1:9003"}
    world.tried.clear()
    world.clock.pass_time(2 * PANIC_BACKOFF_MAX_S)
    world.turn()
    assert world.pods("default/fixed") == {"127.0.0.1:9001", "127.0.0.1:9002"}
    assert {change.key for change in world.tried} == {"default/fixed"}


def test_that_a_revision_of_the_file_has_gone_is_said_again() -> None:
    world = World()
    world.configure(FIXED, OTHER)
    world.losing = {RevisionGone}
    world.configure(OTHER)
    assert "default/fixed" in world.control.worker.model.revisions
    world.clock.pass_time(2 * PANIC_BACKOFF_MAX_S)
    world.turn()
    assert set(world.control.worker.model.revisions) == {"default/other"}


def test_a_full_queue_that_drops_a_new_process_says_the_revision_as_the_file_has_it_now() -> None:
    """Its first process is started while the file is taken in."""
    world = World()
    world.configure(RUN)
    world.control.worker.queue._changes_max = 0
    started = Revision("run", process=Process(["true"], min_scale=1))
    spec = RevisionSpec("default/run", routing=RoutingSpec(hosts=("changed",)))
    world.control.configure(Config(revisions=[started]), [spec])
    world.turn()
    assert world.control.worker.dropped_total == 1
    assert world.control.worker.model.revisions["default/run"].spec == spec
    assert world.pods("default/run") == {"default/run#1"}
    added = Revision("added", process=Process(["true"], min_scale=1))
    world.configure(started, added)
    assert world.pods("default/added") == {"default/added#2"}


def test_what_no_file_names_the_cluster_says_again() -> None:
    world = World()
    asyncio.run(world.control.start_source(Cluster(world.control.submit)))
    world.losing = {RevisionSet}
    world.control.submit(RevisionSet(RevisionSpec("default/of-a-cluster")))
    world.turn()
    world.clock.pass_time(2 * PANIC_BACKOFF_MAX_S)
    world.turn()
    assert set(world.control.worker.model.revisions) == {"default/of-a-cluster"}


def test_processes_say_what_there_is_and_why_they_do_not_start() -> None:
    said: list[Change] = []
    processes = ProcessSupervisor(
        *(Tasks(), said.append, ManualClock().now, ChildProcesses(Tasks(), ManualClock().now, Reaping(None, ""))),
        lambda *_: 1.0,
        ProgramReports(),
    )
    processes.set_revision("default/run", RUN)
    processes.relist("default/run")
    processes.relist("default/no-more")
    assert said == [
        PodsListed("default/run", SOURCE, ()),
        RevisionRecovered("default/run"),
        PodsListed("default/no-more", SOURCE, ()),
        RevisionRecovered("default/no-more"),
    ]
    processes.grant("default/run", 1)
    fleet = processes.fleets.by_key["default/run"]
    said.clear()
    processes.relist("default/run")
    assert isinstance(said[0], PodsListed) and [pod.identity for pod in said[0].pods] == ["default/run#1"]
    process = fleet.processes["default/run#1"]
    processes._remove_exited(fleet, process)
    for _ in range(CRASHES_MAX):
        processes._record_crash(fleet, process, "it cannot be run")
    said.clear()
    processes.relist("default/run")
    failed = RevisionFailed("default/run", "it cannot be run", fleet.not_before_s)
    assert said == [PodsListed("default/run", SOURCE, ()), failed]
    assert fleet.not_before_s > 0.0, "what is told is when the next start may be tried"


def test_a_revision_that_fails_before_it_can_be_told_is_one_of_all() -> None:
    """With two that are served it is a third of them, not half: that takes nobody out of service."""
    world = World()
    world.configure(FIXED, OTHER)
    worker = world.control.worker
    for _ in range(PANIC_BUDGET + 1):
        worker.supervision.panicked("ns/unknown", "what the cluster says of it", "an error", world.clock.now())
    assert (len(worker.model.revisions), world.control.over_budget()) == (2, [])
    world.clock.pass_time(1.0)
    worker.supervision.panicked("ns/unknown", "what the cluster says of it", "an error", world.clock.now())
    assert not world.control.is_hopeless(1.0)


class Raising(Source):
    """Takes nothing well."""

    def receive_load(self, load: Load) -> None:
        raise RuntimeError("injected")

    def applied(self, effects: list[Effect]) -> None:
        raise RuntimeError("injected")


class Hearing(Source):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.loads: list[Load] = []
        self.batches = 0

    def receive_load(self, load: Load) -> None:
        self.loads.append(load)

    def applied(self, effects: list[Effect]) -> None:
        self.batches += 1


def test_a_source_that_raises_disturbs_neither_the_data_plane_nor_the_state_worker() -> None:
    world = World()
    hearing = Hearing()
    world.control._sources.extend([Raising(), hearing])
    supervision = world.control.worker.supervision
    world.control.receive(Load("ns/rev", 1, 0, 1))
    assert supervision.panics_total == 1
    world.configure(FIXED)
    assert world.pods("default/fixed") == {"127.0.0.1:9001", "127.0.0.1:9002"}
    assert supervision.panics_total == 2 and hearing.batches == 1, "each of the others has been told"
    assert world.control.worker.rebuilds_total == 0
