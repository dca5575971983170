"""All events that the checker judges: of members (activator/workers/trace.py) and of pods; and how files are read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from activator.workers.frames import message_of
from activator.workers.trace import LENGTH_BYTES, Adopted, Began, Ceased, Event, Linked, Received, Sent, Unlinked


class Used(Event, frozen=True, tag=True):
    """A request has begun at the pod, which may have so many."""

    pod: str
    limit: int


class Left(Event, frozen=True, tag=True):
    """A request is no longer at the pod."""

    pod: str


AnyEvent = Adopted | Linked | Unlinked | Sent | Received | Began | Ceased | Used | Left


def _made(kind: type, said: Any) -> Any:
    return message_of(said)


_DECODER = msgspec.msgpack.Decoder(AnyEvent, dec_hook=_made)


def events_of(data: bytes) -> Iterator[AnyEvent]:
    """Yield what a file has. Raises msgspec.DecodeError for what is no event."""
    at = 0
    while at < len(data):
        begin = at + LENGTH_BYTES
        at = begin + int.from_bytes(data[at:begin], "big")
        yield _DECODER.decode(data[begin:at])
