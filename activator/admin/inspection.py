"""The response to `GET /debug/config`."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from msgspec import inspect as types

from activator.config.model.file import Config
from activator.config.model.kinds import Json, Secret
from activator.runtime.masking import masked_body, masked_target

_HIDDEN: Final = "…"
_JSON: Final = b"application/json"
_CREDENTIALS: Final = re.compile(r"(?<=://)[^/@\s]+(?=@)")  # The user information of a URL (RFC 3986 section 3.2.1).
_KIND: Final = types.type_info(Config)


def configuration(config: Config) -> Any:
    """Return the configuration in force, defaults included, without secrets, also in URLs and parameters."""
    return _shown(config, _KIND)


def _shown(value: Any, kind: types.Type) -> Any:
    """Return plain data. A value of the type Secret is only shown as set or not set, whatever its key."""
    match kind:
        case types.Metadata():
            return _shown(value, kind.type)
        case types.UnionType():
            return _shown(value, _member(value, kind))
        case types.StructType():
            return {field.encode_name: _shown(getattr(value, field.name), field.type) for field in kind.fields}
        case types.ListType():
            return [_shown(one, kind.item_type) for one in value]
        case types.DictType():
            return _shown_members({key: _shown(one, kind.value_type) for key, one in value.items()}, kind.value_type)
        case types.CustomType() if kind.cls is Secret:
            return _HIDDEN if value else ""
        case types.CustomType() if kind.cls is Json:
            return _without_credentials(json.loads(value))
        case types.CustomType():
            return float(value) if isinstance(value, float) else int(value)
    return _without_credentials(value)


def _shown_members(members: dict[str, Any], kind: types.Type) -> dict[str, Any]:
    """Return the members of a mapping; those of JSON without the values of telling names."""
    if not isinstance(kind, types.CustomType) or kind.cls is not Json:
        return members
    masked: dict[str, Any] = json.loads(masked_body(json.dumps(members).encode(), _JSON))
    return masked


def _without_credentials(value: Any) -> Any:
    """Return plain data without credentials in the URLs of its texts."""
    match value:
        case str():
            text = _CREDENTIALS.sub(_HIDDEN, value)
            return masked_target(text) if "://" in text and "?" in text else text
        case list():
            return [_without_credentials(one) for one in value]
        case dict():
            return {name: _without_credentials(one) for name, one in value.items()}
    return value


def _member(value: Any, kind: types.UnionType) -> types.Type:
    """Return the member of the union that matches the value; AnyType for a plain value."""
    for one in kind.types:
        member = one.type if isinstance(one, types.Metadata) else one
        match member:
            case types.StructType() | types.CustomType() if isinstance(value, member.cls):
                return one
            case types.ListType() if isinstance(value, list):
                return one
            case types.DictType() if isinstance(value, dict):
                return one
    return types.AnyType()
