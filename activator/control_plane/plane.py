"""The control plane, put together: discovery, the state worker, probes, processes, scaling.

It exists once, however many workers there are. It knows the data plane by the effects it sends and the messages it
hears.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from typing import Final, Protocol

from activator.config.model import Config, Push, Revision
from activator.config.specs import RevisionSpec
from activator.control_plane.controller_counts import Controllers
from activator.control_plane.probes.prober import Prober
from activator.control_plane.probes.tcp_probe import TcpProber
from activator.control_plane.scaling.local import LocalAutoscaler
from activator.control_plane.sources.process import ProcessSupervisor, Reaping
from activator.control_plane.sources.push import PushIntake
from activator.control_plane.state.supervision import WORKER, keep_running
from activator.control_plane.state.worker import StateWorker
from activator.messages import (
    PUSH,
    Change,
    Effect,
    Listed,
    Load,
    PodDrained,
    RevisionGone,
    RevisionSet,
    Sweep,
    ToControl,
)
from activator.runtime.clock import Now
from activator.runtime.tasks import TaskGroupOwner, pause
from lb.rng import Rng

START_SETTLE_S: Final = 10.0  # how long the start waits at the most until the file's revisions are applied
SWEEP_INTERVAL_S: Final = 1.0  # how often the age of what sources have said is looked at
SCALE_TICK_S: Final = 0.1

STALLED_AFTER_S = 10.0  # a state worker that has not turned for so long is not alive


class Cluster(Protocol):
    """Where revisions come from that no file names."""

    def load(self, load: Load) -> None: ...

    def applied(self, effects: list[Effect]) -> None:
        """The model is as these say: what a revision is declared may follow from which of its pods answer."""

    def relist(self, key: str) -> None:
        """Changes of this revision were lost: tell everything of it again, be it that it is gone."""


class ControlPlane:
    """`send` delivers effects to the data plane; `write_out` sends what its requests have written so far."""

    def __init__(
        self,
        now: Now,
        send: Callable[[list[Effect]], None],
        write_out: Callable[[], None],
        rng: Rng,
        tasks: TaskGroupOwner,
        reaping: Reaping,
    ) -> None:
        self._now = now
        self._send = send
        self._tasks = tasks
        self._declared: dict[str, tuple[RevisionSet, Listed]] = {}  # by revision: what the file says of it
        self.prober = Prober(tasks, self.submit, rng, now, TcpProber(now).ask)
        self.worker = StateWorker(now, self._apply, self.prober.order, self._resubmit, rng=rng, before_batch=write_out)
        self.intake: PushIntake | None = None
        self.cluster: Cluster | None = None
        self.processes = ProcessSupervisor(tasks, self.submit, now, reaping, self.worker.supervision.panicked)
        self.scaler = LocalAutoscaler(now, self.processes.scale)
        self.controllers = Controllers(now)

    # --- life ---

    def start(self) -> None:
        for name, run in ((WORKER, self.worker.run), ("sweeps", self._run_sweeps), ("scaling", self._run_scaling)):
            self._tasks.start(name or "state worker", keep_running(name, run, self.worker.supervision, self._now))

    async def close(self) -> None:
        """Stop every process."""
        await self.processes.close()

    def is_alive(self) -> bool:
        """The state worker's loop turns."""
        return self._now() - self.worker.turned_s < STALLED_AFTER_S

    async def settle(self) -> None:
        """Until what was asked for so far has been applied; for START_SETTLE_S at the most."""
        until_s = self._now() + START_SETTLE_S
        while not self.worker.is_settled() and self._now() < until_s:
            await pause(0.0)

    def over_budget(self) -> list[str]:
        """What fails so often, and so much of the whole, that nobody should rely on this program; as reasons."""
        return self.worker.supervision.over_budget(self._revisions(), self._now())

    def is_hopeless(self, grace_s: float) -> bool:
        """It fails again and again, and has for the grace: only a new start may help."""
        return self.worker.supervision.is_hopeless(self._revisions(), grace_s, self._now())

    def _revisions(self) -> int:
        """How many there are, with those that fail before anything can be declared of them."""
        return len(self.worker.model.revisions.keys() | self.worker.supervision.failing_revisions())

    # --- configuration ---

    def configure(self, config: Config, specs: list[RevisionSpec], lists: dict[str, Listed]) -> None:
        """Make the revisions be what the file says, whatever they were; pods that stay are not touched.

        `lists`: their fixed pods (`static.lists`).
        """
        wanted = {f"{revision.namespace}/{revision.name}": revision for revision in config.revisions}
        declared = {spec.key: (RevisionSet(spec), lists[spec.key]) for spec in specs}
        leaving = [key for key in self._declared if key not in declared]
        self._declared = declared  # at once: what a full queue drops of the following is said anew as it is now
        for key in leaving:
            self._drop(key)
        for key, (revision_set, listed) in declared.items():
            self.submit(revision_set)
            self._set_processes(key, wanted[key])
            self.submit(listed)

    def _set_processes(self, key: str, revision: Revision) -> None:
        if revision.process is not None:
            self.processes.set_revision(key, revision)
            self.scaler.set_revision(key, revision)
        else:
            self.processes.drop_revision(key)
            self.scaler.drop_revision(key)

    def _drop(self, key: str) -> None:
        self.scaler.drop_revision(key)
        self.processes.drop_revision(key)
        self.submit(RevisionGone(key))

    def take_reports(self, push: Push) -> PushIntake:
        """What takes pods' reports of themselves."""
        networks = tuple(ipaddress.ip_network(network) for network in push.networks)
        self.intake = PushIntake(self.worker.submit_with_outcome, self.worker.model, networks)
        return self.intake

    # --- messages ---

    def submit(self, change: Change) -> None:
        self.worker.submit(change)

    def receive(self, message: ToControl) -> None:
        """From the data plane."""
        if isinstance(message, Load):
            if message.queued:
                self.prober.hurry(message.key)
            self.scaler.load(message)
            if self.cluster is not None:
                self.cluster.load(message)
        elif isinstance(message, PodDrained):
            self.processes.drained(message.key, message.identity)
        else:
            self.submit(message)

    # --- within ---

    def _apply(self, effects: list[Effect]) -> None:
        self._send(effects)
        if self.cluster is not None:
            self.cluster.applied(effects)

    def _resubmit(self, source: str, key: str) -> None:
        """A change of this revision was lost: let everything be said of it again.

        Everything, since what was said after a lost change may have come to nothing without it.
        """
        if source == PUSH:
            return  # pods repeat themselves
        declared = self._declared.get(key)
        if declared is not None:
            for change in declared:
                self.submit(change)
            self.processes.relist(key)
        elif self.cluster is not None:
            self.cluster.relist(key)
        else:
            self.submit(RevisionGone(key))

    async def _run_sweeps(self) -> None:
        while True:
            await pause(SWEEP_INTERVAL_S)
            for key in list(self.worker.model.aging):
                self.submit(Sweep(key))

    async def _run_scaling(self) -> None:
        while True:
            await pause(SCALE_TICK_S)
            self.scaler.tick()
