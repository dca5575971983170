"""The reads of one pass: each path and each list is read once and shared by its components.

Rules
  1. The cache lives as long as its pass. After a conflict `forget` makes the next reader read again.
  2. A list is narrowed by one label, which is unique: the name of the Activation.
  3. Concurrent readers of one path share one call.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from activator.control_plane.reconcile import wire
from activator.control_plane.reconcile.api import Api, not_found
from activator.control_plane.reconcile.desired import ACTIVATION_LABEL, Desired, ObservedService
from activator.control_plane.reconcile.rights import ACTIVATIONS, SERVICES

SERVICES_LISTED_MAX: Final = 100  # An Activation has one, or two after a change of its name.

Answer = TypeVar("Answer")


class Reads:
    """The answers of one pass. `calls` counts by verb."""

    def __init__(self, api: Api, desired: Desired) -> None:
        self._api = api
        self._desired = desired
        self._bodies: dict[str, asyncio.Future[bytes | None]] = {}
        self.calls: Counter[str] = Counter()

    async def activation(self) -> bytes | None:
        """Return the Activation itself; None: it was deleted."""
        return await self.get(ACTIVATIONS.path(self._desired.namespace, self._desired.name))

    async def services(self) -> tuple[ObservedService, ...]:
        """Return all Services with the label of this Activation, whatever their owner."""
        path = SERVICES.collection(self._desired.namespace)
        body = await self._once(path, "list", self._list)
        return () if body is None else wire.services_seen(body)

    async def get(self, path: str) -> bytes | None:
        """Return the object at a path; None: there is none."""
        return await self._once(path, "get", lambda: self._get(path))

    def forget(self) -> None:
        """Clear the cache: its content is known to be outdated."""
        self._bodies.clear()

    async def _list(self) -> bytes:
        query = {"labelSelector": f"{ACTIVATION_LABEL}={self._desired.name}", "limit": str(SERVICES_LISTED_MAX)}
        return await self._api.list_page(SERVICES.collection(self._desired.namespace), query)

    async def _get(self, path: str) -> bytes | None:
        try:
            return await self._api.get(path)
        except Exception as error:
            if not_found(error):
                return None
            raise

    async def _once(self, path: str, verb: str, call: Callable[[], Awaitable[bytes | None]]) -> bytes | None:
        """Return the body that `call` reads; a read of this path that has begun in this pass is shared."""
        running = self._bodies.get(path)
        if running is not None:
            return await asyncio.shield(running)
        self.calls[verb] += 1
        future: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        self._bodies[path] = future
        try:
            body = await call()
        except BaseException as error:
            if self._bodies.get(path) is future:
                del self._bodies[path]  # the next reader tries again
            if isinstance(error, Exception):
                future.set_exception(error)
                future.exception()  # marks it as retrieved, in case no reader shares it
            else:
                future.cancel()
            raise
        future.set_result(body)
        return body
