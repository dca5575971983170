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

# The first word of each message of a packed frame. The numbers below count the words that follow it.
_ABOUT: Final = 0  # the messages that follow; their epoch: 1; the next of the names: their key
_WANT: Final = 1  # an ordinary one; the request: 1; the next of the times: how long it has waited
_QUEUED: Final = 2  # the request, its number: 2
_GRANTED: Final = 3  # the request, its number, the slot, flags: 4; two names: identity and address of the pod
_RELEASED: Final = 4  # by a request that went well; the slot: 1; the next of the times: the latency
_FAILED: Final = 5  # the same by one that did not
_OTHER: Final = 6  # the next of the others: 0

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
    found: list[Any] = []
    epoch: int = 0
    key: str = ""
    at: i64 = 0
    time: i64 = 0
    name: i64 = 0
    other: i64 = 0
    count: i64 = len(words)
    while at < count:
        what = words[at]
        if what in (_RELEASED, _FAILED):
            found.append(Released(epoch, key, words[at + 1], times[time], what == _RELEASED))
            time += 1
            at += 2
        elif what == _GRANTED:
            flags = words[at + 4]
            lends = flags & _LENDS != 0
            trial = flags & _TRIAL != 0
            granted = Granted(
                epoch,
                key,
                words[at + 1],
                words[at + 2],
                words[at + 3],
                names[name],
                names[name + 1],
                lends,
                trial,
            )
            found.append(granted)
            name += 2
            at += 5
        elif what == _QUEUED:
            found.append(Queued(epoch, key, words[at + 1], words[at + 2]))
            at += 3
        elif what == _WANT:
            found.append(Want(epoch, key, WaitingRequest(words[at + 1], 0, times[time])))
            time += 1
            at += 2
        elif what == _ABOUT:
            epoch = words[at + 1]
            key = names[name]
            name += 1
            at += 2
        elif what == _OTHER:
            found.append(made(others[other]))
            other += 1
            at += 1
        else:
            raise DecodeError(f"a message of kind {what}")
    return found


# --- between replicas -----------------------------------------------------------------------------------------------


def encode(batch: list[Any]) -> bytes:
    """Return the messages of one turn as a plain frame."""
    return _ENCODER.encode([plain(one) if isinstance(one, MemberMessage) else one for one in batch])


def decode(data: bytes | memoryview) -> list[Any]:
    """Return the messages of a plain frame. Raises DecodeError."""
    frame: list[list[Any]] = _PLAIN.decode(data)
    return [made(one) for one in frame]


def plain(message: Plain) -> list[Any]:
    """Return a message as the list of its name and its fields."""
    return [type(message).__name__, *[_plain_field(field) for field in message.fields()]]


def _plain_field(field: object) -> Any:
    if isinstance(field, tuple):
        return [_plain_field(one) for one in field]
    return field.fields() if isinstance(field, Plain) else field


def made(parts: list[Any]) -> Any:
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
