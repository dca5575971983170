"""A scanner that skips strings and nested values of JSON without decoding them.

Rules
  1. Only strings and brackets are recognised, and a bracket of either kind closes one of the other. Skipped values are
     not validated.
  2. A backslash escapes the next byte, in strings and outside of them. So each byte is read once, and a value ends at
     the same byte however the text is split.
  3. Compiled, seven bytes are processed at a time, as one number: 64 KiB take 40 to 95 us, whatever they contain; one
     byte at a time takes 160 us. In plain Python arithmetic is slow, so a regular expression finds the marks.
  4. Both implementations give the same results (tests/codec/test_json_values.py), and the arithmetic does not depend on
     the width of integers: a mask removes the bits above 64.

The highest bit of each byte of a word is the result of a comparison (`_unequal`).
"""

from __future__ import annotations

import re
from typing import Final, final

from librt.strings import read_i64_le
from mypy_extensions import i64

import lb

# Positions of the next byte in the text of an object, for those who walk over its members.
START: Final = 0  # before the object
FIRST: Final = 1  # after the object's opening brace
NAME: Final = 2  # after a comma
IN_NAME: Final = 3
AFTER_NAME: Final = 4  # after a name
VALUE: Final = 5  # before a value
STRING: Final = 6  # in a value that is a string
NESTED: Final = 7  # in a value that is an object or an array
SCALAR: Final = 8
AFTER_VALUE: Final = 9  # after a value

_BY_WORDS: Final = lb.COMPILED

_QUOTE: Final = 0x22
_BACKSLASH: Final = 0x5C

_READ_BYTES: Final = 8  # read at a time
_WORD_BYTES: Final = 7  # used of them: with the eighth byte, the number could be negative
_FIRST: Final = 0x80  # the highest bit of the first byte, of the last one, of all bytes
_LAST: Final = 0x0080_0000_0000_0000
_ALL: Final = 0x0080_8080_8080_8080
_LOW_BITS: Final = 0x007F_7F7F_7F7F_7F7F
_ONES: Final = 0x0001_0101_0101_0101
_BRACES: Final = 0x0020_2020_2020_2020  # turns square brackets into braces
_QUOTES: Final = _QUOTE * _ONES
_BACKSLASHES: Final = _BACKSLASH * _ONES
_OPENING: Final = 0x7B * _ONES
_CLOSING: Final = 0x7D * _ONES

_IN_STRING: Final = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_MARK: Final = re.compile(rb'["{}\[\]]|\\.?', re.DOTALL)


@final
class ValueSkipper:
    """A search for the end of a string or of a nested value, which may come in pieces.

    Call `begin_string` or `begin_nested` after the first byte of the value.
    """

    def __init__(self) -> None:
        self._depth: i64 = 0  # the number of open brackets
        self._in_string: bool = False
        self._escaped: bool = False  # the piece before ended with a backslash

    def begin_string(self) -> None:
        self._escaped = False

    def begin_nested(self) -> None:
        self._depth = 1
        self._in_string = False
        self._escaped = False

    def string_end(self, data: bytes, pos: i64, size: i64) -> i64:
        """Return the position of the closing quote in `data[pos:size]`, the string's next piece; -1 if not found."""
        if _BY_WORDS:
            pos = self.string_by_words(data, pos, size)
            if pos < size and data[pos] == _QUOTE and not self._escaped:
                return pos
        return self.string_by_search(data, pos, size)

    def nested_end(self, data: bytes, pos: i64, size: i64) -> i64:
        """Return the position of the value's last bracket in `data[pos:size]`, its next piece; -1 if there is none."""
        if _BY_WORDS:
            pos = self.nested_by_words(data, pos, size)
        return self.nested_by_search(data, pos, size)

    # --- the two implementations; the scan may switch between them at any byte ---

    def string_by_words(self, data: bytes, pos: i64, size: i64) -> i64:
        """Return the position of the closing quote, or the first position with fewer than _READ_BYTES left."""
        escaped: i64 = _FIRST if self._escaped else 0
        last: i64 = size - _READ_BYTES
        while pos <= last:
            word: i64 = read_i64_le(data, pos)
            not_quote: i64 = _unequal(word, _QUOTES)
            not_backslash: i64 = _unequal(word, _BACKSLASHES)
            if not_quote & not_backslash & _ALL == _ALL and escaped == 0:
                pos += _WORD_BYTES
                continue
            after_backslash: i64 = _escaped_bytes(~not_backslash & _ALL, escaped)
            quotes: i64 = ~not_quote & _ALL & ~after_backslash
            if quotes != 0:
                self._escaped = False
                return pos + _index(quotes & -quotes)
            escaped = (after_backslash >> 56) & _FIRST
            pos += _WORD_BYTES
        self._escaped = escaped != 0
        return pos

    def nested_by_words(self, data: bytes, pos: i64, size: i64) -> i64:
        """Return the position of the last bracket, or the first position with fewer than _READ_BYTES left."""
        depth: i64 = self._depth
        inside: i64 = _ALL if self._in_string else 0
        escaped: i64 = _FIRST if self._escaped else 0
        last: i64 = size - _READ_BYTES
        while pos <= last:
            word: i64 = read_i64_le(data, pos)
            not_quote: i64 = _unequal(word, _QUOTES)
            not_backslash: i64 = _unequal(word, _BACKSLASHES)
            not_opening: i64 = _unequal(word | _BRACES, _OPENING)
            not_closing: i64 = _unequal(word | _BRACES, _CLOSING)
            if not_quote & not_backslash & (not_opening & not_closing | inside) & _ALL == _ALL and escaped == 0:
                pos += _WORD_BYTES
                continue
            after_backslash: i64 = _escaped_bytes(~not_backslash & _ALL, escaped)
            # The bytes from each opening quote up to, but not including, its closing quote.
            strings: i64 = ~not_quote & _ALL & ~after_backslash
            strings ^= strings << 8
            strings ^= strings << 16
            strings ^= strings << 32
            strings = strings & _ALL ^ inside
            outside: i64 = _ALL & ~strings & ~after_backslash
            opening: i64 = ~not_opening & outside
            closing: i64 = ~not_closing & outside
            pairs: i64 = opening << 8 & closing  # empty pairs of brackets, which may be many
            closing ^= pairs
            opening ^= pairs >> 8
            if closing != 0:
                closed: i64 = _count(closing)
                if closed >= depth:
                    end = _index_of_end(opening, closing, depth)
                    if end >= 0:
                        self._depth = 1
                        self._in_string = False
                        self._escaped = False
                        return pos + end
                depth -= closed
            if opening != 0:
                depth += _count(opening)
            inside = _ALL if strings & _LAST else 0
            escaped = (after_backslash >> 56) & _FIRST
            pos += _WORD_BYTES
        self._depth = depth
        self._in_string = inside != 0
        self._escaped = escaped != 0
        return pos

    def string_by_search(self, data: bytes, pos: i64, size: i64) -> i64:
        """Return the position of the closing quote; -1 if it is not in this piece."""
        if self._escaped and pos < size:
            self._escaped = False
            pos += 1
        if pos >= size:
            return -1
        found = _IN_STRING.match(data, pos, size)
        assert found is not None, "the pattern matches the empty string"
        end: i64 = found.end()
        if end == size:
            return -1
        if data[end] == _QUOTE:
            return end
        self._escaped = True
        return -1

    def nested_by_search(self, data: bytes, pos: i64, size: i64) -> i64:
        """Return the position of the last bracket; -1 if it is not in this piece."""
        if self._escaped and pos < size:
            self._escaped = False
            pos += 1
        for found in _MARK.finditer(data, pos, size):
            mark = found.group()
            if mark == b'"':
                self._in_string = not self._in_string
            elif mark[0] == _BACKSLASH:
                self._escaped = len(mark) == 1
            elif self._in_string:
                continue
            elif mark in b"{[":
                self._depth += 1
            else:
                self._depth -= 1
                if self._depth == 0:
                    return found.start()
        return -1


def _unequal(word: i64, wanted: i64) -> i64:
    """Compare two words bytewise: the highest bit of a byte is clear if both are equal; other bits are undefined."""
    return ((word & _LOW_BITS ^ wanted) + _LOW_BITS) | word


def _escaped_bytes(backslashes: i64, escaped: i64) -> i64:
    """Return the highest bits of the bytes that a backslash escapes.

    `escaped` is the first byte's bit if the previous word escapes it. The eighth byte's bit is for the next word.
    """
    after_backslash = escaped
    left: i64 = backslashes & ~escaped
    while left != 0:
        first: i64 = left & -left
        after_backslash |= first << 8
        left &= ~(first | first << 8)
    return after_backslash


def _index(bit: i64) -> i64:
    """Return the index of the byte whose highest bit is `bit`."""
    index: i64 = 0
    while bit > _FIRST:
        bit >>= 8
        index += 1
    return index


def _index_of_end(opening: i64, closing: i64, depth: i64) -> i64:
    """Return the index of the bracket at which the depth becomes 0; -1 if it does at none of them."""
    left: i64 = opening | closing
    while left != 0:
        first: i64 = left & -left
        depth += -1 if first & closing != 0 else 1
        if depth == 0:
            return _index(first)
        left ^= first
    return -1


def _count(bits: i64) -> i64:
    """Return how many of the seven highest bits are set: the multiplication sums them in the highest byte."""
    return ((bits >> 7) * _ONES >> 48) & 0x7
