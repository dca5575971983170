"""Hashes of keys and of pods' addresses, which are the same on every machine, in every process, compiled or not.

Rules
  1. A hash is 1 … 2^62 - 1: never 0, which means "no key", and never a number that mypyc would have to box.
  2. No product exceeds 63 bits (compiled integers wrap silently, plain ones grow).
  3. The hash spreads load and is not cryptographic: anyone can construct keys that lead to one pod.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

MASK_32: Final = 0xFFFFFFFF
_LOW_START: Final = 0x811C9DC5
_LOW_PRIME: Final = 0x01000193
_HIGH_START: Final = 0x6C62272E
_HIGH_PRIME: Final = 0x5BD1E995  # below 2^31, so that 32 bits times it stay below 2^63
_MIX_1: Final = 0x21F0AAAD  # below 2^30
_MIX_2: Final = 0x735A2D97  # below 2^31
_HIGH_BITS: Final = 0x3FFFFFFF


def hash_bytes(data: bytes) -> i64:
    """Return a hash of 62 bits, from two lanes of 32 bits that each process every byte and are mixed at the end."""
    low: i64 = _LOW_START
    high: i64 = _HIGH_START
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
    joined = ((high & _HIGH_BITS) << 32) | low
    return joined if joined != 0 else 1


def mix(number: i64) -> i64:
    """Permute 0 … 2^32 - 1 so that a change of one input bit changes half of the output bits."""
    number = ((number ^ (number >> 16)) * _MIX_1) & MASK_32
    number = ((number ^ (number >> 15)) * _MIX_2) & MASK_32
    return number ^ (number >> 15)
