"""The assembled control plane: sources, the state worker, probes and scaling.

It exists once, whatever the number of workers. It communicates with the data plane by messages (`messages/`), and with
its sources by `sources/source.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any, Final

from activator.config.model.file import Config
from activator.config.model.pods import Dns
from activator.config.specs import RevisionSpec
from activator.control_plane.groups.shown import shown, view_in_group
from activator.control_plane.own_ports import OwnPorts
from activator.control_plane.probes.prober import Prober
from activator.control_plane.probes.tcp_probe import TcpProber
from activator.control_plane.scaling.autoscaler import LastDecision
from activator.control_plane.snapshot import UNANSWERED_S, Known, revisions, state_worker, unloads_in_s
from activator.control_plane.sources.container.source import ContainerSource
from activator.control_plane.sources.container.units import ContainerUnits
from activator.control_plane.sources.file import FileSource
from activator.control_plane.sources.fixed_pods.resolver import NameResolver
from activator.control_plane.sources.fixed_pods.source import FixedPods
from activator.control_plane.sources.health_checks import HealthChecks
from activator.control_plane.sources.local_units import LocalUnits
from activator.control_plane.sources.process.child import ChildProcesses
from activator.control_plane.sources.process.reaping import Reaping
from activator.control_plane.sources.process.source import ProcessSource
from activator.control_plane.sources.source import Source
from activator.control_plane.sources.unreachable import UnreachableRevisions
from activator.control_plane.state import repair
from activator.control_plane.state.supervision import TASK, WORKER, Supervision
from activator.control_plane.state.worker import StateWorker
from activator.messages import (
    PUSH,
    Change,
    Effect,
    Load,
    PodDrained,
    PodSetAside,
    PodTaken,
    RevisionGone,
    SentRevision,
    ShowOutput,
    Sweep,
    ToControl,
)
from activator.runtime.clock import Now, until_next
from activator.runtime.controller_counts import Controllers
from activator.runtime.tasks import TaskGroupOwner, keep_running, pause
from lb.rng import Rng

START_SETTLE_S: Final = 10.0  # longest wait at the start until the file's revisions are applied
PODS_NAMED_MAX: Final = 10  # in the answer to a command about one pod
NO_REVISION: Final = "there is no such revision"  # the answer to a command about an unknown one
SWEEP_INTERVAL_S: Final = 1.0  # between two checks of the age of what sources have reported
SCALE_TICK_S: Final = 0.1  # between two checks which revisions need a scaling decision

log = logging.getLogger("activator.state")

STALLED_AFTER_S = 10.0  # a state worker whose loop has not turned for this time counts as dead


class ControlPlane:
    """The control plane.

    `send` delivers effects to the data plane; `write_out` flushes what its requests have written; `wall_clock` returns
    Unix seconds; `show_output` sends a program's output to waiting pages; `dns` configures the resolver.
    """

    def __init__(
        self,
        now: Now,
        send: Callable[[list[Effect]], None],
        write_out: Callable[[], None],
        rng: Rng,
        tasks: TaskGroupOwner,
        reaping: Reaping,
        wall_clock: Now,
        show_output: Callable[[ShowOutput], None],
        dns: Dns = Dns(),  # noqa: B008
    ) -> None:
        self._now = now
        self._send = send
        self._tasks = tasks
        self.own_ports = OwnPorts()
        supervision = Supervision(rng)
        panicked = supervision.panicked
        self.prober = Prober(tasks, self.submit, rng, now, self, panicked, TcpProber(now).probe)
        self.worker = StateWorker(
            now,
            self._send_effects,
            self.prober.execute,
            self._resubmit,
            supervision=supervision,
            before_batch=write_out,
        )
        self.health_checks = HealthChecks(tasks, self.submit, self.worker.model, now)
        self.controllers = Controllers(now)
        containers = ContainerUnits(tasks, now, wall_clock, reaping)
        units = LocalUnits(ChildProcesses(tasks, now, reaping), containers)
        self.processes = ProcessSource(tasks, self.submit, now, wall_clock, units, panicked, show_output)
        resolver = NameResolver(dns.servers, float(dns.timeout))
        fixed_pods = FixedPods(tasks, self.submit, self._pods_changed, now, resolver, wall_clock)
        self._unreachable = UnreachableRevisions(self.submit, self.prober, self.worker.model, now, fixed_pods.cause_of)
        self.file = FileSource(self.submit, self.processes, fixed_pods, self._unreachable)
        self.containers = ContainerSource(tasks, self.submit, self.processes, containers)
        # In the order in which they are asked whether they declare a revision.
        self._sources: list[Source] = [self.file, self.containers, self.processes]

    # --- life ---

    def start(self) -> None:
        """Start the tasks of the control plane."""
        for name, step in (
            (WORKER, self.worker.run),
            ("sweeps", self._sweep),
            ("scaling", self._scale),
            ("health checks", self.health_checks.run),
        ):
            failed = self.worker.supervision.error_handler_of_task(name, self._now)
            self._tasks.start(name or "state worker", keep_running(step, failed))

    async def close(self) -> None:
        """Close the sources; every process is stopped."""
        for source in self._sources:
            await source.close()

    async def close_connections(self) -> None:
        """Close the connections of sources; another process of the activator has taken over the programs."""
        await self.containers.close_connections()

    def is_alive(self) -> bool:
        """Return True if the loop of the state worker turns."""
        return self._now() - self.worker.turned_s < STALLED_AFTER_S

    async def wait_until_applied(self) -> None:
        """Wait until all submitted changes have been applied, for START_SETTLE_S at most."""
        until_s = self._now() + START_SETTLE_S
        while not self.worker.is_settled() and self._now() < until_s:
            await pause(0.0)

    def over_budget(self) -> list[str]:
        """Return reasons why the activator is unreliable: parts that fail often, and are a large share of the whole."""
        return self.worker.supervision.over_budget(self._revisions(), self._now())

    def is_hopeless(self, grace_s: float) -> bool:
        """Return True if a task of the control plane, or half of the revisions, has kept failing for `grace_s`."""
        return self.worker.supervision.is_hopeless(self._revisions(), grace_s, self._now())

    def _revisions(self) -> int:
        """Return the number of revisions, including those that fail before they are declared."""
        known = self.worker.model.revisions
        return len(known) + sum(key not in known for key in self.worker.supervision.failing_revisions())

    def tables(self) -> Iterator[SentRevision]:
        """Yield all revisions, for a new data plane; to be read within one turn of the loop."""
        model = self.worker.model
        for key, revision in model.revisions.items():
            yield SentRevision(repair.whole(revision), model.sent.get(key, 0))

    def snapshot(self, only: str = "") -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
        """Return the revisions (or only that with the key `only`) and the state worker, for `/debug/revisions`."""
        worker = self.worker
        known = worker.model.revisions
        if only:
            known = {only: known[only]} if only in known else {}
        statistics = self.processes.supervisor.fleets.statistics()
        views = revisions(known, statistics, self.scaling, self.prober.failing, self._now())
        for key, view in views.items():
            view["problems"] = self._problems(key)
            view["memory"] = self.processes.memory.use_of(key)
            group = self.processes.groups.of(key)
            if group is not None:
                view["group"] = view_in_group(group, key, self._now())
        return views, state_worker(worker, self._now())

    def groups_shown(self) -> list[dict[str, Any]]:
        """Return the groups, their budgets and the holders, for `/debug/revisions`."""
        now_s = self._now()
        groups = [shown(group, now_s) for group in self.processes.groups.groups.values()]
        for holder in (holder for group in groups for holder in group["holders"]):
            last = self.scaling(holder["revision"])
            holder["memory"] = self.processes.memory.use_of(holder["revision"])
            holder["unloads_in_s"] = None if last is None else unloads_in_s(last.decision, now_s)
        return groups

    def timelines(self) -> dict[str, list[dict[str, Any]]]:
        """Return what the programs of each group did in the last hour, by the name of the group."""
        return {name: group.timeline.shown(self._now()) for name, group in self.processes.groups.groups.items()}

    def known(self, key: str) -> Known | None:
        """Return what the overview shows of a revision; None if there is none."""
        record = self.worker.model.revisions.get(key)
        if record is None:
            return None
        until_s = self._now() - UNANSWERED_S
        failing = {pod: failure for pod, failure in self.prober.failing(key).items() if failure.since_s <= until_s}
        has_program = self.processes.supervisor.fleets.log_of(key) is not None
        return Known(record, self._problems(key), failing, has_program)

    def set_aside(self, key: str, pod: str, is_aside: bool) -> str:
        """Take a pod, by address or identity, out of service, or put it back. Return a problem, or ""."""
        record = self.worker.model.revisions.get(key)
        if record is None:
            return NO_REVISION
        if self.processes.supervisor.fleets.log_of(key) is not None:
            return "its pods are programs of this machine: use `restart` or `unload`"
        if not pod:
            return "name a pod by its address: `?pod=ADDRESS`"
        identities = [
            present.identity for present in record.pods.values() if pod in (present.address, present.identity)
        ]
        if not identities:
            addresses = sorted(present.address for present in record.pods.values())
            listed = ", ".join(addresses[:PODS_NAMED_MAX]) + (", …" if len(addresses) > PODS_NAMED_MAX else "")
            return f"it has no pod {pod!r}, but {listed}" if listed else "it has no pods"
        for identity in identities:
            self.submit(PodSetAside(key, identity, is_aside))
        return ""

    def aside(self) -> tuple[tuple[str, str], ...]:
        """Return the revision and the identity of each pod that an operator has taken out of service."""
        revisions = self.worker.model.revisions.items()
        return tuple([(key, pod.identity) for key, record in revisions for pod in record.pods.values() if pod.is_aside])

    def scaling(self, key: str) -> LastDecision | None:
        """Return the last scaling decision of a revision; None if no source scales it."""
        decisions = (source.scaling(key) for source in self._sources)
        return next((decision for decision in decisions if decision is not None), None)

    # --- sources ---

    def configure(self, config: Config, specs: list[RevisionSpec]) -> None:
        """Apply what the file declares (`FileSource.configure`)."""
        self.containers.prepare(config)
        self.file.configure(config, specs)
        self.containers.configure(config)

    async def start_source(self, source: Source) -> None:
        """Start a source beside the file. Raises StartError."""
        self._sources.append(source)
        await source.start()

    def pending(self) -> list[str]:
        """Return what the sources have still to receive before the activator is ready to serve."""
        return [reason for source in self._sources for reason in source.pending()]

    def is_listed(self) -> bool:
        """Return True if every source has listed its revisions once, and the data plane has received them."""
        return not self.pending() and self.worker.is_settled()

    # --- messages ---

    def submit(self, change: Change) -> None:
        """Hand a change to the state worker, without pods at ports of this program."""
        self.worker.submit(self.own_ports.without_own(change))

    def receive(self, message: ToControl) -> None:
        """Process a message of the data plane; an error of a receiver is logged and not raised."""
        try:
            self._receive(message)
        except Exception as error:
            self._record_failure("receiver of messages", message, error)

    def _receive(self, message: ToControl) -> None:
        if isinstance(message, Load):
            if message.queued:
                self.prober.expedite(message.key)
            for source in self._sources:
                source.receive_load(message)
        elif isinstance(message, PodDrained):
            for source in self._sources:
                source.receive_drained(message.key, message.identity)
        elif isinstance(message, PodTaken):
            for source in self._sources:
                source.receive_taken(message)
        else:
            self.submit(message)

    # --- from the prober and the fixed pods ---

    def pod_failed(self, key: str) -> None:
        """Record that a pod of the revision did not answer a probe (`ProbeListener`)."""
        self._unreachable.pod_failed(key)

    def pod_answered(self, key: str) -> None:
        """Record that a pod of the revision answered a probe (`ProbeListener`)."""
        self._unreachable.recover(key)

    def _pods_changed(self, key: str, new_pods: bool) -> None:
        """Report to `UnreachableRevisions` that a revision has new pods, or the same ones again."""
        self._unreachable.pods_changed(key, new_pods)

    # --- within ---

    def _problems(self, key: str) -> list[str]:
        """Return why pods are missing, in words for people."""
        waits_for = self.processes.dependencies.waits_for(key)
        waits = [f"waits for {', '.join(waits_for)}, which it depends on"] if waits_for else []
        return [*self.file.fixed_pods.problems(key), *waits, *self.processes.supervisor.fleets.problems(key)]

    def _send_effects(self, effects: list[Effect]) -> None:
        """Send effects to the data plane, and then to the parts of the control plane that use them."""
        self._send(effects)
        self.health_checks.applied(effects)
        for source in self._sources:
            try:
                source.applied(effects)
            except Exception as error:  # an error of the source: the effects have arrived nevertheless
                self._record_failure(f"source {type(source).__name__}", effects, error)

    def _record_failure(self, name: str, work: object, error: Exception) -> None:
        """Record an exception that `work` caused in a part of the control plane, and log it."""
        self.worker.supervision.panicked(TASK + name, work, error, self._now())
        log.error(
            "the %s raised an exception; it is kept in `dead_letters`, and other work continues", name, exc_info=error
        )

    def _resubmit(self, source: str, key: str) -> None:
        """Have the source of a revision submit it again, because a change from `source` was lost."""
        if source == PUSH:
            return  # pods repeat their reports
        for declaring in self._sources:
            if declaring.declares(key):
                declaring.resubmit(key)
                return
        self.submit(RevisionGone(key))

    async def _sweep(self) -> None:
        """Wait for one interval; then have the state worker check what may be too old or unconfirmed."""
        await pause(SWEEP_INTERVAL_S)
        for key in list(self.worker.model.aging):
            self.submit(Sweep(key))
        self.worker.rebuild_unconfirmed()

    async def _scale(self) -> None:
        """Wait for one interval; then have the source of processes decide on scales and turns that are due."""
        await pause(until_next(SCALE_TICK_S, self._now()))
        self.processes.tick()
