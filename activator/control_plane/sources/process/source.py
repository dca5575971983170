"""Local processes as a source of pods: the supervisor that runs them, the autoscaler, and the groups with a budget.

The revisions come from the configuration file (`sources/file.py`); this source adds their pods.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from activator.config.model.file import Config
from activator.config.model.revision import Revision
from activator.config.specs import key_of
from activator.control_plane.groups.groups import Groups
from activator.control_plane.groups.resolve import resolve_groups
from activator.control_plane.scaling.autoscaler import Autoscaler, LastDecision
from activator.control_plane.scaling.decision import Decision
from activator.control_plane.scaling.rule import process_rule
from activator.control_plane.sources.process.busy import BusyWatch
from activator.control_plane.sources.process.dependencies import Dependencies
from activator.control_plane.sources.process.memory_use import MemoryWatch
from activator.control_plane.sources.process.shown_output import OutputTailSender
from activator.control_plane.sources.process.supervisor import ROOM, ProcessSupervisor
from activator.control_plane.sources.process.unit import Units
from activator.control_plane.sources.source import Source
from activator.control_plane.state.supervision import TASK
from activator.messages import Change, Load, PodTaken, ShowOutput
from activator.runtime.clock import Now
from activator.runtime.durations import lasting
from activator.runtime.tasks import TaskGroupOwner

UPGRADING: Final = "an upgrade is under way; try again"

log = logging.getLogger("activator.process")


class ProcessSource(Source):
    """The source of local programs.

    `submit` takes changes, `units` creates the runs of programs, `panicked` counts bugs of the activator
    (`ProcessSupervisor`), `wall_clock` is for schedules, and `show_output` sends a program's output to waiting pages.
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
        self._submit = submit
        self.supervisor = ProcessSupervisor(tasks, self._report, now, units, panicked, self)
        self._panicked = panicked
        self._now = now
        self.groups = Groups(self.supervisor, self.supervisor.move, now)
        self.autoscaler = Autoscaler(now, wall_clock, self._scale, self.groups.keep)
        self.dependencies = Dependencies(
            self.supervisor.fleets.is_ready,
            self.supervisor.fleets.is_awake,
            self.groups.set_desired,
            self.autoscaler.needed,
            submit,
        )
        self._grace_s: dict[str, float] = {}  # by group: how long the requests of its programs may still run
        self.busy = BusyWatch(
            tasks,
            self.supervisor.fleets.get,
            self.autoscaler.has_requests,
            self._busy_changed,
            self.autoscaler.touched,
            now,
            wall_clock,
        )
        self.memory = MemoryWatch(tasks, self.supervisor.fleets, now, self._counted_changed)
        self._config = Config()
        self.output = OutputTailSender(self.supervisor.fleets.get, now, show_output)

    async def close(self) -> None:
        """Stop every process."""
        await self.supervisor.close()

    def configure(self, config: Config, revisions: dict[str, Revision]) -> None:
        """Set the groups and all revisions of the file by key, with and without programs; others have been dropped.

        The groups come before the scaling: a program may be started only when its group is known.
        """
        with_programs = {key: revision for key, revision in revisions.items() if revision.program is not None}
        self.supervisor.gpus.configure([str(gpu) for gpu in config.gpus])
        self._grace_s = {group.name: float(group.grace) for group in config.groups if group.grace is not None}
        for key, revision in revisions.items():
            if key in with_programs:
                self.supervisor.set_revision(key, revision)
            else:
                self.drop_revision(key)
        self._config = config
        self.groups.configure(resolve_groups(config, self.memory.counted()))
        self.dependencies.configure({key: tuple(map(key_of, one.depends_on)) for key, one in with_programs.items()})
        for key, revision in with_programs.items():
            self._set_scale(key, revision)
        self.dependencies.refresh()

    def _set_scale(self, key: str, revision: Revision) -> None:
        """Set the scale of a revision, and whether its programs are asked for work and their output is shown."""
        running = self.supervisor.fleets.running(key)  # programs of a new revision were handed over
        if running and self.autoscaler.shown(key) is None:
            # The autoscaler reports changes of this number only, and its dependencies were met at its start.
            self.dependencies.continued(key, running)
        self.autoscaler.set_revision(key, process_rule(revision), running, is_taken_over=running > 0)
        page = revision.waiting_page
        self.busy.set_revision(key, revision.activity.busy)
        self.output.set_revision(key, page is not None and page.output)

    def _busy_changed(self, key: str, count: int) -> None:
        """Report the number of programs that do background work."""
        self.groups.busy(key, count)
        self.autoscaler.busy(key, count)

    def add_revision(self, key: str, revision: Revision) -> None:
        """Add or replace a revision with a program that is not from the file."""
        self.supervisor.set_revision(key, revision)
        self._set_scale(key, revision)

    def drop_revision(self, key: str) -> None:
        self.autoscaler.drop_revision(key)
        self.supervisor.drop_revision(key)
        self.busy.drop_revision(key)
        self.output.drop_revision(key)
        self.groups.drop_revision(key)
        self.dependencies.drop_revision(key)

    # --- operator commands ---

    def load(self, key: str, seconds: float | None) -> str:
        """Load the revision for `seconds` from when it is ready; None: for its idle time. Return a problem, if any."""
        if self.supervisor.is_frozen:
            return UPGRADING
        if not self.autoscaler.keep_for_operator(key, seconds):
            return "it has no `process` or `container`"
        self.supervisor.forget_failures(key)
        self.groups.load_for_operator(key)
        return ""

    def unload(self, key: str) -> str:
        """Stop the revision's programs after their requests, and those that sleep. Return a problem, if any."""
        if self.supervisor.is_frozen:
            return UPGRADING
        least = self.autoscaler.minimum(key)
        if least is None:
            return "it has no `process` or `container`"
        if least:
            return (
                f"{least} {'process is' if least == 1 else 'processes are'} its minimum now (`min_scale`, a schedule)"
            )
        users = self.dependencies.users_of(key)
        if users:
            return f"{users[0]} depends on it, and is loaded: unload that first"
        self.supervisor.stop_all(key, "by `unload`")  # first: the autoscaler would put them to sleep
        self.autoscaler.unload(key)
        self.groups.unload(key)
        return ""

    def restart(self, key: str) -> str:
        """Replace the revision's programs by new ones; the old ones finish their requests. Return a problem, if any."""
        if self.supervisor.is_frozen:
            return UPGRADING
        if self.autoscaler.minimum(key) is None:
            return "it has no `process` or `container`"
        group = self.groups.of(key)
        if group is not None:  # the new ones may not fit beside the old ones
            return f"it is in the group {group.rule.name}: `unload` it, and `load` it"
        self.supervisor.forget_failures(key)
        self.supervisor.restart(key)
        return ""

    def scaling(self, key: str) -> LastDecision | None:
        return self.autoscaler.shown(key)

    def resubmit(self, key: str) -> None:
        self.supervisor.relist(key)

    def receive_load(self, load: Load) -> None:
        self.groups.load(load)  # first: it has to know how long a request has waited
        self.busy.load(load)
        self.autoscaler.load(load)

    def receive_taken(self, taken: PodTaken) -> None:
        self.supervisor.taken(taken)

    def receive_drained(self, key: str, identity: str) -> None:
        self.supervisor.drained(key, identity)

    def tick(self) -> None:
        """Apply changes of scale, and end the turns that are over."""
        self.busy.tick()
        self.autoscaler.tick()
        self.groups.tick()
        self.output.tick()
        self.memory.tick()

    def _counted_changed(self) -> None:
        """Apply measured amounts to the groups that count them."""
        if any(group.measured for group in self._config.groups):
            self.groups.configure(resolve_groups(self._config, self.memory.counted()))

    def _report(self, change: Change) -> None:
        self._submit(change)
        self.dependencies.reported(change)

    def _scale(self, key: str, decision: Decision) -> None:
        self.dependencies.set_desired(key, decision.wanted)

    # --- from the supervisor (`ProgramListener`) ---

    def ready_changed(self, key: str, count: int) -> None:
        self.autoscaler.ready(key, count)
        self.dependencies.ready(key)

    def programs_changed(self, key: str, group: str) -> None:
        self.dependencies.programs_changed(key)
        self.memory.programs_changed(key)
        try:
            self.groups.programs_changed(key, group)
        except Exception as error:  # a bug in the group, not a failure of the program: the next tick decides again
            self._panicked(f"{TASK}group {group}", key, error, self._now())
            log.error("an internal error in the group %s", group, exc_info=error)

    def stopped_by_other(self, key: str) -> None:
        self.autoscaler.unload(key)

    def grace_of(self, group: str) -> float | None:
        return self._grace_s.get(group)

    def stop_reason(self, key: str, wanted: int) -> str:
        decision = self.autoscaler.decision(key)
        if decision is None:
            return ""
        if decision.wanted > wanted:
            return ROOM if self.groups.of(key) is not None else ""
        if wanted:
            return f"because {wanted} {'is' if wanted == 1 else 'are'} enough"
        return f"after {lasting(decision.seen.idle_s)} without a request"
