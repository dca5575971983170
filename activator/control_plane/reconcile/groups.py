"""The order of components: groups run one after the other, the components of a group concurrently.

Rules
  1. The Service comes first, because replicas that no slice shows are of no use; then replicas; then status and events.
  2. An exception of a component becomes its outcome and does not stop the others of its group. Components of later
     groups that depend on it are skipped; status and events never are.
  3. Removals do not depend on each other, so they form one group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from activator.control_plane.reconcile.report import GOOD, UNCHANGED, Component, ComponentResult, Result
from activator.control_plane.reconcile.run import ReconcileRun

Groups = tuple[tuple[Component, ...], ...]

IN_ORDER: Final[Groups] = (
    (Component.SERVICE,),
    (Component.SCALE, Component.TRAFFIC),
    (Component.STATUS, Component.EVENTS),
)
REMOVAL: Final[Groups] = ((Component.SERVICE, Component.SCALE),)
DEPENDENT: Final = frozenset({Component.SCALE})  # skipped after a failure in an earlier group


class Part(Protocol):
    """A component of a pass."""

    @property
    def component(self) -> Component: ...

    def has_work(self, run: ReconcileRun) -> bool:
        """Return False if nothing is to be sent or read, by the known state alone."""

    async def run(self, run: ReconcileRun) -> ComponentResult:
        """Establish the desired state."""


async def run_groups(
    parts: Mapping[Component, Part], run: ReconcileRun, groups: Groups
) -> dict[Component, ComponentResult]:
    """Run all groups in order; return the outcomes."""
    outcomes: dict[Component, ComponentResult] = {}
    for group in groups:
        failed = any(outcome.result not in GOOD for outcome in outcomes.values())
        busy: list[Component] = []
        for component in group:
            if run.is_unchanged(component, not parts[component].has_work(run)):
                outcomes[component] = UNCHANGED
            elif failed and component in DEPENDENT and run.desired.present:
                outcomes[component] = ComponentResult(Result.SKIPPED, "the Service failed")
            else:
                busy.append(component)
        outcomes.update(zip(busy, await _together(parts, run, busy)))
    return outcomes


async def _together(
    parts: Mapping[Component, Part], run: ReconcileRun, busy: Sequence[Component]
) -> list[ComponentResult]:
    if len(busy) == 1:
        return [await _outcome(parts[busy[0]], run)]
    return await asyncio.gather(*(_outcome(parts[component], run) for component in busy)) if busy else []


async def _outcome(part: Part, run: ReconcileRun) -> ComponentResult:
    try:
        return await part.run(run)
    except Exception as error:
        return ComponentResult(Result.FAILED, str(error), error=error)
