"""The seeded random number generator of all random choices.

Rules
  1. The same seed gives the same numbers on every machine, compiled or not. Compiled 64-bit integers wrap silently,
     so every intermediate result stays below 2^63.
  2. The generator spreads load and is not cryptographic.

This is splitmix32: a counter (so no seed is weak and no number repeats within 2^32 draws) followed by a mixer with two
multiplications. A draw below n uses a multiplication instead of a division; its bias is at most n / 2^32, which is
0.00003 for the largest table.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

_MASK_32: Final = 0xFFFFFFFF
_STEP: Final = 0x9E3779B9
_MIX_1: Final = 0x21F0AAAD  # below 2^30
_MIX_2: Final = 0x735A2D97  # below 2^31, so that 32 bits times it stay below 2^63


@final
class Rng:
    """A generator of pseudo-random numbers."""

    __slots__ = ("_state",)

    def __init__(self, seed: int) -> None:
        # All bits of a larger seed count: those above 32 are folded in.
        folded = seed & _MASK_32
        rest = abs(seed) >> 32
        while rest:
            folded = ((folded ^ (rest & _MASK_32)) * _MIX_1) & _MASK_32
            rest >>= 32
        self._state: i64 = folded

    def below(self, n: i64) -> i64:
        """Return a number in 0 … n - 1; n must be between 1 and 2^30."""
        self._state = (self._state + _STEP) & _MASK_32
        x: i64 = self._state
        x = ((x ^ (x >> 16)) * _MIX_1) & _MASK_32
        x = ((x ^ (x >> 15)) * _MIX_2) & _MASK_32
        x = x ^ (x >> 15)
        return (x * n) >> 32
