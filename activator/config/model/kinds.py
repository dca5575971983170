"""The types of configuration values, and the documentation of a key."""

from typing import Annotated, Any

import msgspec


class Duration(float):
    """Seconds."""


class Size(int):
    """Bytes."""


class Secret(str):
    """A text that is never shown: neither on the admin port nor in a message."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "Secret(…)"


class Json(str):
    """The JSON text of a value, which the file has as YAML."""

    __slots__ = ()


def doc(meaning: str, *examples: Any, words: tuple[str, ...] = ()) -> msgspec.Meta:
    """Document one key. `examples` are as in a file; `words`: the allowed values, if there are few."""
    return msgspec.Meta(
        description=meaning,
        examples=list(examples) or None,
        extra_json_schema={"enum": list(words)} if words else None,
    )


Count = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[int, msgspec.Meta(ge=1)]
Weight = Annotated[int, msgspec.Meta(ge=0, le=1000)]
Share = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
Port = Annotated[int, msgspec.Meta(ge=1, le=65_535)]
