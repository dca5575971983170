"""One rule's requests, split by weight between revisions.

Rules
  1. Without a key the revisions take turns: of as many requests in a row as the weights sum up to, each revision gets
     exactly its weight; in between the turns are spread evenly. Each worker counts for itself.
  2. With a key the same key always leads to the same revision, in every process. When weights change, only the keys go
     elsewhere whose part has changed hands. A request without a key takes the next turn.
"""

from __future__ import annotations

from bisect import bisect_right
from math import gcd
from typing import Final, final

from mypy_extensions import i64

from activator.codec.message import RequestHead
from activator.data_plane.exchange import ClientStream
from activator.data_plane.headers.affinity import Affinity
from activator.data_plane.throttle.revision import RevisionThrottler
from lb.hashing import MASK_32, mix

_GOLDEN: Final = 0.6180339887498949  # a step of this part of a circle spreads its points evenly
_SALT: Final = 0x5B1F  # else the keys of one revision would be neighbours on its policy's own ring


@final
class Split:
    """`members` in the order of the file. There is at least one."""

    def __init__(self, members: list[RevisionThrottler]) -> None:
        self.members = members
        self._ends: list[int] = []
        total = 0
        split_on = ""
        for member in members:
            total += max(member.spec.weight, 0)
            self._ends.append(total)
            split_on = split_on or member.spec.split_on
        self._total = total
        self._step = _coprime(total)
        self._turn: int = 0
        self._affinity: Affinity | None = Affinity(split_on) if split_on else None

    def pick(self, head: RequestHead, client: ClientStream) -> RevisionThrottler:
        """The revision that this request is for."""
        if self._total == 0 or len(self.members) == 1:
            return self.members[0]
        affinity = self._affinity
        key: i64 = 0
        if affinity is not None:
            key = affinity.key_of(head, client.client_ip() if affinity.on_client_ip else "")
        if key != 0:
            place = (int(mix((key ^ (key >> 31) ^ _SALT) & MASK_32)) * self._total) >> 32
        else:
            place = self._turn
            self._turn = (place + self._step) % self._total
        return self.members[bisect_right(self._ends, place)]


def _coprime(total: int) -> int:
    """A step that comes to every place below `total` once before it comes back to the first."""
    step = max(int(total * _GOLDEN), 1)
    while total > 1 and gcd(step, total) != 1:
        step += 1
    return step
