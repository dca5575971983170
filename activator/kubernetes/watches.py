"""Everything that is watched in one cluster: the tasks, their ends, and what is known of them as a whole."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from activator.kubernetes.client import KubeClient
from activator.kubernetes.errors import KubeError
from activator.kubernetes.listing import Pause
from activator.kubernetes.object_store import Handler
from activator.kubernetes.objects import Object
from activator.kubernetes.reflector import Reflector
from activator.kubernetes.relister import KUBE_RECONCILE_INTERVAL_S, Relister
from activator.kubernetes.resources import Selection
from activator.runtime.clock import Now
from activator.runtime.tasks import OnTaskError, TaskGroupOwner, pause
from lb.rng import Rng

KUBE_CHECK_INTERVAL_S: Final = 1.0  # how often watches are looked at, and whether a comparison is due
KUBE_OUTAGE_ASK_S: Final = 1.0  # The timeout of the call that asks whether an outage is over.

log = logging.getLogger("activator.kubernetes")


class KubeWatches:
    """The watches of one cluster; each has a task of its own, so that none can hold up another.

    `on_error` is called for a task that ended, which none does by itself.
    """

    def __init__(self, client: KubeClient, now: Now, rng: Rng, on_error: OnTaskError, pause: Pause = pause) -> None:
        self._client = client
        self._now = now
        self._rng = rng
        self._pause = pause
        self._tasks = TaskGroupOwner(on_error)
        self.reflectors: list[Reflector[Any]] = []
        self.relisters: list[Relister[Any]] = []  # beside them, in the same order
        self._running: list[list[asyncio.Task[Any]]] = []
        self._checking = False
        self._asking: asyncio.Task[Any] | None = None  # The call that asks whether an outage is over.
        client.outage.on_end(self._wake)

    def add(
        self,
        selection: Selection[Object],
        handler: Handler[Object],
        reconcile_interval_s: float = KUBE_RECONCILE_INTERVAL_S,
    ) -> tuple[Reflector[Object], Relister[Object]]:
        """Watch from now on."""
        if not self._checking:
            self._checking = True
            self._tasks.keep_running("kubernetes check", self._check)
        reflector = Reflector(self._client, selection, handler, self._now, self._rng, self._pause)
        relister = Relister(self._client, reflector, self._now, self._rng, self._pause, interval_s=reconcile_interval_s)
        self.reflectors.append(reflector)
        self.relisters.append(relister)
        tasks = [
            self._tasks.keep_running(f"watch {reflector.name}", reflector.run),
            self._tasks.keep_running(f"reconcile {reflector.name}", relister.run),
        ]
        self._running.append(tasks)
        return reflector, relister

    async def remove(self, reflector: Reflector[Object]) -> None:
        """Watch it no more; its objects are not reported as gone."""
        place = self.reflectors.index(reflector)
        del self.reflectors[place], self.relisters[place]
        tasks = self._running.pop(place)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def synced(self) -> bool:
        """Whether every first list has come."""
        return all(one.synced for one in self.reflectors)

    def age_s(self, now_s: float) -> float:
        """How old the oldest of the views is."""
        return max((one.age_s(now_s) for one in self.reflectors), default=0.0)

    async def close(self) -> None:
        """End all watches. The client stays open."""
        self._client.outage.forget(self._wake)
        await self._tasks.close()

    async def _check(self) -> None:
        await self._pause(min([KUBE_CHECK_INTERVAL_S, *[one.interval_s for one in self.relisters]]))
        for reflector, relister in zip(self.reflectors, self.relisters):
            reflector.check()
            relister.check()
        if self._client.outage.is_on and self.reflectors and self._asking is None:
            self._asking = self._tasks.start("kubernetes outage", self._ask(self.reflectors[0].selection))

    async def _ask(self, selection: Selection[Any]) -> None:
        """Read one object at most, to learn whether the API is back. All who pause after a failure wait for that."""
        try:
            async with asyncio.timeout(KUBE_OUTAGE_ASK_S):
                await self._client.get(selection.path, {**selection.query(), "limit": "1"})
        except (KubeError, TimeoutError) as error:
            log.debug("the Kubernetes API is still away: %s", error)
        finally:
            self._asking = None

    def _wake(self) -> None:
        for reflector, relister in zip(self.reflectors, self.relisters):
            reflector.wake()
            relister.wake()
