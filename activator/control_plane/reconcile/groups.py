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
        has_failure = any(outcome.result not in GOOD for outcome in outcomes.values())
        working: list[Component] = []
        for component in group:
            if run.count_if_unchanged(component, not parts[component].has_work(run)):
                outcomes[component] = UNCHANGED
            elif has_failure and component in DEPENDENT and run.desired.present:
                outcomes[component] = ComponentResult(Result.SKIPPED, "the Service failed")
            else:
                working.append(component)
        outcomes.update(zip(working, await _run_all(parts, run, working)))
    return outcomes


async def _run_all(
    parts: Mapping[Component, Part], run: ReconcileRun, working: Sequence[Component]
) -> list[ComponentResult]:
    """Run these components concurrently; return their outcomes in this order."""
    if len(working) == 1:
        return [await _run_part(parts[working[0]], run)]
    return await asyncio.gather(*(_run_part(parts[component], run) for component in working)) if working else []


async def _run_part(part: Part, run: ReconcileRun) -> ComponentResult:
    """Run a component; an exception becomes its outcome."""
    try:
        return await part.run(run)
    except Exception as error:
        return ComponentResult(Result.FAILED, str(error), error=error)
