"""What a data plane says of its requests at pods of a revision without a limit, on the links between members.

Rules
  1. A link delivers in order or ends. What was said over one that has ended is void; the next begins with all there is.
  2. Pods are named by their identities, revisions as in `data_plane/ownership/messages.py`.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec


class PodLoad(NamedTuple):
    """So many requests of the sender are at the pod now."""

    identity: str
    in_flight: int


class PodLoads(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """What has changed. `anew`: what was said of this revision before is void."""

    key: str
    anew: bool
    pods: tuple[PodLoad, ...]
