"""The order of components: groups one after the other, the components of one group at the same time.

Rules
  1. The Service comes first, since replicas that no slice shows are of no use; then the replicas; then what is told.
  2. An exception of one component is its outcome and stops no other of its group. What comes after the group and
     depends on it is skipped; status and events never are.
  3. What is removed does not depend on each other: one group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from activator.control_plane.reconcile.report import GOOD, UNCHANGED, Component, Outcome, Result
from activator.control_plane.reconcile.run import Pass

Groups = tuple[tuple[Component, ...], ...]

IN_ORDER: Final[Groups] = (
    (Component.SERVICE,),
    (Component.SCALE, Component.TRAFFIC),
    (Component.STATUS, Component.EVENTS),
)
REMOVAL: Final[Groups] = ((Component.SERVICE, Component.SCALE),)
DEPENDENT: Final = frozenset({Component.SCALE})  # skipped after a failure in an earlier group


class Part(Protocol):
    """One component."""

    @property
    def component(self) -> Component: ...

    def has_work(self, run: Pass) -> bool:
        """Plain: decided by what is known. False: nothing is to be sent, nor read."""

    async def run(self, run: Pass) -> Outcome:
        """Make it as wanted."""


async def run_groups(parts: Mapping[Component, Part], run: Pass, groups: Groups) -> dict[Component, Outcome]:
    """All of them, in order."""
    outcomes: dict[Component, Outcome] = {}
    for group in groups:
        failed = any(outcome.result not in GOOD for outcome in outcomes.values())
        busy: list[Component] = []
        for component in group:
            if run.is_unchanged(component, not parts[component].has_work(run)):
                outcomes[component] = UNCHANGED
            elif failed and component in DEPENDENT and run.desired.present:
                outcomes[component] = Outcome(Result.SKIPPED, "the Service failed")
            else:
                busy.append(component)
        outcomes.update(zip(busy, await _together(parts, run, busy)))
    return outcomes


async def _together(parts: Mapping[Component, Part], run: Pass, busy: Sequence[Component]) -> list[Outcome]:
    if len(busy) == 1:
        return [await _outcome(parts[busy[0]], run)]
    return await asyncio.gather(*(_outcome(parts[component], run) for component in busy)) if busy else []


async def _outcome(part: Part, run: Pass) -> Outcome:
    try:
        return await part.run(run)
    except Exception as error:
        return Outcome(Result.FAILED, str(error), error=error)
