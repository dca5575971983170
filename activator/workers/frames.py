"""The frames between members: all messages of one turn of the sender's loop, in order.

Rules
  1. Between workers, which have one version of the program, frames are *packed*. The messages (up to four) that each
     request needs which another worker grants are a few words (integers) each, in one list. Their times and names are
     in two more lists, in the same order. All other messages are as in a plain frame.
  2. Between replicas, which may have two versions, frames are *plain*: a list of messages, each a list of its name and
     its fields (members/handshake.py numbers the versions).
  3. A malformed frame raises DecodeError, and none of its messages is processed.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from mypy_extensions import i64

from activator.data_plane.loads.messages import PodLoads
from activator.data_plane.ownership.messages import (
    Cancel,
    Granted,
    HeldSlot,
    MemberMessage,
    Plain,
    Queued,
    Recall,
    Refused,
    Register,
    Registered,
    Released,
    Returned,
    Revoked,
    Suspected,
    TrialOver,
    WaitingRequest,
    Want,
)
from activator.data_plane.quotas.messages import QuotaMessage
from activator.data_plane.stored_responses.messages import StoredResponsePart, StoredResponseQuery

DecodeError = msgspec.DecodeError

# The first word of each message of a packed frame; behind it, the words that follow, and its items in the other lists.
_ABOUT: Final = 0  # begins the messages of one epoch and key. Words: epoch; names: key
_WANT: Final = 1  # an ordinary `Want`. Words: request; times: how long it has waited
_QUEUED: Final = 2  # Words: request, number
_GRANTED: Final = 3  # Words: request, number, slot, flags; names: identity and address of the pod
_RELEASED: Final = 4  # a `Released` that succeeded. Words: slot; times: latency
_FAILED: Final = 5  # a `Released` that did not succeed: as _RELEASED
_OTHER: Final = 6  # any other message. Others: the message in plain form

# The flags of _GRANTED.
_LENDS: Final = 1
_TRIAL: Final = 2

_WAITING = tuple[int, int, float, int, bool, int, bytes, int, float, float, str]
_SHAPES: Final[dict[str, Any]] = {
    "Register": tuple[int, str, tuple[tuple[int, str, str], ...], tuple[_WAITING, ...]],
    "Registered": tuple[int, str],
    "Want": tuple[int, str, _WAITING],
    "Cancel": tuple[int, str, int],
    "Released": tuple[int, str, int, float, bool],
    "Returned": tuple[int, str, tuple[int, ...]],
    "TrialOver": tuple[int, str, int],
    "Suspected": tuple[int, str, int],
    "Queued": tuple[int, str, int, int],
    "Granted": tuple[int, str, int, int, int, str, str, bool, bool],
    "Refused": tuple[int, str, int, str, str],
    "Recall": tuple[int, str],
    "Revoked": tuple[int, str, int, str, str],
}
_KINDS: Final[dict[str, Any]] = {
    kind.__name__: kind
    for kind in (
        Registered,
        Cancel,
        Released,
        Returned,
        TrialOver,
        Suspected,
        Queued,
        Granted,
        Refused,
        Recall,
        Revoked,
    )
}

_STRUCTS: Final = PodLoads | StoredResponseQuery | StoredResponsePart | QuotaMessage  # the messages that are structs
_ENCODER: Final = msgspec.msgpack.Encoder()
_PACKED: Final = msgspec.msgpack.Decoder(tuple[list[int], list[float], list[str], list[list[Any]]])
_PLAIN: Final = msgspec.msgpack.Decoder(list[list[Any]])

# --- between workers ------------------------------------------------------------------------------------------------


def pack(batch: list[Any]) -> bytes:
    """Return the messages of one turn as a packed frame."""
    words: list[int] = []
    times: list[float] = []
    names: list[str] = []
    others: list[Any] = []
    epoch: int = -1
    key: str = ""
    for message in batch:
        if not isinstance(message, MemberMessage):
            words.append(_OTHER)
            others.append(message)
            continue
        if message.epoch != epoch or message.key != key:
            epoch = message.epoch
            key = message.key
            words.append(_ABOUT)
            words.append(epoch)
            names.append(key)
        if isinstance(message, Released):
            words.append(_RELEASED if message.succeeded else _FAILED)
            words.append(message.slot)
            times.append(message.latency_s)
        elif isinstance(message, Granted):
            words.append(_GRANTED)
            words.append(message.request)
            words.append(message.number)
            words.append(message.slot)
            names.append(message.identity)
            names.append(message.address)
            words.append((_LENDS if message.lends else 0) | (_TRIAL if message.trial else 0))
        elif isinstance(message, Queued):
            words.append(_QUEUED)
            words.append(message.request)
            words.append(message.number)
        elif isinstance(message, Want) and message.waiting.is_ordinary():
            words.append(_WANT)
            words.append(message.waiting.request)
            times.append(message.waiting.waited_s)
        else:
            words.append(_OTHER)
            others.append(plain(message))
    return _ENCODER.encode((words, times, names, others))


def unpack(data: bytes | memoryview) -> list[Any]:
    """Return the messages of a packed frame. Raises DecodeError."""
    frame: tuple[list[int], list[float], list[str], list[list[Any]]] = _PACKED.decode(data)
    try:
        return _unpacked(frame[0], frame[1], frame[2], frame[3])
    except (IndexError, OverflowError) as error:
        raise DecodeError("a frame that ends in the midst of a message") from error


def _unpacked(words: list[int], times: list[float], names: list[str], others: list[list[Any]]) -> list[Any]:
    """Return the messages of a packed frame's four lists. Raises DecodeError, IndexError or OverflowError."""
    messages: list[Any] = []
    epoch: int = 0
    key: str = ""
    pos: i64 = 0
    time: i64 = 0
    name: i64 = 0
    other: i64 = 0
    count: i64 = len(words)
    while pos < count:
        kind = words[pos]
        if kind in (_RELEASED, _FAILED):
            messages.append(Released(epoch, key, words[pos + 1], times[time], kind == _RELEASED))
            time += 1
            pos += 2
        elif kind == _GRANTED:
            flags = words[pos + 4]
            lends = flags & _LENDS != 0
            trial = flags & _TRIAL != 0
            granted = Granted(
                epoch,
                key,
                words[pos + 1],
                words[pos + 2],
                words[pos + 3],
                names[name],
                names[name + 1],
                lends,
                trial,
            )
            messages.append(granted)
            name += 2
            pos += 5
        elif kind == _QUEUED:
            messages.append(Queued(epoch, key, words[pos + 1], words[pos + 2]))
            pos += 3
        elif kind == _WANT:
            messages.append(Want(epoch, key, WaitingRequest(words[pos + 1], 0, times[time])))
            time += 1
            pos += 2
        elif kind == _ABOUT:
            epoch = words[pos + 1]
            key = names[name]
            name += 1
            pos += 2
        elif kind == _OTHER:
            messages.append(message_of(others[other]))
            other += 1
            pos += 1
        else:
            raise DecodeError(f"a message of kind {kind}")
    return messages


# --- between replicas -----------------------------------------------------------------------------------------------


def encode(batch: list[Any]) -> bytes:
    """Return the messages of one turn as a plain frame."""
    return _ENCODER.encode([plain(one) if isinstance(one, MemberMessage) else one for one in batch])


def decode(data: bytes | memoryview) -> list[Any]:
    """Return the messages of a plain frame. Raises DecodeError."""
    frame: list[list[Any]] = _PLAIN.decode(data)
    return [message_of(one) for one in frame]


def plain(message: Plain) -> list[Any]:
    """Return a message as the list of its name and its fields."""
    return [type(message).__name__, *[_plain_field(field) for field in message.fields()]]


def _plain_field(field: object) -> Any:
    """Return a field in which messages and tuples are lists."""
    if isinstance(field, tuple):
        return [_plain_field(one) for one in field]
    return field.fields() if isinstance(field, Plain) else field


def message_of(parts: list[Any]) -> Any:
    """Return the message of a list of its name and its fields. Raises DecodeError."""
    name: str = parts[0] if parts and isinstance(parts[0], str) else ""
    shape = _SHAPES.get(name)
    if shape is None:
        return msgspec.convert(parts, _STRUCTS)
    fields = msgspec.convert(parts[1:], shape)
    if name == "Want":
        return Want(fields[0], fields[1], WaitingRequest(*fields[2]))
    if name == "Register":
        slots = tuple([HeldSlot(*one) for one in fields[2]])
        return Register(fields[0], fields[1], slots, tuple([WaitingRequest(*one) for one in fields[3]]))
    return _KINDS[name](*fields)
