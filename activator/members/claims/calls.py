"""The calls of one member to the API, counted by verb, with the handling of errors that all callers share.

Rules
  1. 403 is MembershipForbiddenError; every other failure stays a KubeError.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Mapping
from typing import Any, Final, TypeVar, final

from activator.kubernetes.client import KubeClient
from activator.kubernetes.decoding import Decoding
from activator.kubernetes.errors import RefusedError
from activator.kubernetes.listing import list_all
from activator.kubernetes.objects import Object
from activator.kubernetes.resources import Selection
from activator.members.claims.errors import MembershipForbiddenError
from activator.runtime.tasks import pause

FIELD_MANAGER: Final = "activator"
FORBIDDEN: Final = 403
NOT_FOUND: Final = 404
CONFLICT: Final = 409

Answer = TypeVar("Answer")


@final
class CountedCalls:
    """Calls to the API. `by_verb` counts them by Kubernetes' verbs; a list is one call, whatever its pages."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self.by_verb: Counter[str] = Counter()

    async def get(self, path: str) -> bytes | None:
        """Return the object; None if it does not exist."""
        try:
            return await self.counted("get", self._client.get(path))
        except RefusedError as error:
            if is_refusal(error, NOT_FOUND, "NotFound"):
                return None
            raise

    async def list(self, selection: Selection[Object], decoding: Decoding[Object]) -> list[Object]:
        """Return a consistent list: at least as new as any earlier answer."""
        items, _ = await self.counted("list", list_all(self._client, selection, decoding, pause))
        return list(items.values())

    async def create(self, collection: str, body: Mapping[str, Any]) -> bytes:
        """Create an object, and return it as the API has stored it."""
        return await self.counted("create", self._client.create(collection, body, FIELD_MANAGER))

    async def delete(self, path: str, uid: str, resource_version: str) -> bool:
        """Delete exactly this version; return False if no object has this name."""
        try:
            await self.counted("delete", self._client.delete(path, uid, resource_version))
        except RefusedError as error:
            if is_refusal(error, NOT_FOUND, "NotFound"):
                return False
            raise
        return True

    async def counted(self, verb: str, call: Awaitable[Answer]) -> Answer:
        """Make a call of this verb. Raises KubeError, MembershipForbiddenError."""
        self.by_verb[verb] += 1
        try:
            return await call
        except RefusedError as error:
            if error.status == FORBIDDEN:
                raise MembershipForbiddenError(
                    f"no right to {verb} what membership needs ({error}); rights: docs/membership.md"
                ) from error
            raise


def is_refusal(error: RefusedError, status: int, reason: str) -> bool:
    """Return True if the API itself refused for this reason. The answer of a proxy on the path has no reason."""
    return error.status == status and error.reason == reason
