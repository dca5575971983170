"""Scales a Deployment from zero to one if requests wait for it while the autoscaler is unreachable.

Rules
  1. Only where it is switched on (`kubernetes: {scale_fallback: 30s}`), because it needs a right that the activator
     does not have otherwise: to get and patch `deployments/scale`.
  2. Only from zero, and only in the version that was read: a concurrent change stays (409).
  3. One attempt per revision and outage. Another one is made if the autoscaler was reachable in between, or after
     SCALE_FALLBACK_RETRY_S, because our own call may have failed.
  4. At most SCALE_FALLBACKS_AT_ONCE attempts run at once, because an outage concerns all revisions.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from activator.runtime.child_name import deployment
from activator.runtime.clock import Now
from activator.runtime.controller_counts import Controllers, error_type_of

SCALE_FALLBACKS_AT_ONCE: Final = 4  # concurrent attempts; the others wait
SCALE_FALLBACK_RETRY_S: Final = 60.0  # between two attempts for one revision

log = logging.getLogger("activator.scaling")


class Api(Protocol):
    """The methods of the Kubernetes client that are used here."""

    async def get(self, path: str, query: Mapping[str, str] = ...) -> bytes: ...

    async def merge_patch(self, path: str, patch: Mapping[str, Any], field_manager: str) -> bytes: ...


class ScaleFallback:
    """The fallback. `unreachable_for_s` returns how long the autoscaler has been unreachable; `start` runs a task."""

    def __init__(
        self,
        api: Api,
        after_s: float,
        unreachable_for_s: Callable[[], float],
        now: Now,
        start: Callable[[str, Any], object],
        controllers: Controllers,
    ) -> None:
        self._api = api
        self._after_s = after_s
        self._unreachable_for_s = unreachable_for_s
        self._now = now
        self._start = start
        self._controllers = controllers
        controllers.register("revision", SCALE_FALLBACKS_AT_ONCE + 1)  # one more for the pass of the source
        self._attempts_limit = asyncio.Semaphore(SCALE_FALLBACKS_AT_ONCE)
        self._tried_s: dict[str, float] = {}  # by revision: time of the last attempt in this outage
        self.scaled_total = 0

    def allow_attempts(self) -> None:
        """Allow new attempts at once: the Kubernetes API answers again."""
        self._tried_s.clear()

    def start_attempts(self, waiting: list[str]) -> None:
        """Start attempts for revisions without a pod for which requests wait, if the outage is long enough."""
        unreachable_s = self._unreachable_for_s()
        if unreachable_s < self._after_s or self._after_s <= 0.0:
            if unreachable_s == 0.0:
                self._tried_s.clear()
            return
        now_s = self._now()
        for key in waiting:
            tried_s = self._tried_s.get(key)
            if tried_s is None or now_s - tried_s >= SCALE_FALLBACK_RETRY_S:
                self._tried_s[key] = now_s
                self._start("scale fallback", self._attempt_within_limit(key))

    async def _attempt_within_limit(self, key: str) -> None:
        async with self._attempts_limit:
            await self._attempt(key)

    async def _attempt(self, key: str) -> None:
        """Scale the Deployment to one if it is at zero; log the result."""
        namespace, _, name = key.partition("/")
        path = f"/apis/apps/v1/namespaces/{namespace}/deployments/{deployment(name)}/scale"
        try:
            with self._controllers.reconcile("revision"):
                scale = json.loads(await self._api.get(path))
                if (scale.get("spec") or {}).get("replicas", 0):
                    return
                version = (scale.get("metadata") or {}).get("resourceVersion", "")
                wanted = {"metadata": {"resourceVersion": version}, "spec": {"replicas": 1}}
                await self._api.merge_patch(path, wanted, "activator")
        except Exception as error:
            if error_type_of(error).value == "conflict":
                self._controllers.conflict("revision", "scale")
            log.warning("the autoscaler is unreachable, and %s could not be scaled to one: %s", key, error)
            return
        self.scaled_total += 1
        log.warning("the autoscaler is unreachable: %s was scaled to one, because requests wait", key)
