"""The split of one rule's requests between revisions by weight.

Rules
  1. Without a key the revisions take turns: among as many consecutive requests as the sum of the weights, each revision
     gets exactly its weight, evenly interleaved. Each worker counts separately.
  2. With a key, the same key leads to the same revision in every process. After a change of weights, only the keys of
     the shares that changed move. A request without a key takes the next turn.
"""

from __future__ import annotations

from bisect import bisect_right
from math import gcd
from typing import Final, final

from mypy_extensions import i64

from activator.codec.message import RequestHead
from activator.data_plane.headers.affinity import Affinity
from activator.data_plane.streams import ClientStream
from activator.data_plane.throttle.revision import RevisionThrottler
from lb.hashing import MASK_32, mix

_GOLDEN: Final = 0.6180339887498949  # golden ratio: steps of this part of a circle are spread evenly
_SALT: Final = 0x5B1F  # without a salt, the keys of one revision would be neighbours on the ring of its policy


@final
class Split:
    """The revisions of one rule. `members` is not empty and in the order of the file."""

    def __init__(self, members: list[RevisionThrottler]) -> None:
        self.members = members
        self._ends: list[int] = []  # running sums of the weights
        total = 0
        split_on = ""
        for member in members:
            total += max(member.routing.weight, 0)
            self._ends.append(total)
            split_on = split_on or member.routing.split_on
        self._total = total
        self._step = _coprime(total)
        self._turn: int = 0  # the point of the next request without a key
        self._affinity: Affinity | None = Affinity(split_on) if split_on else None

    def pick(self, head: RequestHead, client: ClientStream) -> RevisionThrottler:
        """Return the revision for this request."""
        if self._total == 0 or len(self.members) == 1:
            return self.members[0]
        affinity = self._affinity
        key: i64 = 0
        if affinity is not None:
            key = affinity.key_of(head, client.client_ip() if affinity.on_client_ip else "")
        if key != 0:
            point = (int(mix((key ^ (key >> 31) ^ _SALT) & MASK_32)) * self._total) >> 32
        else:
            point = self._turn
            self._turn = (point + self._step) % self._total
        return self.members[bisect_right(self._ends, point)]


def _coprime(total: int) -> int:
    """Return a step that is coprime to `total`, so that it visits every number below `total` once per cycle."""
    step = max(int(total * _GOLDEN), 1)
    while total > 1 and gcd(step, total) != 1:
        step += 1
    return step
