"""Writes for one pass: server-side apply with preconditions; conflicts are counted and retried on a fresh copy.

Rules
  1. An apply names the UID of its object, or its version, so the API refuses it for another object of the same name.
  2. After a conflict nothing is sent before the object has been read again (`body_after_conflict`): it may be deleted,
     have another owner, or be as wanted.
  3. Fields of another manager are taken (force) only if the second attempt may still be made.
  4. Attempts are bounded and spaced by a growing pause with jitter.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, final

from activator.control_plane.reconcile.api import Api, Json, is_conflict, managers_in
from activator.control_plane.reconcile.report import Component
from activator.runtime.backoff import Backoff
from activator.runtime.controller_counts import Controllers
from activator.runtime.tasks import pause
from lb.rng import Rng

CONTROLLER: Final = "activation"
CONFLICT_ATTEMPTS_MAX: Final = 4  # attempts of one write before its pass fails
CONFLICT_PAUSE_INITIAL_S: Final = 0.02  # after a conflict: between half of it and all of it; doubles
CONFLICT_PAUSE_MAX_S: Final = 0.5  # the longest such pause

MANAGERS: Final = {component: f"activator-{component.value}" for component in Component}
TARGET_KINDS: Final = {
    Component.SERVICE: "service",
    Component.SCALE: "scale",
    Component.STATUS: "status",
    Component.EVENTS: "event",
    Component.TRAFFIC: "endpointslice",
}

Pause = Callable[[float], Awaitable[None]]
BodyAfterConflict = Callable[[], Awaitable[Json | None]]  # reads again; returns the body to send, or None


class Applied:
    """The result of an apply. `body` None: nothing had to be written. `taken_from`: the managers that lost fields."""

    __slots__ = ("body", "taken_from")

    def __init__(self, body: bytes | None, taken_from: tuple[str, ...] = ()) -> None:
        self.body = body
        self.taken_from = taken_from


@final
class Writer:
    """The writer of a pass, which counts the results in `controllers`."""

    def __init__(self, api: Api, controllers: Controllers, rng: Rng, pause: Pause = pause) -> None:
        self.api = api
        self._controllers = controllers
        self._rng = rng
        self._pause = pause

    async def apply(
        self,
        component: Component,
        path: str,
        body: Json,
        body_after_conflict: BodyAfterConflict,
        may_take: Callable[[], bool] = lambda: True,
    ) -> Applied:
        """Apply `body`, or after a conflict what `body_after_conflict` returns; raise the last conflict or an error."""
        force = False
        managers: tuple[str, ...] = ()
        conflicts = Backoff(CONFLICT_PAUSE_INITIAL_S, CONFLICT_PAUSE_MAX_S, self._rng)
        for attempt in range(CONFLICT_ATTEMPTS_MAX):
            try:
                answer = await self.counted(component, self.api.apply(path, body, MANAGERS[component], force))
            except Exception as error:
                if not is_conflict(error):
                    raise
                owners = managers_in(error)
                self._count_conflict(component, owners)
                if attempt == CONFLICT_ATTEMPTS_MAX - 1 or (owners and not may_take()):
                    raise
                force, managers = bool(owners), owners or managers
            else:
                return Applied(answer, managers)
            await self._pause(conflicts.next_s())
            fresh = await body_after_conflict()
            if fresh is None:
                return Applied(None)
            body = fresh
        raise AssertionError("the last attempt returns or raises")

    async def patch(self, component: Component, path: str, body: Json) -> bytes:
        """Send a merge patch, for an object that does not support server-side apply.

        It overwrites the fields of other managers.
        """
        return await self.counted(component, self.api.merge_patch(path, body, MANAGERS[component]))

    async def counted(self, component: Component, call: Awaitable[bytes]) -> bytes:
        """Await one write and count its result."""
        try:
            answer = await call
        except Exception as error:
            self._controllers.written(CONTROLLER, component.value, "conflict" if is_conflict(error) else "failed")
            raise
        self._controllers.written(CONTROLLER, component.value, "ok")
        return answer

    def count_unchanged(self, component: Component) -> None:
        """Count a write that a comparison has saved."""
        self._controllers.written(CONTROLLER, component.value, "unchanged")

    def count_conflict(self, component: Component, error: Exception) -> None:
        """Count a conflict of a write that `apply` did not make."""
        self._count_conflict(component, managers_in(error))

    def _count_conflict(self, component: Component, managers: tuple[str, ...]) -> None:
        self._controllers.conflict(CONTROLLER, TARGET_KINDS[component])
        for manager in managers or ("",):
            self._controllers.refused_by(CONTROLLER, TARGET_KINDS[component], manager)
