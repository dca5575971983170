"""How many slots a table has: arithmetic only.

Rules
  1. A known scale of n pods asks for twice n slots (n may drain while n start), clamped to `slots_max`.
  2. A max_scale that is absent, not positive, or above `slots_max` pods says nothing about the size (people write
     2^31 - 1 or 2^63 to mean "no limit"): such a table starts small and doubles.
  3. A table of known scale of which all slots are held anyway (long drains, flaps) grows by a block.
  4. A table that gives slots back after a trim stays at most half full, or at its first size, so that the next adds do
     not grow it again.
"""

from __future__ import annotations

from typing import Final

SLOTS_MAX: Final = 131_072  # about 25 MB of slots: beyond it pods wait for a slot
FIRST_SLOTS: Final = 64  # of a table of unknown scale
BLOCK_SLOTS: Final = 64


def is_known(max_scale: int, slots_max: int) -> bool:
    return 0 < max_scale <= slots_max


def first_slots(max_scale: int, slots_max: int) -> int:
    """The size of a table when its first pod comes."""
    if is_known(max_scale, slots_max):
        return min(2 * max_scale, slots_max)
    return min(FIRST_SLOTS, slots_max)


def grown_slots(slots: int, max_scale: int, slots_max: int) -> int:
    """The size after `slots` when all of them are held; equal to it only at `slots_max`."""
    if is_known(max_scale, slots_max):
        return min(slots + BLOCK_SLOTS, slots_max)
    return min(2 * slots, slots_max)


def kept_slots(length: int, max_scale: int, slots_max: int) -> int:
    """The size that a table keeps when its high-water mark has fallen to `length`."""
    first = first_slots(max_scale, slots_max)
    if is_known(max_scale, slots_max):
        # By division, not in a loop: a trim may come with every free, and a large table has thousands of blocks.
        blocks = max(2 * length - first + BLOCK_SLOTS - 1, 0) // BLOCK_SLOTS
        return min(first + blocks * BLOCK_SLOTS, slots_max)
    kept = first
    while kept < 2 * length and kept < slots_max:
        kept = min(2 * kept, slots_max)
    return kept
