"""Writes the replicas of the target through its scale subresource; nothing else of the target is ever written.

Rules
  1. Replicas that another manager owns (an applied manifest with `replicas:`, an autoscaler) are taken with force,
     counted and reported. The creator of the target owns them at first, so the first take-over is an adoption. It is a
     contest, and a condition of the object, once another program has changed replicas that were as wanted.
  2. Against a manager that takes them back, the same number is taken again only after a growing pause with jitter. A
     new number is taken at once, because it may start the first pod.
  3. The API's own writers omit zero, so an absent number is zero.
  4. The scale of a custom resource cannot be applied, so it is patched. The API then names no manager, and only the
     number of replicas shows that another program took them back.
"""

from __future__ import annotations

import logging
from typing import Final, final

from msgspec import UNSET

from activator.control_plane.reconcile import wire
from activator.control_plane.reconcile.api import Json, is_conflict, managers_in, not_found
from activator.control_plane.reconcile.desired import ObservedScale
from activator.control_plane.reconcile.kinds import Kinds, NoScaleError
from activator.control_plane.reconcile.report import UNCHANGED, WRITTEN, Component, ComponentResult, Result
from activator.control_plane.reconcile.run import ReconcileRun
from activator.runtime.backoff import grown_s

TAKE_AGAIN_INITIAL_S: Final = 1.0  # pause before replicas are taken again; doubles
TAKE_AGAIN_MAX_S: Final = 300.0  # the longest such pause
TAKES_FORGOTTEN_S: Final = 2 * TAKE_AGAIN_MAX_S  # after this time without a contest the pause is reset

log = logging.getLogger("activator.kubernetes")


@final
class ScaleComponent:
    """The component that writes replicas."""

    component = Component.SCALE

    def __init__(self, kinds: Kinds) -> None:
        self._kinds = kinds

    def has_work(self, run: ReconcileRun) -> bool:
        """Return False if another component scales, or if the replicas are as wanted, which is recorded."""
        replicas = run.desired.replicas
        if replicas is None:
            return False
        known = run.memory.known_scale(run.desired.observed, run.now())
        if not isinstance(known, ObservedScale) or known.replicas != replicas:
            return True
        run.memory.last_as_wanted = (known.uid, replicas)
        return False

    async def run(self, run: ReconcileRun) -> ComponentResult:
        """Write the replicas; raise the API's refusal."""
        desired, replicas = run.desired, run.desired.replicas
        if replicas is None:
            return UNCHANGED
        try:
            path = await self._kinds.scale_path(desired.target, desired.namespace)
        except NoScaleError as error:
            return ComponentResult(Result.NOT_FOUND, str(error))
        known = run.memory.known_scale(desired.observed, run.now())
        if known is UNSET:
            known = await self._read(run, path)
        if known is None:
            return _absent(run)
        assert isinstance(known, ObservedScale)
        if (
            run.memory.last_as_wanted is not None and run.memory.last_as_wanted[0] != known.uid
        ):  # another target of the same name
            run.memory.last_as_wanted = run.memory.taken_for = None
        if run.count_if_unchanged(self.component, known.replicas == replicas):
            return UNCHANGED
        if not self._kinds.may_apply(desired.target):
            return await self._patch(run, path, replicas)
        return await self._apply(run, path, replicas)

    async def _patch(self, run: ReconcileRun, path: str, replicas: int) -> ComponentResult:
        """Write the replicas of a custom resource by a patch, because its scale cannot be applied (rule 4)."""
        memory, now_s, target = run.memory, run.now(), run.desired.target
        is_retake = memory.taken_for == replicas
        wait_s = _wait_s(run, replicas)
        if wait_s > 0:
            message = f"another program sets the replicas of {target.kind} {target.name} as well"
            return ComponentResult(Result.CONTESTED, message, again_in_s=wait_s)
        memory.store_scale(UNSET, now_s)  # unknown until the answer
        body = wire.scale_body(run.desired, replicas)
        try:
            answer = await run.writer.patch(self.component, path, {"spec": body["spec"]})
        except Exception as error:
            if not_found(error):
                return _absent(run)
            raise
        memory.takes = memory.takes + 1 if is_retake else 1
        memory.taken_for, memory.taken_at_s = replicas, now_s
        memory.store_scale(wire.scale_seen(answer), now_s)
        return WRITTEN

    async def _apply(self, run: ReconcileRun, path: str, replicas: int) -> ComponentResult:
        """Apply the replicas; take them from another manager only if its pause is over."""
        desired, memory, now_s = run.desired, run.memory, run.now()
        wait_s = _wait_s(run, replicas)
        is_taken_back = False

        async def body_after_conflict() -> Json | None:
            nonlocal is_taken_back
            run.reads.forget()
            current = await self._read(run, path)
            if current is None or current.replicas == replicas:
                return None
            is_taken_back = is_taken_back or _was_changed(memory.last_as_wanted, current)
            return wire.scale_body(desired, replicas)

        memory.store_scale(UNSET, now_s)  # unknown until the answer
        body = wire.scale_body(desired, replicas)
        try:
            applied = await run.writer.apply(self.component, path, body, body_after_conflict, lambda: wait_s <= 0)
        except Exception as error:
            managers = managers_in(error)
            if is_conflict(error) and managers and wait_s > 0:
                names = ", ".join(managers)
                message = f"{names} sets the replicas of {desired.target.kind} {desired.target.name} as well"
                return ComponentResult(Result.CONTESTED, message, managers, wait_s)
            if not_found(error):
                return _absent(run)
            raise
        if applied.body is None:
            return UNCHANGED if memory.scale is not None else _absent(run)
        if applied.taken_from:
            memory.takes = memory.takes + 1 if memory.taken_for == replicas else 1
            memory.taken_for, memory.taken_at_s = replicas, now_s
            if not is_taken_back:
                log.info("%s: replicas taken over from %s", desired.key, ", ".join(applied.taken_from))
        written = wire.scale_seen(applied.body)
        memory.last_as_wanted = (written.uid, replicas)
        memory.store_scale(written, now_s)
        return ComponentResult(Result.WRITTEN, taken_from=applied.taken_from, is_adoption=not is_taken_back)

    async def _read(self, run: ReconcileRun, path: str) -> ObservedScale | None:
        """Read the scale of the target and remember it; None: there is no target."""
        body = await run.reads.get(path)
        scale = None if body is None else wire.scale_seen(body)
        run.memory.store_scale(scale, run.now())
        return scale


def _was_changed(last_as_wanted: tuple[str, int] | None, scale: ObservedScale) -> bool:
    """Return True if the replicas of this target were as wanted before, and are another number now."""
    return last_as_wanted is not None and last_as_wanted[0] == scale.uid and last_as_wanted[1] != scale.replicas


def _wait_s(run: ReconcileRun, replicas: int) -> float:
    """Return how long the same number must not be taken yet; 0 or less: it may be taken."""
    memory, now_s = run.memory, run.now()
    quiet_s = now_s - memory.taken_at_s
    if memory.taken_for != replicas or quiet_s >= TAKES_FORGOTTEN_S:
        return 0.0
    return grown_s(TAKE_AGAIN_INITIAL_S, memory.takes - 1, TAKE_AGAIN_MAX_S) - quiet_s


def _absent(run: ReconcileRun) -> ComponentResult:
    """Forget the scale; return the outcome for a target that does not exist."""
    run.memory.store_scale(UNSET, run.now())
    target = run.desired.target
    return ComponentResult(Result.NOT_FOUND, f"there is no {target.kind} {run.desired.namespace}/{target.name}")
