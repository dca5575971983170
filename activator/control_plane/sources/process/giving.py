"""The programs while the old process of the activator hands them over to the new one."""

from __future__ import annotations

import os

from activator.control_plane.sources.process.fleets import Fleets
from activator.control_plane.sources.process.handed import HandedPrograms
from activator.control_plane.sources.process.unit import Unit, Units


class GivenPrograms:
    """The programs that are handed over. Nothing may be started or stopped from `hand_over` to `take_back`."""

    def __init__(self, fleets: Fleets, units: Units) -> None:
        self._fleets = fleets
        self._units = units
        self._given: list[Unit] = []

    def keys_with_programs(self) -> list[tuple[str, str]]:
        """Return the revisions that have programs, and the kind of each program (`Unit.kind`)."""
        return [(fleet.key, process.unit.kind) for fleet in self._fleets.all() for process in fleet.processes.values()]

    def unsettled(self) -> str:
        """Return why the programs cannot be handed over now; empty if they can."""
        for process in self._fleets.leaving.values():
            return f"{process.identity}, of a revision that was removed, has not ended yet"
        return next((why for process in self._fleets.processes() if (why := process.unsettled())), "")

    def hand_over(self) -> tuple[HandedPrograms, list[int]]:
        """Return all programs, with their descriptors. They must be settled. Raises OSError."""
        descriptors: list[int] = []
        fleets = []
        try:
            for fleet in self._fleets.all():
                programs = []
                for process in fleet.processes.values():
                    self._given.append(process.unit)  # first: a part of it may be held when it fails
                    program, handed = process.unit.hand_over(process.state())
                    programs.append(program)
                    descriptors.extend(handed)
                fleets.append(fleet.handed(tuple(programs)))
        except OSError:
            for descriptor in descriptors:
                os.close(descriptor)
            raise
        return self._units.with_shared_state(HandedPrograms(tuple(fleets), self._fleets.born)), descriptors

    def taken(self) -> tuple[str, ...]:
        """Return the programs for one request that have received it after they were handed over."""
        processes = self._fleets.processes()
        return tuple(
            [process.identity for process in processes if process.unit in self._given and process.taken.is_set()]
        )

    def take_back(self) -> None:
        """Continue with the programs: the other process has not taken them."""
        given, self._given = self._given, []
        for unit in given:
            unit.resume()

    def detach(self) -> None:
        """Leave the programs to the process that has taken them."""
        for unit in self._given:
            unit.detach()
        self._units.detach()
