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
_CONFIG_TYPE: Final = types.type_info(Config)


def configuration(config: Config) -> Any:
    """Return the configuration in force, defaults included, without secrets, also in URLs and parameters."""
    return _shown(config, _CONFIG_TYPE)


def _shown(value: Any, declared: types.Type) -> Any:
    """Return a value as plain data; of a value of the type Secret, only whether it is set."""
    match declared:
        case types.Metadata():
            return _shown(value, declared.type)
        case types.UnionType():
            return _shown(value, _union_member(value, declared))
        case types.StructType():
            return {field.encode_name: _shown(getattr(value, field.name), field.type) for field in declared.fields}
        case types.ListType():
            return [_shown(element, declared.item_type) for element in value]
        case types.DictType():
            return _shown_members(
                {key: _shown(element, declared.value_type) for key, element in value.items()}, declared.value_type
            )
        case types.CustomType() if declared.cls is Secret:
            return _HIDDEN if value else ""
        case types.CustomType() if declared.cls is Json:
            return _without_credentials(json.loads(value))
        case types.CustomType():
            return float(value) if isinstance(value, float) else int(value)
    return _without_credentials(value)


def _shown_members(members: dict[str, Any], declared: types.Type) -> dict[str, Any]:
    """Return the members of a mapping; of JSON, those whose names suggest a secret are masked."""
    if not isinstance(declared, types.CustomType) or declared.cls is not Json:
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
            return [_without_credentials(element) for element in value]
        case dict():
            return {name: _without_credentials(element) for name, element in value.items()}
    return value


def _union_member(value: Any, declared: types.UnionType) -> types.Type:
    """Return the member of the union that matches the value; AnyType for a plain value."""
    for option in declared.types:
        member = option.type if isinstance(option, types.Metadata) else option
        match member:
            case types.StructType() | types.CustomType() if isinstance(value, member.cls):
                return option
            case types.ListType() if isinstance(value, list):
                return option
            case types.DictType() if isinstance(value, dict):
                return option
    return types.AnyType()
