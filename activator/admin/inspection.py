"""The response to `GET /debug/config`."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from msgspec import inspect as types

from activator.config.model.file import Config
from activator.config.model.kinds import Json, Secret

_HIDDEN: Final = "…"
_CREDENTIALS: Final = re.compile(r"(?<=://)[^/@\s]+(?=@)")  # The user information of a URL (RFC 3986 section 3.2.1).
_KIND: Final = types.type_info(Config)


def configuration(config: Config) -> Any:
    """Return the configuration in force, defaults included, without secrets and without credentials in URLs."""
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
            return {key: _shown(one, kind.value_type) for key, one in value.items()}
        case types.CustomType() if kind.cls is Secret:
            return _HIDDEN if value else ""
        case types.CustomType() if kind.cls is Json:
            return json.loads(_CREDENTIALS.sub(_HIDDEN, value))
        case types.CustomType():
            return float(value) if isinstance(value, float) else int(value)
    return _CREDENTIALS.sub(_HIDDEN, value) if isinstance(value, str) else value


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
