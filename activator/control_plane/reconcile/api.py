"""The protocol of the Kubernetes API's client, and the classification of refusals.

Rules
  1. The client is passed in, because it belongs to the sources, which are above. A refusal is classified by its
     `status` and `reason` (`error_type_of`), as everywhere below the sources.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, Protocol

from activator.runtime.controller_counts import ErrorType, error_type_of

Json = dict[str, Any]

_OTHER_UID: Final = re.compile(r"metadata\.uid: Invalid value")
_MANAGERS: Final = re.compile(r'conflicts? with "([^"]+)"')


class Api(Protocol):
    """The calls that are used. The client bounds each in time, and raises on a refusal or without an answer.

    `create` and `apply` return the new object.
    """

    async def get(self, path: str, query: Mapping[str, str] = ...) -> bytes: ...

    async def list_page(self, path: str, query: Mapping[str, str]) -> bytes: ...

    async def create(self, collection: str, manifest: Mapping[str, Any], field_manager: str) -> bytes: ...

    async def apply(self, path: str, wanted: Mapping[str, Any], field_manager: str, force: bool = ...) -> bytes: ...

    async def merge_patch(self, path: str, patch: Mapping[str, Any], field_manager: str) -> bytes: ...

    async def delete(self, path: str, uid: str, resource_version: str = ...) -> bytes: ...


def is_conflict(error: Exception) -> bool:
    """Return True if another manager owns a field or a precondition fails: 409, or 422 if a patch names another UID."""
    kind = error_type_of(error)
    return kind is ErrorType.CONFLICT or (kind is ErrorType.INVALID and _OTHER_UID.search(str(error)) is not None)


def already_exists(error: Exception) -> bool:
    return error_type_of(error) is ErrorType.ALREADY_EXISTS


def not_found(error: Exception) -> bool:
    return error_type_of(error) is ErrorType.NOT_FOUND


def managers_in(error: Exception) -> tuple[str, ...]:
    """Return the field managers that a refused apply names; empty if it was refused for another reason."""
    return tuple(dict.fromkeys(_MANAGERS.findall(str(error))))
