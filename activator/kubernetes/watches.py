"""All watches of one cluster: their tasks, their ends, and their overall state."""

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

KUBE_CHECK_INTERVAL_S: Final = 1.0  # between two checks of the watches and of due comparisons
KUBE_OUTAGE_ASK_S: Final = 1.0  # timeout of the call that tests whether an outage is over

log = logging.getLogger("activator.kubernetes")


class KubeWatches:
    """The watches of one cluster; each has its own task, so that none delays another.

    `on_error` is called with the exception of a task.
    """

    def __init__(self, client: KubeClient, now: Now, rng: Rng, on_error: OnTaskError, pause: Pause = pause) -> None:
        self._client = client
        self._now = now
        self._rng = rng
        self._pause = pause
        self._tasks = TaskGroupOwner(on_error)
        self.reflectors: list[Reflector[Any]] = []
        self.relisters: list[Relister[Any]] = []  # in the same order
        self._tasks_of_watches: list[list[asyncio.Task[Any]]] = []  # in the same order
        self._checking = False
        self._outage_test: asyncio.Task[Any] | None = None  # the call that tests whether an outage is over
        client.outage.on_end(self._wake)

    def add(
        self,
        selection: Selection[Object],
        handler: Handler[Object],
        reconcile_interval_s: float = KUBE_RECONCILE_INTERVAL_S,
    ) -> tuple[Reflector[Object], Relister[Object]]:
        """Start a watch of these objects, and their regular comparison with lists."""
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
        self._tasks_of_watches.append(tasks)
        return reflector, relister

    async def remove(self, reflector: Reflector[Object]) -> None:
        """End a watch and its comparisons; its objects are not reported as removed."""
        index = self.reflectors.index(reflector)
        del self.reflectors[index], self.relisters[index]
        tasks = self._tasks_of_watches.pop(index)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def synced(self) -> bool:
        """True if every first list has arrived."""
        return all(reflector.synced for reflector in self.reflectors)

    def age_s(self, now_s: float) -> float:
        """Return the age of the oldest store, in seconds."""
        return max((reflector.age_s(now_s) for reflector in self.reflectors), default=0.0)

    async def close(self) -> None:
        """End all watches. The client stays open."""
        self._client.outage.forget(self._wake)
        await self._tasks.close()

    async def _check(self) -> None:
        """Wait for one interval, then check all watches; during an outage test whether the API answers."""
        await self._pause(min([KUBE_CHECK_INTERVAL_S, *[relister.interval_s for relister in self.relisters]]))
        for reflector, relister in zip(self.reflectors, self.relisters):
            reflector.abort_if_stalled()
            relister.wake_if_due()
        if self._client.outage.is_on and self.reflectors and self._outage_test is None:
            self._outage_test = self._tasks.start("kubernetes outage", self._test_api(self.reflectors[0].selection))

    async def _test_api(self, selection: Selection[Any]) -> None:
        """Read at most one object to test whether the API answers again, which ends all pauses after failures."""
        try:
            async with asyncio.timeout(KUBE_OUTAGE_ASK_S):
                await self._client.get(selection.path, {**selection.query(), "limit": "1"})
        except (KubeError, TimeoutError) as error:
            log.debug("the Kubernetes API is still unreachable: %s", error)
        finally:
            self._outage_test = None

    def _wake(self) -> None:
        for reflector, relister in zip(self.reflectors, self.relisters):
            reflector.wake()
            relister.wake()
