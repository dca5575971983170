"""The units of everything that runs on this machine: processes and containers."""

from __future__ import annotations

from collections.abc import Iterable

from activator.config.model.revision import Revision
from activator.control_plane.sources.container.units import ContainerUnits
from activator.control_plane.sources.process.child import ChildProcesses
from activator.control_plane.sources.process.handed import HandedProgram, HandedPrograms
from activator.control_plane.sources.process.output import OnLine
from activator.control_plane.sources.process.unit import Unit, Units


class LocalUnits(Units):
    """A factory that passes each revision to one of its two factories."""

    def __init__(self, processes: ChildProcesses, containers: ContainerUnits) -> None:
        self._processes = processes
        self.containers = containers

    def _units_of(self, revision: Revision) -> Units:
        return self._processes if revision.container is None else self.containers

    def prepare(self, revision: Revision) -> None:
        self._units_of(revision).prepare(revision)

    def make(self, revision: Revision, identity: str, gpus: tuple[str, ...], on_line: OnLine) -> Unit | None:
        return self._units_of(revision).make(revision, identity, gpus, on_line)

    def take_over(self, revision: Revision, program: HandedProgram, descriptors: list[int], on_line: OnLine) -> Unit:
        units: Units = self._processes if program.container is None else self.containers
        return units.take_over(revision, program, descriptors, on_line)

    def with_shared_state(self, programs: HandedPrograms) -> HandedPrograms:
        return self.containers.with_shared_state(self._processes.with_shared_state(programs))

    def restore_shared(self, programs: HandedPrograms) -> None:
        self._processes.restore_shared(programs)
        self.containers.restore_shared(programs)

    def take_ownership(self, former: Iterable[int]) -> None:
        self._processes.take_ownership(former)
        self.containers.take_ownership(former)

    def detach(self) -> None:
        self._processes.detach()
        self.containers.detach()

    def claim_of(self, revision: Revision) -> str:
        return self._units_of(revision).claim_of(revision)

    def may_claim(self, revision: Revision, claim: str) -> bool:
        return self._units_of(revision).may_claim(revision, claim)

    async def close(self) -> None:
        await self._processes.close()
        await self.containers.close()
