"""Passing over the strings and the nested values of JSON, without reading what they say.

Rules
  1. Only strings and brackets are told apart, and one kind of bracket closes another. What is passed over is not
     judged.
  2. A backslash takes the next byte with it, in strings and outside of them. So each byte is looked at once, and a
     value ends at the same byte however the text is cut into pieces.
  3. Compiled, seven bytes are looked at together, as one number: 64 KiB take 40 to 95 us, whatever is in them, where
     one byte after the other takes 160. In plain Python arithmetic is slow, and a regular expression finds the marks.
  4. The results of both ways are the same (tests/codec/test_json_values.py), and no number in them depends on a width:
     what overflows 64 bits is cut off by a mask.

The bytes of a word are told apart by their highest bits (`_unequal`).
"""

from __future__ import annotations

import re
from typing import Final, final

from librt.strings import read_i64_le
from mypy_extensions import i64

import lb

_BY_WORDS: Final = lb.COMPILED

_QUOTE: Final = 0x22
_BACKSLASH: Final = 0x5C

_READ_BYTES: Final = 8  # by one read …
_WORD_BYTES: Final = 7  # … of which the last is left out: a number with it could be negative
_FIRST: Final = 0x80
_LAST: Final = 0x0080_0000_0000_0000
_ALL: Final = 0x0080_8080_8080_8080
_LOW_BITS: Final = 0x007F_7F7F_7F7F_7F7F
_ONES: Final = 0x0001_0101_0101_0101
_BRACES: Final = 0x0020_2020_2020_2020  # makes braces of brackets
_QUOTES: Final = _QUOTE * _ONES
_BACKSLASHES: Final = _BACKSLASH * _ONES
_OPENING: Final = 0x7B * _ONES
_CLOSING: Final = 0x7D * _ONES

_IN_STRING: Final = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_MARK: Final = re.compile(rb'["{}\[\]]|\\.?', re.DOTALL)


@final
class ValueSkipper:
    """Where a string, or a nested value, ends. It may come in pieces; `begin…` is called behind its first byte."""

    def __init__(self) -> None:
        self._depth: i64 = 0  # of brackets that are open
        self._in_string: bool = False
        self._escaped: bool = False  # the piece before ended with a backslash

    def begin_string(self) -> None:
        self._escaped = False

    def begin_nested(self) -> None:
        self._depth = 1
        self._in_string = False
        self._escaped = False

    def string_end(self, data: bytes, pos: i64, size: i64) -> i64:
        """Where the quote is that ends the string of which `data[pos:size]` is the next piece; -1: it does not end."""
        if _BY_WORDS:
            pos = self.string_by_words(data, pos, size)
            if pos < size and data[pos] == _QUOTE and not self._escaped:
                return pos
        return self.string_by_search(data, pos, size)

    def nested_end(self, data: bytes, pos: i64, size: i64) -> i64:
        """Where the bracket is that ends the value of which `data[pos:size]` is the next piece; -1: it does not end."""
        if _BY_WORDS:
            pos = self.nested_by_words(data, pos, size)
        return self.nested_by_search(data, pos, size)

    # --- the two ways, each of which may be left at any byte for the other ---

    def string_by_words(self, data: bytes, pos: i64, size: i64) -> i64:
        """How far no word has the end. That is where the end is, or less than a word is left."""
        escaped: i64 = _FIRST if self._escaped else 0
        last: i64 = size - _READ_BYTES
        while pos <= last:
            word: i64 = read_i64_le(data, pos)
            quotes: i64 = _unequal(word, _QUOTES)
            backslashes: i64 = _unequal(word, _BACKSLASHES)
            if quotes & backslashes & _ALL == _ALL and escaped == 0:
                pos += _WORD_BYTES
                continue
            taken: i64 = _escaped_bytes(~backslashes & _ALL, escaped)
            quotes = ~quotes & _ALL & ~taken
            if quotes != 0:
                self._escaped = False
                return pos + _index(quotes & -quotes)
            escaped = (taken >> 56) & _FIRST
            pos += _WORD_BYTES
        self._escaped = escaped != 0
        return pos

    def nested_by_words(self, data: bytes, pos: i64, size: i64) -> i64:
        """How far no word has the end. That is where the end is, or less than a word is left."""
        depth: i64 = self._depth
        inside: i64 = _ALL if self._in_string else 0
        escaped: i64 = _FIRST if self._escaped else 0
        last: i64 = size - _READ_BYTES
        while pos <= last:
            word: i64 = read_i64_le(data, pos)
            quotes: i64 = _unequal(word, _QUOTES)
            backslashes: i64 = _unequal(word, _BACKSLASHES)
            opening: i64 = _unequal(word | _BRACES, _OPENING)
            closing: i64 = _unequal(word | _BRACES, _CLOSING)
            if quotes & backslashes & (opening & closing | inside) & _ALL == _ALL and escaped == 0:
                pos += _WORD_BYTES
                continue
            taken: i64 = _escaped_bytes(~backslashes & _ALL, escaped)
            # From each quote to the next one, which is then not in it.
            strings: i64 = ~quotes & _ALL & ~taken
            strings ^= strings << 8
            strings ^= strings << 16
            strings ^= strings << 32
            strings = strings & _ALL ^ inside
            outside: i64 = _ALL & ~strings & ~taken
            opening = ~opening & outside
            closing = ~closing & outside
            pairs: i64 = opening << 8 & closing  # those that are empty, of which there may be many
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
            escaped = (taken >> 56) & _FIRST
            pos += _WORD_BYTES
        self._depth = depth
        self._in_string = inside != 0
        self._escaped = escaped != 0
        return pos

    def string_by_search(self, data: bytes, pos: i64, size: i64) -> i64:
        """Where the end is; -1: it is not in this piece."""
        if self._escaped and pos < size:
            self._escaped = False
            pos += 1
        if pos >= size:
            return -1
        found = _IN_STRING.match(data, pos, size)
        assert found is not None, "it matches nothing, too"
        end: i64 = found.end()
        if end == size:
            return -1
        if data[end] == _QUOTE:
            return end
        self._escaped = True
        return -1

    def nested_by_search(self, data: bytes, pos: i64, size: i64) -> i64:
        """Where the end is; -1: it is not in this piece."""
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
    """The highest bit of a byte is clear where it is as in `wanted`; other bits mean nothing."""
    return ((word & _LOW_BITS ^ wanted) + _LOW_BITS) | word


def _escaped_bytes(backslashes: i64, escaped: i64) -> i64:
    """The bytes that a backslash takes with it; the first one by `escaped`, and the eighth, which the next word has."""
    taken = escaped
    left: i64 = backslashes & ~escaped
    while left != 0:
        first: i64 = left & -left
        taken |= first << 8
        left &= ~(first | first << 8)
    return taken


def _index(bit: i64) -> i64:
    """Of the byte whose highest bit it is."""
    index: i64 = 0
    while bit > _FIRST:
        bit >>= 8
        index += 1
    return index


def _index_of_end(opening: i64, closing: i64, depth: i64) -> i64:
    """Of the bracket at which the depth is 0; -1: at none of these."""
    left: i64 = opening | closing
    while left != 0:
        first: i64 = left & -left
        depth += -1 if first & closing != 0 else 1
        if depth == 0:
            return _index(first)
        left ^= first
    return -1


def _count(bits: i64) -> i64:
    """How many of the seven there are: their sum, as a multiplication has it in the highest byte."""
    return ((bits >> 7) * _ONES >> 48) & 0x7
