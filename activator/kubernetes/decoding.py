"""Decodes the API's responses to objects, or to their metadata when an object cannot be read."""

from __future__ import annotations

from typing import Final, Generic

import msgspec

from activator.kubernetes.errors import RefusedError, UnreadableError
from activator.kubernetes.objects import (
    BareObject,
    Object,
    ObjectList,
    RawList,
    Status,
    StatusEvent,
    WatchEvent,
)

_RAW_LIST: Final = msgspec.json.Decoder(RawList)
_BARE: Final = msgspec.json.Decoder(BareObject)
_BARE_EVENT: Final = msgspec.json.Decoder(WatchEvent[BareObject])
_STATUS: Final = msgspec.json.Decoder(Status)
_STATUS_EVENT: Final = msgspec.json.Decoder(StatusEvent)


class Decoding(Generic[Object]):
    """The decoders of one kind of object. `failures_total` counts unreadable objects; `last_failure` names the last."""

    def __init__(self, kind: type[Object]) -> None:
        self._list = msgspec.json.Decoder(ObjectList[kind])  # type: ignore[valid-type]
        self._event = msgspec.json.Decoder(WatchEvent[kind])  # type: ignore[valid-type]
        self._object = msgspec.json.Decoder(kind)
        self.failures_total = 0
        self.last_failure = ""

    def list(self, body: bytes) -> ObjectList[Object]:
        """Decode one page of a list; raise UnreadableError if it is not a list."""
        try:
            return self._list.decode(body)
        except msgspec.DecodeError:
            raw = self.raw_list(body)
        items = [self.item(item) for item in raw.items or ()]
        return ObjectList(raw.metadata, [item for item in items if item is not None])

    def raw_list(self, body: bytes) -> RawList:
        """Decode one page whose items are decoded later by `item`: slower as a whole, but can be done in steps.

        Raise UnreadableError if it is not a list.
        """
        try:
            return _RAW_LIST.decode(body)
        except msgspec.DecodeError as error:
            raise UnreadableError(f"not a list: {error}") from error

    def item(self, item: msgspec.Raw) -> Object | None:
        """Decode one item of a list; return None if it cannot be read."""
        try:
            return self._object.decode(item)
        except msgspec.DecodeError as error:
            self._count_unreadable(bytes(item), error)
            return None

    def event(self, line: bytes) -> WatchEvent[Object] | WatchEvent[BareObject]:
        """Decode one line of a watch; the object is a BareObject if only its metadata can be read.

        Raise UnreadableError if it is not an event, RefusedError if it is an ERROR.
        """
        try:
            event = self._event.decode(line)
        except msgspec.DecodeError as error:
            bare = self._bare_event(line)
            if bare.type == "ERROR":
                raise refusal_of_event(line) from error
            if bare.type != "BOOKMARK":
                self.failures_total += 1
                self.last_failure = f"{bare.object.metadata.namespace}/{bare.object.metadata.name}: {error}"
            return bare
        if event.type == "ERROR":
            raise refusal_of_event(line)
        return event

    def object(self, body: bytes) -> Object:
        """Decode one object; raise UnreadableError on failure."""
        try:
            return self._object.decode(body)
        except msgspec.DecodeError as error:
            raise UnreadableError(str(error)) from error

    def _bare_event(self, line: bytes) -> WatchEvent[BareObject]:
        try:
            return _BARE_EVENT.decode(line)
        except msgspec.DecodeError as error:
            raise UnreadableError(f"not a watch event: {error}") from error

    def _count_unreadable(self, item: bytes, error: msgspec.DecodeError) -> None:
        """Count an item that cannot be read, and note its name if its metadata can."""
        self.failures_total += 1
        try:
            metadata = _BARE.decode(item).metadata
            self.last_failure = f"{metadata.namespace}/{metadata.name}: {error}"
        except msgspec.DecodeError:
            self.last_failure = str(error)


def refusal_of_event(line: bytes) -> RefusedError:
    """Return the refusal of an ERROR event."""
    try:
        return _refusal(_STATUS_EVENT.decode(line).object, 500, None)
    except msgspec.DecodeError:
        return RefusedError(500, "", "an ERROR event without a Status")


def refusal_of_answer(code: int, body: bytes, retry_after_s: float | None) -> RefusedError:
    """Return the refusal of a response with an error status; a body that is not a Status (a proxy's) is ignored."""
    try:
        status = _STATUS.decode(body)
    except msgspec.DecodeError:
        status = Status()
    return _refusal(status, code, retry_after_s)


def _refusal(status: Status, code: int, retry_after_s: float | None) -> RefusedError:
    if retry_after_s is None and status.details is not None and status.details.retry_after_seconds is not None:
        retry_after_s = float(status.details.retry_after_seconds)
    return RefusedError(status.code or code, status.reason, status.message[:200], retry_after_s)
