"""Local processes as a source of pods: the supervisor that runs them, and the autoscaler that says how many.

The revisions are the file's (`sources/file.py`); this source adds their pods.
"""

from __future__ import annotations

from collections.abc import Callable

from activator.config.model.revision import Revision
from activator.control_plane.scaling.autoscaler import Autoscaler, Shown
from activator.control_plane.scaling.decision import Decision
from activator.control_plane.scaling.rule import process_rule
from activator.control_plane.sources.process.reaping import Reaping
from activator.control_plane.sources.process.supervisor import ProcessSupervisor
from activator.control_plane.sources.source import Source
from activator.messages import Change, Load
from activator.runtime.clock import Now
from activator.runtime.tasks import TaskGroupOwner


class ProcessSource(Source):
    """`submit` takes changes; `panicked` is called with errors of ours (`ProcessSupervisor`); `wall_clock` is for
    schedules.
    """

    def __init__(
        self,
        tasks: TaskGroupOwner,
        submit: Callable[[Change], None],
        now: Now,
        wall_clock: Now,
        reaping: Reaping,
        panicked: Callable[[str, object, object, float], float],
    ) -> None:
        self.supervisor = ProcessSupervisor(tasks, submit, now, reaping, panicked)
        self.autoscaler = Autoscaler(now, wall_clock, self._scale)
        self.supervisor.ready_changed = self.autoscaler.ready

    async def close(self) -> None:
        """Stop every process."""
        await self.supervisor.close()

    def set_revision(self, key: str, revision: Revision) -> None:
        """A revision of the file, with processes or without."""
        if revision.process is None:
            self.drop_revision(key)
        else:
            self.supervisor.set_revision(key, revision)
            self.autoscaler.set_revision(key, process_rule(revision))

    def drop_revision(self, key: str) -> None:
        self.autoscaler.drop_revision(key)
        self.supervisor.drop_revision(key)

    def scaling(self, key: str) -> Shown | None:
        return self.autoscaler.shown(key)

    def resubmit(self, key: str) -> None:
        self.supervisor.relist(key)

    def receive_load(self, load: Load) -> None:
        self.autoscaler.load(load)

    def receive_drained(self, key: str, identity: str) -> None:
        self.supervisor.drained(key, identity)

    def tick(self) -> None:
        """Look which revisions are to have another number of processes."""
        self.autoscaler.tick()

    def _scale(self, key: str, decision: Decision) -> None:
        self.supervisor.scale(key, decision.wanted)
