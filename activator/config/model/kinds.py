"""The kinds of values that keys have, and how a key is documented."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec


class Duration(float):
    """Seconds."""


class Size(int):
    """Bytes."""


class Secret(str):
    """A text that nothing shows: neither the admin port nor a message."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "Secret(…)"


def doc(meaning: str, *examples: Any, words: tuple[str, ...] = ()) -> msgspec.Meta:
    """The documentation of one key. `examples` as in a file; `words`: the values that are allowed, if they are few."""
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
