"""What one pass reads: each path and each list once, whoever asks.

Rules
  1. It lives as long as its pass. After a conflict `forget` makes the next reader ask again.
  2. A list is narrowed to one label, the one that is unique: the name of the Activation.
  3. Two that ask for the same at the same time share one call.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from activator.control_plane.reconcile import wire
from activator.control_plane.reconcile.api import Api, not_found
from activator.control_plane.reconcile.desired import ACTIVATION_LABEL, Desired, ServiceSeen
from activator.control_plane.reconcile.rights import ACTIVATIONS, SERVICES

SERVICES_LISTED_MAX: Final = 100  # of one Activation; there is one, and after a change of its name two

Answer = TypeVar("Answer")


class Reads:
    """The answers of one pass. `calls`: by verb."""

    def __init__(self, api: Api, desired: Desired) -> None:
        self._api = api
        self._desired = desired
        self._bodies: dict[str, asyncio.Future[bytes | None]] = {}
        self.calls: Counter[str] = Counter()

    async def activation(self) -> bytes | None:
        """The Activation itself; None: it is gone."""
        return await self.get(ACTIVATIONS.path(self._desired.namespace, self._desired.name))

    async def services(self) -> tuple[ServiceSeen, ...]:
        """All Services with the label of this Activation, whosesoever they are."""
        path = SERVICES.collection(self._desired.namespace)
        body = await self._once(path, "list", self._list)
        return () if body is None else wire.services_seen(body)

    async def get(self, path: str) -> bytes | None:
        """None: there is none."""
        return await self._once(path, "get", lambda: self._get(path))

    def forget(self) -> None:
        """What was read is known to be old."""
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
        known = self._bodies.get(path)
        if known is not None:
            return await asyncio.shield(known)
        self.calls[verb] += 1
        shared: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        self._bodies[path] = shared
        try:
            body = await call()
        except BaseException as error:
            if self._bodies.get(path) is shared:
                del self._bodies[path]  # the next one tries anew
            if isinstance(error, Exception):
                shared.set_exception(error)
                shared.exception()  # whether or not somebody shares it
            else:
                shared.cancel()
            raise
        shared.set_result(body)
        return body
