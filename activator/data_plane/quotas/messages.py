"""The messages between data planes about the quotas of users.

Rules
  1. A link delivers in order or ends; messages in transit on a link that ended are lost.
  2. The owner of a quota calls the other members of its view (`QuotaCall`), and each replies with its state
     (`QuotaState`). Before that reply it sends nothing else to this owner.
  3. `epoch` is that of the view; `key` names the quota (`key_of`); `number` identifies a request of the sender of
     `QuotaAsk` and `QuotaEnd`, and is never used twice.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec


class Level(NamedTuple):
    """The use of a quota, as a member knows it.

    `since`: the epoch in which its owner began to grant; `requests`, `tokens`: the used amounts; `is_exact`: the sender
    is that owner itself, and has granted nothing since.
    """

    since: int
    requests: float
    tokens: float
    is_exact: bool = False


class OwnQuota(NamedTuple):
    """What a member has of one quota.

    `open`: its requests, with their reserved tokens; `asked`: the numbers of requests that wait for a reply; `settled`:
    requests that ended, with the change of their tokens, and whose end the owner may not know.
    """

    key: str
    level: Level | None
    open: tuple[tuple[int, int], ...]
    asked: tuple[int, ...]
    settled: tuple[tuple[int, int], ...]


class QuotaCall(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The owner asks for the state of all its quotas. `call`: the number of this call."""

    epoch: int
    call: int


class QuotaState(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The reply: the quotas of which the sender has something. They replace the owner's record."""

    epoch: int
    call: int
    quotas: tuple[OwnQuota, ...]


class QuotaAsk(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A request asks for admission; `tokens` are reserved for it."""

    epoch: int
    key: str
    number: int
    tokens: int


class QuotaReply(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The decision. `limit`: the limit that refuses the request, "" if it is admitted; `wait_s`: until it may succeed.

    `requests_left`, `tokens_left`: what others can take now; `requests_full_s`, `tokens_full_s`: the time until nothing
    is used.
    """

    epoch: int
    key: str
    number: int
    limit: str
    wait_s: float
    requests_left: int
    requests_full_s: float
    tokens_left: int
    tokens_full_s: float


class QuotaEnd(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """An admitted request has ended. `change`: its tokens, less the reserved ones."""

    epoch: int
    key: str
    number: int
    change: int


class QuotaEnded(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The owner has counted the tokens of an ended request."""

    epoch: int
    key: str
    number: int


class QuotaLevel(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The use of a quota, for members that may own it later. `requests_taken`, `tokens_taken`: as in `Bucket.taken`."""

    epoch: int
    key: str
    level: Level
    requests_taken: float
    tokens_taken: float


class QuotaNoted(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The sender knows the use of a quota as of these amounts."""

    epoch: int
    key: str
    requests_taken: float
    tokens_taken: float


QuotaMessage = QuotaCall | QuotaState | QuotaAsk | QuotaReply | QuotaEnd | QuotaEnded | QuotaLevel | QuotaNoted
