"""Local processes as a source of pods: the supervisor that runs them, the autoscaler that says how many are wanted, and
the groups that say whose turn it is.

The revisions are the file's (`sources/file.py`); this source adds their pods.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from activator.config.model.file import Config
from activator.config.model.revision import Revision
from activator.control_plane.groups.groups import Groups
from activator.control_plane.groups.resolve import resolve_groups
from activator.control_plane.scaling.autoscaler import Autoscaler, Shown
from activator.control_plane.scaling.decision import Decision
from activator.control_plane.scaling.rule import process_rule
from activator.control_plane.sources.process.busy import BusyWatch
from activator.control_plane.sources.process.shown_output import ShownOutput
from activator.control_plane.sources.process.supervisor import ProcessSupervisor
from activator.control_plane.sources.process.unit import Units
from activator.control_plane.sources.source import Source
from activator.control_plane.state.supervision import TASK
from activator.messages import Change, Load, PodTaken, ShowOutput
from activator.runtime.clock import Now
from activator.runtime.tasks import TaskGroupOwner

log = logging.getLogger("activator.process")


class ProcessSource(Source):
    """`submit` takes changes; `units` makes what runs; `panicked` counts defects of ours (`ProcessSupervisor`);
    `wall_clock` is for schedules; `show_output` sends a program's output to waiting pages.
    """

    def __init__(
        self,
        tasks: TaskGroupOwner,
        submit: Callable[[Change], None],
        now: Now,
        wall_clock: Now,
        units: Units,
        panicked: Callable[[str, object, object, float], float],
        show_output: Callable[[ShowOutput], None],
    ) -> None:
        self.supervisor = ProcessSupervisor(tasks, submit, now, units, panicked, self)
        self._panicked = panicked
        self._now = now
        self.groups = Groups(self.supervisor, self.supervisor.move, now)
        self.autoscaler = Autoscaler(now, wall_clock, self._scale, self.groups.keep)
        self._grace_s: dict[str, float] = {}
        self.busy = BusyWatch(
            tasks,
            self.supervisor.fleet,
            self.autoscaler.has_requests,
            self._busy_changed,
            self.autoscaler.touched,
            now,
            wall_clock,
        )
        self.output = ShownOutput(self.supervisor.fleet, now, show_output)

    async def close(self) -> None:
        """Stop every process."""
        await self.supervisor.close()

    def configure(self, config: Config, revisions: dict[str, Revision]) -> None:
        """The revisions of the file by key, with processes or without, and its groups. Others have been dropped.

        In this order: a program is started only when it is known in which group it counts.
        """
        with_programs = {key: revision for key, revision in revisions.items() if revision.program is not None}
        self.supervisor.gpus.configure([str(gpu) for gpu in config.gpus])
        self._grace_s = {one.name: float(one.grace) for one in config.groups if one.grace is not None}
        for key, revision in revisions.items():
            if key in with_programs:
                self.supervisor.set_revision(key, revision)
            else:
                self.drop_revision(key)
        self.groups.configure(resolve_groups(config))
        for key, revision in with_programs.items():
            self.autoscaler.set_revision(key, process_rule(revision))
            self._set_looks(key, revision)

    def _set_looks(self, key: str, revision: Revision) -> None:
        """What is looked at in its programs."""
        page = revision.waiting_page
        self.busy.set_revision(key, revision.activity.busy)
        self.output.set_revision(key, page is not None and page.output)

    def _busy_changed(self, key: str, count: int) -> None:
        """So many of its programs work without a request."""
        self.groups.busy(key, count)
        self.autoscaler.busy(key, count)

    def add_revision(self, key: str, revision: Revision) -> None:
        """One that the file does not have, with a program; or what it is from now on."""
        self.supervisor.set_revision(key, revision)
        self.autoscaler.set_revision(key, process_rule(revision))
        self._set_looks(key, revision)

    def drop_revision(self, key: str) -> None:
        self.autoscaler.drop_revision(key)
        self.supervisor.drop_revision(key)
        self.busy.drop_revision(key)
        self.output.drop_revision(key)
        self.groups.drop_revision(key)

    # --- what an operator asks for ---

    def load(self, key: str, seconds: float | None) -> str:
        """Have it loaded, for so long from when it is ready; None: for as long as it may be idle. A problem, if any."""
        if not self.autoscaler.hold(key, seconds):
            return "it has no `process` or `container`"
        self.supervisor.forgive(key)
        self.groups.ask(key)
        return ""

    def unload(self, key: str) -> str:
        """Stop its programs when they have finished their requests, also those that sleep. A problem, if any."""
        least = self.autoscaler.minimum(key)
        if least is None:
            return "it has no `process` or `container`"
        if least:
            return (
                f"{least} {'process is' if least == 1 else 'processes are'} its minimum now (`min_scale`, a schedule)"
            )
        self.supervisor.stop_all(key)  # first: what the release takes away would be put to sleep
        self.autoscaler.release(key)
        self.groups.unload(key)
        return ""

    def restart(self, key: str) -> str:
        """Start others in the place of its programs, which finish the requests that they have. A problem, if any."""
        if self.autoscaler.minimum(key) is None:
            return "it has no `process` or `container`"
        group = self.groups.of(key)
        if group is not None:  # others may not fit beside those that leave
            return f"it is in the group {group.rule.name}: `unload` it, and `load` it"
        self.supervisor.forgive(key)
        self.supervisor.restart(key)
        return ""

    def scaling(self, key: str) -> Shown | None:
        return self.autoscaler.shown(key)

    def resubmit(self, key: str) -> None:
        self.supervisor.relist(key)

    def receive_load(self, load: Load) -> None:
        self.groups.load(load)  # first: it has to know since when a request waits
        self.busy.load(load)
        self.autoscaler.load(load)

    def receive_taken(self, taken: PodTaken) -> None:
        self.supervisor.taken(taken)

    def receive_drained(self, key: str, identity: str) -> None:
        self.supervisor.drained(key, identity)

    def tick(self) -> None:
        """Look which revisions are to have another number of processes, and whose turn is over."""
        self.busy.tick()
        self.autoscaler.tick()
        self.groups.tick()
        self.output.tick()

    def _scale(self, key: str, decision: Decision) -> None:
        self.groups.wanted(key, decision.wanted)

    # --- from the supervisor (`ProgramListener`) ---

    def ready_changed(self, key: str, count: int) -> None:
        self.autoscaler.ready(key, count)

    def programs_changed(self, key: str, group: str) -> None:
        try:
            self.groups.programs_changed(key, group)
        except Exception as error:  # a defect of the group, not of the program: the next tick decides again
            self._panicked(f"{TASK}group {group}", key, error, self._now())
            log.error("an error of ours in the group %s", group, exc_info=error)

    def released(self, key: str) -> None:
        self.autoscaler.release(key)

    def grace_of(self, group: str) -> float | None:
        return self._grace_s.get(group)
