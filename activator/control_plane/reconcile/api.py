"""What is needed of the Kubernetes API, and what its refusals mean here.

Rules
  1. The client is handed in: it belongs to the sources, which stand above. A refusal is recognised by its `status` and
     `reason` (`error_type_of`), as everywhere below the sources.
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
    """The calls that are made. Each is bounded in time by the client, and raises where it was refused or had no answer.

    `create` and `apply` answer with the object as it is afterwards.
    """

    async def get(self, path: str, query: Mapping[str, str] = ...) -> bytes: ...

    async def list_page(self, path: str, query: Mapping[str, str]) -> bytes: ...

    async def create(self, collection: str, thing: Mapping[str, Any], field_manager: str) -> bytes: ...

    async def apply(self, path: str, wanted: Mapping[str, Any], field_manager: str, force: bool = ...) -> bytes: ...

    async def merge_patch(self, path: str, patch: Mapping[str, Any], field_manager: str) -> bytes: ...

    async def delete(self, path: str, uid: str, resource_version: str = ...) -> bytes: ...


def is_conflict(error: Exception) -> bool:
    """Another manager owns a field, or a precondition does not hold: 409, but 422 where a patch names another UID."""
    found = error_type_of(error)
    return found is ErrorType.CONFLICT or (found is ErrorType.INVALID and _OTHER_UID.search(str(error)) is not None)


def already_exists(error: Exception) -> bool:
    return error_type_of(error) is ErrorType.ALREADY_EXISTS


def not_found(error: Exception) -> bool:
    return error_type_of(error) is ErrorType.NOT_FOUND


def managers_in(error: Exception) -> tuple[str, ...]:
    """The field managers that a refused apply names; none: it was refused for another reason."""
    return tuple(dict.fromkeys(_MANAGERS.findall(str(error))))
