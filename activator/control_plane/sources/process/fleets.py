"""The fleets of all revisions, and the processes of revisions that were dropped and have not ended yet."""

from __future__ import annotations

from activator.control_plane.groups.counts import ProgramCounts
from activator.control_plane.sources.process.fleet import Fleet, LocalProcess, SleepState, counts_of
from activator.control_plane.sources.process.program_log import ProgramLog


class Fleets:
    """The fleets by revision. Only the supervisor changes them."""

    def __init__(self) -> None:
        self.by_key: dict[str, Fleet] = {}
        self.leaving: dict[str, LocalProcess] = {}  # processes of revisions that were dropped, by identity
        self.born = 0  # how many processes have been created, which names them

    def next_identity(self, key: str) -> str:
        """Return an identity that no process had before."""
        self.born += 1
        return f"{key}#{self.born}"

    def get(self, key: str) -> Fleet | None:
        """Return the processes of a revision; None if it has no program."""
        return self.by_key.get(key)

    def all(self) -> list[Fleet]:
        return list(self.by_key.values())

    def of(self, key: str) -> list[LocalProcess]:
        """Return the processes of a revision in any state; none if it was dropped."""
        fleet = self.by_key.get(key)
        return [] if fleet is None else list(fleet.processes.values())

    def processes(self) -> list[LocalProcess]:
        """Return the processes of all revisions that were not dropped."""
        return [process for fleet in self.by_key.values() for process in fleet.processes.values()]

    def process(self, key: str, identity: str) -> LocalProcess | None:
        """Return a process, also one of a revision that was dropped; None if it has ended."""
        fleet = self.by_key.get(key)
        return self.leaving.get(identity) or (None if fleet is None else fleet.processes.get(identity))

    def log_of(self, key: str) -> ProgramLog | None:
        """Return the output of the programs of a revision; None if it has no program."""
        fleet = self.by_key.get(key)
        return None if fleet is None else fleet.log

    def counts(self, key: str, group: str, now_s: float) -> ProgramCounts:
        """Count the processes of a revision that belong to this group, also of one that was dropped."""
        fleet = self.by_key.get(key)
        processes = [*self.of(key), *(process for process in self.leaving.values() if process.key == key)]
        return counts_of(processes, fleet, group, fleet is not None and now_s >= fleet.not_before_s)

    def running(self, key: str) -> int:
        """Return how many processes of the revision start or run."""
        fleet = self.by_key.get(key)
        return 0 if fleet is None else len(fleet.running())

    def problems(self, key: str) -> list[str]:
        """Return why a program of the revision does not get ready, and why the last one failed.

        The latter is omitted if it is shown as the failure of the revision, or another program works.
        """
        fleet = self.by_key.get(key)
        if fleet is None:
            return []
        starting = [(process.identity, process.unit.hint()) for process in fleet.running() if not process.ready]
        hints = [f"{identity}: {hint}" for identity, hint in starting if hint]
        is_shown = fleet.failure or not fleet.last_failure or fleet.ready()
        return hints[:1] + ([] if is_shown else [f"the last run failed: {fleet.last_failure}"])

    def is_ready(self, key: str) -> bool:
        """Return True if a process of the revision is ready."""
        fleet = self.by_key.get(key)
        return fleet is not None and fleet.ready() > 0

    def is_awake(self, key: str) -> bool:
        """Return True if a process of the revision starts, runs or stops, also of one that was dropped."""
        leaving = (process for process in self.leaving.values() if process.key == key)
        return any(process.sleep_state is not SleepState.ASLEEP for process in (*self.of(key), *leaving))

    def are_continued(self) -> bool:
        """Return True if all programs that were handed over as ready are pods again."""
        return all(
            process.ready or not process.was_ready or process.sleep_state is not SleepState.AWAKE
            for process in self.processes()
        )

    def is_about_to_be_free(self, claim: str) -> bool:
        """Return True if a program that is being stopped has this claim, so that a start has to wait."""
        everything = [*self.processes(), *self.leaving.values()]
        return bool(claim) and any(process.stopping and process.unit.claim == claim for process in everything)

    def save_s(self) -> float:
        """Return the longest time that the hooks before the stop of one copy may take, in seconds."""
        programs = [process.revision.program for process in self.processes() if process.revision is not None]
        hooks = [program.hooks.before_stop for program in programs if program is not None]
        return max([sum(float(hook.timeout) for hook in before_stop) for before_stop in hooks], default=0.0)

    def statistics(self) -> dict[str, dict[str, int]]:
        """Return the counts for /debug."""
        return {
            key: {
                "wanted": fleet.wanted,
                "processes": len(fleet.processes),
                "starting": fleet.starting(),
                **({"sleeping": len(fleet.asleep())} if fleet.asleep() else {}),
                "crashes": fleet.crashes,
            }
            for key, fleet in self.by_key.items()
        }
