"""Rendezvous hashing (Thaler and Ravishankar 1998) of keys to members.

Every member computes the owner of a key itself. When a member is added or removed, only its own keys move.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Final

_MASK_64: Final = (1 << 64) - 1


def hash_of(key: str) -> int:
    """Return the hash of a key, for `score`."""
    return zlib.crc32(key.encode())


def score(hashed: int, member: int) -> int:
    """Return the score of a member for a key, by the finalizer of splitmix64 (Steele, Lea and Flood 2014)."""
    x = (hashed + (member + 1) * 0x9E3779B97F4A7C15) & _MASK_64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK_64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK_64
    return x ^ (x >> 31)


def owner_of(uid: str, members: Iterable[int]) -> int:
    """Return the owner of an object: the member with the highest score. Raises ValueError if there are no members."""
    hashed = hash_of(uid)
    return max((score(hashed, member), member) for member in members)[1]
