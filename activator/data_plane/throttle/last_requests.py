"""Records of the last requests of one revision."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple, final

from activator.codec.token_counts import TokenCounts


class RequestRecord(NamedTuple):
    """One request that has ended. Durations in seconds; None: the request ended before that."""

    number: int  # unique in this data plane
    revision: str
    ended_s: float  # monotonic
    method: str
    target: str
    status: int
    reason: str
    user: str
    pod: str
    first_revision: str
    retries: int
    duration_s: float
    wait_s: float | None
    start_s: float | None
    ready_s: float | None
    connect_s: float | None
    first_byte_s: float | None
    first_token_s: float | None
    output_token_s: float | None
    tokens: TokenCounts | None
    request_bytes: int
    response_bytes: int
    has_capture: bool


@final
class LastRequests:
    """The last `count` records of one revision. `evicted`: the number of the last one that was replaced."""

    def __init__(self, count: int, earlier: Iterable[RequestRecord] = (), evicted: int = 0) -> None:
        self.count = count
        self.evicted = evicted
        self._records: deque[RequestRecord] = deque(earlier, count)

    def add(self, record: RequestRecord) -> None:
        if len(self._records) == self.count:
            self.evicted = self._records[0].number
        self._records.append(record)

    def newest_first(self) -> Iterator[RequestRecord]:
        return reversed(self._records)

    def oldest_first(self) -> Iterator[RequestRecord]:
        return iter(self._records)


def newest(rings: list[LastRequests], count: int) -> list[RequestRecord]:
    """Return the last `count` records of all these rings, the newest first."""
    merged = heapq.merge(*[ring.newest_first() for ring in rings], key=_by_age)
    return list(islice(merged, count))


def _by_age(record: RequestRecord) -> float:
    return -record.ended_s
