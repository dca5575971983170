"""A hierarchical bitmap: a set of small numbers that finds its smallest, its greatest and the next smaller member.

Rules
  1. A word has 32 bits; each bit of a level summarises one word of the level below, up to a single top word. 131,072
     numbers take four levels, 1,000 take two.
  2. A summary bit is set whenever the word below it is not zero. It may be stale, that is, still set after the last
     member of that word was removed; a search that finds it stale clears it (amortised O(1)). So a number that is
     removed and added repeatedly changes only one word.
  3. The bitmap grows and shrinks in place and keeps its members.

Words are objects with an unboxed integer, because a list of integers would box every store (an allocation in compiled
code).
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

WORD_SHIFT: Final = 5
WORD_BITS: Final = 1 << WORD_SHIFT
WORD_MASK: Final = WORD_BITS - 1
WORD_TOP: Final = 1 << WORD_MASK
NONE: Final = -1  # no member


@final
class _Word:
    __slots__ = ("bits",)

    def __init__(self) -> None:
        self.bits: i64 = 0


@final
class Bitmap:
    """A set of numbers from 0 up to its size, which is 32 until `resize`."""

    __slots__ = ("_bottom", "_levels")

    def __init__(self) -> None:
        self._bottom: list[_Word] = [_Word()]
        self._levels: list[list[_Word]] = [self._bottom]  # from the members up to the single top word

    def resize(self, size: i64) -> None:
        """Set the size; no number at or above it may be a member."""
        level: i64 = 0
        while True:
            words = self._levels[level]
            size = max((size + WORD_MASK) >> WORD_SHIFT, 1)  # words of this level, which are bits of the next one
            del words[size:]
            while len(words) < size:
                words.append(_Word())
            level += 1
            if level < len(self._levels):  # stale summary bits must not lead to words that no longer exist
                last = (size - 1) >> WORD_SHIFT
                if last < len(self._levels[level]):
                    self._levels[level][last].bits &= 2 * mask_of(size - 1) - 1
            if size == 1:
                del self._levels[level:]
                return
            if level == len(self._levels):
                self._levels.append([_Word()])
                if words[0].bits:  # this word was the only one and had no summary
                    self._levels[level][0].bits = 1

    def __contains__(self, number: i64) -> bool:
        return (self._bottom[number >> WORD_SHIFT].bits >> (number & WORD_MASK)) & 1 != 0

    def add(self, number: i64) -> None:
        word = self._bottom[number >> WORD_SHIFT]
        before = word.bits
        word.bits = before | mask_of(number)
        if before == 0:
            self._add_above(number >> WORD_SHIFT)

    def discard(self, number: i64) -> None:
        word = self._bottom[number >> WORD_SHIFT]
        word.bits &= ~mask_of(number)

    def lowest(self) -> i64:
        """Return the smallest member, or NONE."""
        top: i64 = len(self._levels) - 1
        level = top
        number: i64 = 0
        while True:
            bits = self._levels[level][number].bits
            if bits != 0:
                number = (number << WORD_SHIFT) + lowest_bit(bits)
                if level == 0:
                    return number
                level -= 1
            elif level == top:
                return NONE
            else:  # the bit that led here was stale
                level += 1
                self._levels[level][number >> WORD_SHIFT].bits &= ~mask_of(number)
                level = top
                number = 0

    def lowest_from(self, number: i64) -> i64:
        """Return `lowest`, given that no member is smaller than `number`; it is often in the same word."""
        bits = self._bottom[number >> WORD_SHIFT].bits
        if bits != 0:
            return (number & ~WORD_MASK) + lowest_bit(bits)
        return self.lowest()

    def highest(self) -> i64:
        """Return the greatest member, or NONE."""
        top: i64 = len(self._levels) - 1
        return self._highest_of(self._levels[top][0].bits, 0, top)

    def highest_below(self, number: i64) -> i64:
        """Return the greatest member smaller than `number`, or NONE; `number` must be within the size."""
        levels = self._levels
        height: i64 = len(levels)
        level: i64 = 0
        while level < height:
            words = levels[level]
            index = number >> WORD_SHIFT
            if index < len(words):
                bits = words[index].bits & (mask_of(number) - 1)
                if bits != 0:
                    found = self._highest_of(bits, index, level)
                    if found != NONE:
                        return found
            number = index
            level += 1
        return NONE

    def members(self) -> list[int]:
        """Return all members in order, by a scan of all bits; for checks."""
        found: list[int] = []
        for index, word in enumerate(self._bottom):
            found.extend((index << WORD_SHIFT) + bit for bit in range(WORD_BITS) if (word.bits >> bit) & 1)
        return found

    def check_invariants(self) -> None:
        for level in range(1, len(self._levels)):
            above = self._levels[level]
            below: i64 = len(self._levels[level - 1])
            last = above[(below - 1) >> WORD_SHIFT].bits
            assert len(above) == (below + WORD_MASK) >> WORD_SHIFT, f"level {level} has {len(above)} words"
            assert last < 2 * mask_of(below - 1), f"a bit of level {level} leads to a word that does not exist"
            for index, word in enumerate(self._levels[level - 1]):
                summary = (above[index >> WORD_SHIFT].bits >> (index & WORD_MASK)) & 1 != 0
                assert summary or word.bits == 0, f"word {index} of level {level - 1} has members and no bit above"

    def _highest_of(self, bits: i64, index: i64, level: i64) -> i64:
        """Return the greatest member under `bits` of word `index` in `level`, or NONE. Clears stale summary bits."""
        while bits != 0:
            child = (index << WORD_SHIFT) + highest_bit(bits)
            bit_level = level  # the level of the bit `child`, which stands for a word of the level below, or a member
            while bit_level > 0:
                below = self._levels[bit_level - 1][child].bits
                if below == 0:
                    break
                bit_level -= 1
                child = (child << WORD_SHIFT) + highest_bit(below)
            if bit_level == 0:
                return child
            self._levels[bit_level][child >> WORD_SHIFT].bits &= ~mask_of(child)  # the bit was stale: search again
            if bit_level == level:
                bits &= ~mask_of(child)
        return NONE

    def _add_above(self, number: i64) -> None:
        """Set the summary bits of word `number` of the bottom level."""
        for level in range(1, len(self._levels)):
            word = self._levels[level][number >> WORD_SHIFT]
            before = word.bits
            mask = mask_of(number)
            if before & mask != 0:
                return
            word.bits = before | mask
            number >>= WORD_SHIFT


def mask_of(number: i64) -> i64:
    """Return a word in which only the bit of `number` is set."""
    # Not 1 << n: mypyc writes the 1 as a C literal of 32 bits, whatever its type here, and bit 31 becomes the sign.
    return WORD_TOP >> (WORD_MASK - (number & WORD_MASK))


def lowest_bit(bits: i64) -> i64:
    """Return the number of the lowest bit set; `bits` must not be zero."""
    lowest: int = bits & -bits  # int, because mypyc compiles int.bit_length to one instruction
    return lowest.bit_length() - 1


def highest_bit(bits: i64) -> i64:
    """Return the number of the highest bit set; `bits` must not be zero."""
    whole: int = bits
    return whole.bit_length() - 1
