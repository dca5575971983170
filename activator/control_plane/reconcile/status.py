"""Writes the status of the Activation through its status subresource.

Rules
  1. It is written only if anything but a time differs from the present status.
  2. The time of a condition's last transition changes only with its status.
  3. The write names the resource version that it is based on, so the status of one Activation is never written onto
     another of the same name. A UID would not do: the API does not check it for the status of a custom resource.
"""

from __future__ import annotations

from typing import final

from msgspec import UNSET

from activator.control_plane.reconcile import wire
from activator.control_plane.reconcile.api import Json, not_found
from activator.control_plane.reconcile.desired import ObservedStatus
from activator.control_plane.reconcile.report import UNCHANGED, Component, ComponentResult, Result
from activator.control_plane.reconcile.rights import STATUSES
from activator.control_plane.reconcile.run import ReconcileRun


@final
class StatusComponent:
    """The component that writes the status."""

    component = Component.STATUS

    def has_work(self, run: ReconcileRun) -> bool:
        """Return False if the status is as wanted, or if there is no object for it."""
        if not run.desired.present or not run.desired.owner.has_status:
            return False
        known = run.memory.known_status(run.desired, run.now())
        return not isinstance(known, ObservedStatus) or not wire.is_status_as_wanted(known, run.desired)

    async def run(self, run: ReconcileRun) -> ComponentResult:
        """Write the status; raise the API's refusal."""
        if not run.desired.present or not run.desired.owner.has_status:
            return UNCHANGED
        known = await run.status()
        if known is None:
            return _not_found(run)
        if run.count_if_unchanged(self.component, wire.is_status_as_wanted(known, run.desired)):
            return UNCHANGED
        return await self._write(run, known)

    async def _write(self, run: ReconcileRun, known: ObservedStatus) -> ComponentResult:
        """Apply the status; after a conflict, read the present status and apply it to that."""
        desired = run.desired
        now = wire.rfc3339(run.wall_s())
        path = STATUSES.path(desired.namespace, desired.name)

        async def body_after_conflict() -> Json | None:
            run.reads.forget()
            fresh = await run.status(fresh=True)
            return None if fresh is None else wire.status_body(desired, fresh, now)

        run.memory.store_status(UNSET, run.now())  # unknown until the answer
        body = wire.status_body(desired, known, now)
        try:
            applied = await run.writer.apply(self.component, path, body, body_after_conflict)
        except Exception as error:
            if not_found(error):
                return _not_found(run)
            raise
        if applied.body is None:
            return _not_found(run)
        run.memory.store_status(wire.status_seen(applied.body), run.now())
        return ComponentResult(Result.WRITTEN, taken_from=applied.taken_from)


def _not_found(run: ReconcileRun) -> ComponentResult:
    """Forget the status; return the outcome for an Activation that does not exist."""
    run.memory.store_status(UNSET, run.now())
    return ComponentResult(Result.NOT_FOUND, f"the Activation {run.desired.key} with UID {run.desired.uid} is gone")
