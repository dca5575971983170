"""Gives Services that nobody declares any more back to the cluster, as they were.

Rules
  1. First the label goes from the selector, so that the cluster's slices show the pods again; when they do, or there is
     none to show, our slices go. So requests find an endpoint at every moment, if there is a pod at all.
  2. One step of one Service at a time, each tried again after a growing pause.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from activator.control_plane.reconcile.api import Api, not_found
from activator.control_plane.reconcile.report import Component
from activator.control_plane.reconcile.rights import SERVICES
from activator.control_plane.reconcile.traffic import delete_slice, label_patch, shows_pods
from activator.control_plane.reconcile.writer import MANAGERS
from activator.control_plane.sources.activations.fronts import Fronts
from activator.control_plane.sources.activations.objects import AnnotatedService
from activator.control_plane.sources.activations.service_front import is_labelled
from activator.kubernetes.listing import Pause
from activator.runtime.backoff import Backoff
from activator.runtime.clock import NEVER, Now

GIVE_BACK_INTERVAL_S: Final = 0.5  # between two looks at what is to be given back
GIVE_BACK_PAUSE_MAX_S: Final = 30.0  # after a failure, from GIVE_BACK_INTERVAL_S on, doubling
PODS_AWAITED_S: Final = 10.0  # that the cluster's slices show a pod, from when the label has gone

log = logging.getLogger("activator.kubernetes")


class GiveBack:
    """`may(service_uid)`: whether this replica writes for the Service, and all that declares Services is known."""

    def __init__(
        self,
        api: Api,
        fronts: Fronts,
        find_service: Callable[[str], AnnotatedService | None],
        may: Callable[[str], bool],
        now: Now,
        pause: Pause,
    ) -> None:
        self._api = api
        self._fronts = fronts
        self._find_service = find_service
        self._may = may
        self._now = now
        self._pause = pause
        self._since: dict[str, float] = {}  # by Service: when its label was taken away
        self._next: dict[str, tuple[float, Backoff]] = {}  # … when to try again, and the pause after that
        self.given_back_total = 0

    async def step(self) -> None:
        """After a pause, one step of each Service that is due."""
        await self._pause(GIVE_BACK_INTERVAL_S)
        await self.look()

    def wake(self) -> None:
        """The API answers again: try all again that has failed."""
        self._next.clear()

    async def look(self) -> None:
        """One step of each that is due."""
        waiting = self._fronts.to_give_back()
        for memory in (self._since, self._next):
            for key in memory.keys() - set(waiting):
                memory.pop(key)
        for key in waiting:
            due_s, backoff = self._next.get(key) or (0.0, Backoff(2 * GIVE_BACK_INTERVAL_S, GIVE_BACK_PAUSE_MAX_S))
            if self._now() < due_s:
                continue
            try:
                await self._step(key)
            except Exception as error:
                log.warning("the Service %s could not be given back: %s", key, error)
                self._next[key] = (self._now() + backoff.next_s(), backoff)

    async def _step(self, key: str) -> None:
        service = self._find_service(key)
        if service is None:
            return  # its slices are garbage
        uid = service.metadata.uid
        if not self._may(uid):
            return
        namespace, _, name = key.partition("/")
        if is_labelled(service):
            try:
                await self._api.merge_patch(
                    SERVICES.path(namespace, name), label_patch(uid, False), MANAGERS[Component.TRAFFIC]
                )
            except Exception as error:
                if not not_found(error):
                    raise
            self._since[key] = self._now()
            log.info("the selector of the Service %s is as it was", key)
            return
        slices = self._fronts.slices_of(key)
        # Without the label, before, the cluster's slices have shown all along what pods there are.
        waits = self._now() - self._since.get(key, -NEVER) < PODS_AWAITED_S and any(one.endpoints for one in slices)
        if waits and not await shows_pods(self._api, namespace, name):
            return
        for one in slices:
            await delete_slice(self._api, namespace, one.metadata.name, one.metadata.uid)
        self.given_back_total += 1
