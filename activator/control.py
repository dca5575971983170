"""The control part, put together: discovery, the state worker, probes, processes, scaling.

It exists once, however many workers there are. It knows the data part by the effects it sends and the messages it
hears.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Callable

from activator.clock import Now
from activator.config import SCALE_TICK_S, SWEEP_INTERVAL_S, Config, Push, Revision, RevisionSpec
from activator.discovery import static
from activator.discovery.process import ProcessSupervisor, Reaping
from activator.discovery.push import PushIntake
from activator.scaling.local import LocalAutoscaler
from activator.state.messages import PUSH, Change, Effect, Load, PodDrained, RevisionGone, RevisionSet, Sweep, Told
from activator.state.probing import Prober
from activator.state.supervision import WORKER
from activator.state.worker import StateWorker
from activator.tasks import TaskGroupOwner, pause
from lb.rng import Rng

log = logging.getLogger("activator.control")

STALLED_AFTER_S = 10.0  # a state worker that has not turned for so long is not alive


class Control:
    """`send` delivers effects to the data part."""

    def __init__(
        self,
        now: Now,
        send: Callable[[list[Effect]], None],
        rng: Rng,
        tasks: TaskGroupOwner,
        reaping: Reaping,
    ) -> None:
        self._now = now
        self._tasks = tasks
        self._revisions: dict[str, Revision] = {}
        self.prober = Prober(tasks, self.submit, rng, now)
        self.worker = StateWorker(now, send, self.prober.order, self._relist, rng=rng)
        self.intake: PushIntake | None = None
        self.processes = ProcessSupervisor(tasks, self.submit, now, reaping)
        self.scaler = LocalAutoscaler(now, self.processes.scale)

    # --- life ---

    def start(self) -> None:
        self._tasks.start("state worker", self._run_worker())
        self._tasks.start("sweeps", self._run_sweeps())
        self._tasks.start("scaling", self._run_scaling())

    async def close(self) -> None:
        """Stop every process."""
        await self.processes.close()

    def is_alive(self) -> bool:
        """The state worker's loop turns."""
        return self._now() - self.worker.turned_s < STALLED_AFTER_S

    # --- configuration ---

    def configure(self, config: Config, specs: list[RevisionSpec]) -> None:
        """Make the revisions be what the file says, whatever they were; pods that stay are not touched."""
        wanted = {f"{revision.namespace}/{revision.name}": revision for revision in config.revisions}
        for key in [key for key in self._revisions if key not in wanted]:
            self._drop(key)
        for spec in specs:
            revision = wanted[spec.key]
            self.submit(RevisionSet(spec))
            self._set_sources(spec.key, revision)
            self._revisions[spec.key] = revision

    def _set_sources(self, key: str, revision: Revision) -> None:
        if revision.process is not None:
            self.processes.set_revision(key, revision)
            self.scaler.set_revision(key, revision)
        else:
            self.processes.drop_revision(key)
            self.scaler.drop_revision(key)
        self.submit(static.listed(revision))

    def _drop(self, key: str) -> None:
        del self._revisions[key]
        self.scaler.drop_revision(key)
        self.processes.drop_revision(key)
        self.submit(RevisionGone(key))

    def take_reports(self, push: Push) -> PushIntake:
        """What takes pods' reports of themselves."""
        networks = tuple(ipaddress.ip_network(network) for network in push.networks)
        self.intake = PushIntake(self.worker.submit_and_tell, self.worker.model, networks)
        return self.intake

    # --- messages ---

    def submit(self, change: Change) -> None:
        self.worker.submit(change)

    def hear(self, message: Told) -> None:
        """From the data part."""
        if isinstance(message, Load):
            if message.queued:
                self.prober.hurry(message.key)
            self.scaler.load(message)
        elif isinstance(message, PodDrained):
            self.processes.drained(message.key, message.identity)
        else:
            self.submit(message)

    # --- within ---

    def _relist(self, source: str) -> None:
        """Changes of this source were dropped: let it say everything again."""
        if source == static.SOURCE:
            for revision in self._revisions.values():
                self.submit(static.listed(revision))
        elif source != PUSH:  # pods repeat themselves
            self.processes.relist()

    async def _run_worker(self) -> None:
        while True:
            try:
                await self.worker.run()
            except Exception as error:
                backoff_s = self.worker.supervision.panicked(WORKER, "the worker itself", error, self._now())
                log.exception("the state worker itself failed; it starts again in %.1f s", backoff_s)
                await pause(backoff_s)

    async def _run_sweeps(self) -> None:
        while True:
            await pause(SWEEP_INTERVAL_S)
            for key in list(self.worker.model.aging):
                self.submit(Sweep(key))

    async def _run_scaling(self) -> None:
        while True:
            await pause(SCALE_TICK_S)
            try:
                self.scaler.tick()
            except Exception:
                log.exception("scaling failed; it is tried again in %.1f s", SCALE_TICK_S)
