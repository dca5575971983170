"""The load reports between members, for revisions without a limit.

Rules
  1. A link delivers in order or ends. Reports over an ended link are void; the next link begins with the whole state.
  2. Pods are named by their identities, revisions as in `data_plane/ownership/messages.py`.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec


class PodLoad(NamedTuple):
    """The number of the sender's requests at a pod."""

    identity: str
    in_flight: int


class PodLoads(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The changed loads of a revision. `anew` makes earlier reports about it void."""

    key: str
    anew: bool
    pods: tuple[PodLoad, ...]
