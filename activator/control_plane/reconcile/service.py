"""The private headless Service of an Activation, whose EndpointSlices show its pods.

Rules
  1. It is made by `create`, which fails if the name is taken; an apply would change a Service of another owner.
  2. It is changed and deleted only while its controller owner, in its last known state, is this Activation, by UID; the
     call also names the UID of the Service.
  3. A field that the creation set and that is no longer wanted is removed by a patch of the answered version: an apply
     leaves the field, because it belongs to the creation.
  4. A Service that has disappeared is made again only after a check that its Activation still exists: the garbage
     collector may have been faster than the watch on Activations.
"""

from __future__ import annotations

from typing import final

from msgspec import UNSET

from activator.control_plane.reconcile import wire
from activator.control_plane.reconcile.api import Json, already_exists, is_conflict, not_found
from activator.control_plane.reconcile.desired import PODS_PORT, ObservedService, PodsService
from activator.control_plane.reconcile.report import UNCHANGED, WRITTEN, Component, ComponentResult, Result
from activator.control_plane.reconcile.rights import SERVICES
from activator.control_plane.reconcile.run import ReconcileRun
from activator.control_plane.reconcile.writer import MANAGERS


@final
class ServiceComponent:
    """The component that writes the private Service."""

    component = Component.SERVICE

    def has_work(self, run: ReconcileRun) -> bool:
        """Return False if the Service is known to be as wanted."""
        known = run.memory.known_service(run.desired.observed, run.now())
        wanted = run.desired.service if run.desired.present else None
        if known is UNSET:
            return True
        if wanted is None:
            return isinstance(known, ObservedService) and known.owner_uid == run.desired.uid
        return not isinstance(known, ObservedService) or not wire.is_service_as_wanted(known, wanted, run.desired)

    async def run(self, run: ReconcileRun) -> ComponentResult:
        """Create, update or delete the Service. Raises the error of the API if it rejects a write."""
        wanted = run.desired.service if run.desired.present else None
        known = await self._known_or_read(run, "" if wanted is None else wanted.name)
        if wanted is None:
            return await self._delete(run, known)
        if known is not None and known.name != wanted.name:
            await self._delete(run, known)  # our Service under its former name
            known = None
        if known is None:
            return await self._create(run, wanted)
        if known.owner_uid != run.desired.uid:
            return not_owned(run, known)
        if run.count_if_unchanged(self.component, wire.is_service_as_wanted(known, wanted, run.desired)):
            return UNCHANGED
        return await self._update(run, wanted, known)

    async def _known_or_read(self, run: ReconcileRun, name: str) -> ObservedService | None:
        """Return our Service as last known, or read it: by its owner, or else by name. None: there is none."""
        known = run.memory.known_service(run.desired.observed, run.now())
        if isinstance(known, ObservedService) or known is None:
            return known
        services = await run.reads.services()
        ours = [observed for observed in services if observed.owner_uid == run.desired.uid]
        by_name = [observed for observed in services if observed.name == name]
        service = next(iter(ours or by_name), None)
        run.memory.store_service(service, run.now())
        return service

    async def _create(self, run: ReconcileRun, wanted: PodsService) -> ComponentResult:
        """Create the Service; if the name is taken by ours, update that one."""
        if run.memory.had_service and await run.status(fresh=True) is None:
            return ComponentResult(
                Result.NOT_FOUND, f"the Activation {run.desired.key} is gone, and its Service with it"
            )
        body = wire.service_body(wanted, run.desired)
        collection = SERVICES.collection(run.desired.namespace)
        call = run.writer.api.create(collection, body, MANAGERS[self.component])
        try:
            answer = await run.writer.counted(self.component, call)
        except Exception as error:
            run.memory.store_service(UNSET, run.now())
            if not already_exists(error):
                raise
            current = await self._read(run, wanted.name)
            if current is None:
                raise  # deleted in between: the next attempt makes it
            if current.owner_uid != run.desired.uid:
                return not_owned(run, current)
            if wire.is_service_as_wanted(current, wanted, run.desired):
                return UNCHANGED
            return await self._update(run, wanted, current)
        run.memory.store_service(wire.service_seen(answer), run.now())
        return WRITTEN

    async def _update(self, run: ReconcileRun, wanted: PodsService, known: ObservedService) -> ComponentResult:
        """Change our Service to the wanted state."""
        path = SERVICES.path(run.desired.namespace, wanted.name)
        foreign: list[ObservedService] = []

        async def body_after_conflict() -> Json | None:
            current = await self._read(run, wanted.name)
            if current is None:
                return None
            if current.owner_uid != run.desired.uid:
                foreign.append(current)
                return None
            return wire.service_body(wanted, run.desired, current.uid)

        run.memory.store_service(UNSET, run.now())  # unknown until the answer
        body = wire.service_body(wanted, run.desired, known.uid)
        applied = await run.writer.apply(self.component, path, body, body_after_conflict)
        if foreign:
            return not_owned(run, foreign[0])
        if applied.body is None:
            return await self._create(run, wanted)
        seen = wire.service_seen(applied.body)
        if not wire.is_service_as_wanted(seen, wanted, run.desired):
            patch = _removal_patch(seen, wanted)
            call = run.writer.api.merge_patch(path, patch, MANAGERS[self.component])
            seen = wire.service_seen(await run.writer.counted(self.component, call))
        run.memory.store_service(seen, run.now())
        return ComponentResult(Result.WRITTEN, taken_from=applied.taken_from)

    async def _delete(self, run: ReconcileRun, known: ObservedService | None) -> ComponentResult:
        """Delete our Service; repeat once if another program has written it."""
        if known is None or known.owner_uid != run.desired.uid:
            return UNCHANGED
        path = SERVICES.path(run.desired.namespace, known.name)
        run.memory.store_service(UNSET, run.now())
        for _ in range(2):
            call = run.writer.api.delete(path, known.uid, known.version)
            try:
                await run.writer.counted(self.component, call)
                break
            except Exception as error:
                if not_found(error):
                    break
                if not is_conflict(error):
                    raise
                run.writer.count_conflict(self.component, error)
                fresh = await self._read(run, known.name)
                if fresh is None or fresh.owner_uid != run.desired.uid:
                    return UNCHANGED  # no longer ours to delete
                known = fresh
        else:
            return ComponentResult(Result.FAILED, "the Service could not be deleted: other programs write it")
        run.memory.store_service(None, run.now())
        return ComponentResult(Result.DELETED)

    async def _read(self, run: ReconcileRun, name: str) -> ObservedService | None:
        """Read the Service; None: there is none."""
        run.reads.forget()
        body = await run.reads.get(SERVICES.path(run.desired.namespace, name))
        return None if body is None else wire.service_seen(body)


def not_owned(run: ReconcileRun, there: ObservedService) -> ComponentResult:
    """Forget the Service; return the outcome for one of another owner, which is left unchanged."""
    run.memory.store_service(UNSET, run.now())
    whose = "it has no controller" if not there.owner_uid else f"its controller has UID {there.owner_uid}"
    message = f"the Service {run.desired.namespace}/{there.name} is not of this Activation: {whose}"
    return ComponentResult(Result.NOT_OWNED, message)


def _removal_patch(seen: ObservedService, wanted: PodsService) -> Json:
    """Return a merge patch of the fields that an apply has left: those of the creation that are no longer wanted."""
    selector: Json = {name: None for name in seen.selector if name not in wanted.selector}
    port: Json = {"name": wanted.port_name, "port": PODS_PORT, "protocol": "TCP", "targetPort": wanted.target_port}
    if wanted.app_protocol:
        port["appProtocol"] = wanted.app_protocol
    return {
        "metadata": {"uid": seen.uid, "resourceVersion": seen.version},
        "spec": {"selector": {**selector, **wanted.selector}, "ports": [port]},
    }
