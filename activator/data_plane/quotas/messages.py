"""The messages between data planes about the quotas of users.

Rules
  1. A link delivers in order or ends; messages in transit on a link that ended are lost.
  2. The owner of a quota queries the other members of its view (`QuotaQuery`), and each replies with its state
     (`QuotaState`), before it sends anything else to this owner.
  3. `epoch` is the epoch of the view; `key` identifies the quota (`key_of`); `number` identifies a request of the
     sender of `QuotaRequest` and `QuotaRelease`, and is never reused.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec


class Level(NamedTuple):
    """The usage of a quota, as its owner has reported it.

    `since`: the epoch in which that owner began to grant; `requests`, `tokens`: the usage; `is_exact`: the sender was
    that owner, and has granted nothing since.
    """

    since: int
    requests: float
    tokens: float
    is_exact: bool = False


class OwnQuota(NamedTuple):
    """The state of one quota at a member.

    `open`: its admitted requests, with their reserved tokens; `asked`: its undecided requests; `settled`: ended
    requests with the tokens that they used beyond the reserved ones, until the owner acknowledges their release.
    """

    key: str
    level: Level | None
    open: tuple[tuple[int, int], ...]
    asked: tuple[int, ...]
    settled: tuple[tuple[int, int], ...]


class QuotaQuery(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The query of an owner for the state of all its quotas. `call`: its number."""

    epoch: int
    call: int


class QuotaState(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The reply to a query, which replaces the owner's record of the sender."""

    epoch: int
    call: int
    quotas: tuple[OwnQuota, ...]


class QuotaRequest(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A request for admission, which reserves `tokens`."""

    epoch: int
    key: str
    number: int
    tokens: int


class Decision(NamedTuple):
    """A decision on a request. `limit`: the limit that rejects it, "" if it is admitted; `wait_s`: when to retry.

    `requests_left`, `tokens_left`: the rest of each limit; `requests_full_s`, `tokens_full_s`: the time until all usage
    has drained.
    """

    limit: str
    wait_s: float
    requests_left: int
    requests_full_s: float
    tokens_left: int
    tokens_full_s: float


class QuotaDecision(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The decision of the owner."""

    epoch: int
    key: str
    number: int
    decision: Decision


class QuotaRelease(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The end of an admitted request. `change`: the used tokens minus the reserved ones."""

    epoch: int
    key: str
    number: int
    change: int


class QuotaReleaseAck(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The acknowledgement of a release with a positive change."""

    epoch: int
    key: str
    number: int


class QuotaLevel(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The level of a quota, for its next owner. `requests_taken`, `tokens_taken`: as in `Bucket.taken`."""

    epoch: int
    key: str
    level: Level
    requests_taken: float
    tokens_taken: float


class QuotaLevelAck(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The acknowledgement of a level report with these amounts."""

    epoch: int
    key: str
    requests_taken: float
    tokens_taken: float


QuotaMessage = (
    QuotaQuery | QuotaState | QuotaRequest | QuotaDecision | QuotaRelease | QuotaReleaseAck | QuotaLevel | QuotaLevelAck
)
