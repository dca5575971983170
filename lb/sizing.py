"""The arithmetic of a table's size, in slots.

Rules
  1. A table of known scale has twice as many slots as pods (all may drain while as many start), at most `slots_max`.
  2. A max_scale that is absent, not positive, or above `slots_max` is not a known scale (users write 2^31 - 1 or 2^63
     for "no limit"): such a table starts small and doubles.
  3. A full table of known scale (because of long drains or flapping pods) grows by a block.
  4. A table that shrinks after a trim stays at most half full, or at its first size, so that the next adds do not grow
     it again.
"""

from __future__ import annotations

from typing import Final

SLOTS_MAX: Final = 131_072  # about 25 MB; further pods wait for a slot
FIRST_SLOTS: Final = 64  # the first size of a table of unknown scale
BLOCK_SLOTS: Final = 64


def is_known(max_scale: int, slots_max: int) -> bool:
    """Return True if `max_scale` determines the size of the table (rule 2)."""
    return 0 < max_scale <= slots_max


def first_slots(max_scale: int, slots_max: int) -> int:
    """Return the size of a table when its first pod is added."""
    if is_known(max_scale, slots_max):
        return min(2 * max_scale, slots_max)
    return min(FIRST_SLOTS, slots_max)


def grown_slots(slots: int, max_scale: int, slots_max: int) -> int:
    """Return the next size of a full table of `slots`: larger, unless that is `slots_max` already."""
    if is_known(max_scale, slots_max):
        return min(slots + BLOCK_SLOTS, slots_max)
    return min(2 * slots, slots_max)


def kept_slots(length: int, max_scale: int, slots_max: int) -> int:
    """Return the size that a table shrinks to when its high-water mark has fallen to `length`."""
    first = first_slots(max_scale, slots_max)
    if is_known(max_scale, slots_max):
        # A division instead of a loop, because every free may trim, and a large table has thousands of blocks.
        blocks = max(2 * length - first + BLOCK_SLOTS - 1, 0) // BLOCK_SLOTS
        return min(first + blocks * BLOCK_SLOTS, slots_max)
    kept = first
    while kept < 2 * length and kept < slots_max:
        kept = min(2 * kept, slots_max)
    return kept
