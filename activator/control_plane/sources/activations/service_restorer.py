"""Restores Services that are no longer declared to their original state.

Rules
  1. The label is removed from the selector first, so that the cluster's slices show the pods again. Our slices are
     deleted once they do, or if there is no pod. Requests find an endpoint at every moment, if there is a pod at all.
  2. One step of one Service at a time; a failed step is retried after a growing pause.
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

GIVE_BACK_INTERVAL_S: Final = 0.5  # between two rounds
GIVE_BACK_PAUSE_MAX_S: Final = 30.0  # after a failure; the pause doubles from GIVE_BACK_INTERVAL_S
PODS_AWAITED_S: Final = 10.0  # how long, after the removal of the label, the cluster's slices may take to show a pod

log = logging.getLogger("activator.kubernetes")


class ServiceRestorer:
    """The task that restores Services that are no longer declared.

    `may(service_uid)`: True if this replica writes for the Service and all declarations of Services are known.
    """

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
        self._restored_s: dict[str, float] = {}  # by Service: when its label was removed
        self._next: dict[str, tuple[float, Backoff]] = {}  # by Service: when to try again, and the pauses
        self.given_back_total = 0

    async def step(self) -> None:
        """Wait, then do one step of each Service that is due."""
        await self._pause(GIVE_BACK_INTERVAL_S)
        await self.step_due()

    def wake(self) -> None:
        """Retry everything that has failed: the API answers again."""
        self._next.clear()

    async def step_due(self) -> None:
        """Do one step of each Service that is due."""
        waiting = self._fronts.to_give_back()
        for times in (self._restored_s, self._next):
            for key in times.keys() - set(waiting):
                times.pop(key)
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
        """Remove the label of a Service or, once its pods are shown, delete our slices."""
        service = self._find_service(key)
        if service is None:
            return  # the cluster deletes its slices
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
            self._restored_s[key] = self._now()
            log.info("the selector of the Service %s is restored", key)
            return
        slices = self._fronts.slices_of(key)
        # If this process has not just removed the label, the cluster's slices already show all pods.
        is_recent = self._now() - self._restored_s.get(key, -NEVER) < PODS_AWAITED_S
        waits = is_recent and any(front_slice.endpoints for front_slice in slices)
        if waits and not await shows_pods(self._api, namespace, name):
            return
        for front_slice in slices:
            await delete_slice(self._api, namespace, front_slice.metadata.name, front_slice.metadata.uid)
        self.given_back_total += 1
