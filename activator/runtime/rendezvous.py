"""Rendezvous hashing (Thaler and Ravishankar 1998): which member has a key.

Every member works it out for itself. Where a member comes or goes, only the keys move that it gets or had.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Final

_MASK_64: Final = (1 << 64) - 1


def hash_of(key: str) -> int:
    """Of a key, for `score`."""
    return zlib.crc32(key.encode())


def score(hashed: int, place: int) -> int:
    """The finalizer of splitmix64 (Steele, Lea and Flood 2014) over both; the highest of a key's scores has it."""
    x = (hashed + (place + 1) * 0x9E3779B97F4A7C15) & _MASK_64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK_64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK_64
    return x ^ (x >> 31)


def owner_of(uid: str, members: Iterable[int]) -> int:
    """Which of these places has it: the one writer of an object. Raises ValueError where there is no member."""
    hashed = hash_of(uid)
    return max((score(hashed, place), place) for place in members)[1]
