"""Hashes that are the same on every machine, in every process and in both worlds: for keys, and for pods' addresses.

Rules
  1. A hash is 1 … 2^62 - 1: never 0, which means "no key", and never a number that Python would have to box.
  2. No product leaves 63 bits (compiled integers wrap silently, plain ones grow).
  3. It is for spreading load, never for secrets: with the constants, keys that lead to one pod can be found.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

MASK_32: Final = 0xFFFFFFFF
_LOW_FROM: Final = 0x811C9DC5
_LOW_PRIME: Final = 0x01000193
_HIGH_FROM: Final = 0x6C62272E
_HIGH_PRIME: Final = 0x5BD1E995  # below 2^31, so that 32 bits times it stay below 2^63
_MIX_1: Final = 0x21F0AAAD  # below 2^30
_MIX_2: Final = 0x735A2D97  # below 2^31
_HIGH_BITS: Final = 0x3FFFFFFF


def hash_bytes(data: bytes) -> i64:
    """62 bits of `data`, from two lanes of 32 bits that each byte goes through, mixed at the end."""
    low: i64 = _LOW_FROM
    high: i64 = _HIGH_FROM
    index: i64 = 0
    length: i64 = len(data)
    while index < length:
        byte: i64 = data[index]
        low = ((low ^ byte) * _LOW_PRIME) & MASK_32
        high = ((high ^ byte) * _HIGH_PRIME) & MASK_32
        high ^= high >> 15
        index += 1
    low = mix(low)
    high = mix(high ^ low)
    found = ((high & _HIGH_BITS) << 32) | low
    return found if found != 0 else 1


def mix(number: i64) -> i64:
    """A permutation of 0 … 2^32 - 1 that changes half of the bits when one changes."""
    number = ((number ^ (number >> 16)) * _MIX_1) & MASK_32
    number = ((number ^ (number >> 15)) * _MIX_2) & MASK_32
    return number ^ (number >> 15)
