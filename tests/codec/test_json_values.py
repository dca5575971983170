"""Passing over strings and nested values of JSON: by words, by search, and by a program of a few lines."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from activator.codec.json_values import ValueSkipper

DEEP = os.environ.get("ACTIVATOR_DEEP") == "1"

# What decides, what differs from it in one bit, and what is beside it in a word.
MARKS = [*b'{}[]"\\', *b'{}[]"\\', *b"|z~yY^", 0x02, 0xFB, 0xDB, 0xA2, 0xDC, 0x00, 0x7F, 0x80, 0xFF, *b"a "]
PIECES = st.one_of(
    st.lists(st.sampled_from(MARKS), max_size=40).map(bytes),
    st.sampled_from([b"\\" * 7, b"\\" * 8, b'\\"' * 9, b"[]" * 7, b"[[]]" * 5, b'"' * 15, b"x" * 29, b"]" * 7]),
    st.binary(max_size=20),
)
TEXTS = st.lists(PIECES, max_size=8).map(b"".join)
CUTS = st.lists(st.integers(0, 400), max_size=6)


def end_of_string(data: bytes) -> int:
    escaped = False
    for pos, byte in enumerate(data):
        if escaped:
            escaped = False
        elif byte == ord("\\"):
            escaped = True
        elif byte == ord('"'):
            return pos
    return -1


def end_of_nested(data: bytes) -> int:
    depth, quoted, escaped = 1, False, False
    for pos, byte in enumerate(data):
        if escaped:
            escaped = False
        elif byte == ord("\\"):
            escaped = True
        elif byte == ord('"'):
            quoted = not quoted
        elif not quoted and byte in b"[{":
            depth += 1
        elif not quoted and byte in b"]}":
            depth -= 1
            if depth == 0:
                return pos
    return -1


Find = Callable[[ValueSkipper, bytes, int, int], int]


def string_by_both(skipper: ValueSkipper, data: bytes, pos: int, size: int) -> int:
    return skipper.string_by_search(data, skipper.string_by_words(data, pos, size), size)


def nested_by_both(skipper: ValueSkipper, data: bytes, pos: int, size: int) -> int:
    return skipper.nested_by_search(data, skipper.nested_by_words(data, pos, size), size)


def in_pieces(find: Find, begin: Callable[[ValueSkipper], None], data: bytes, cuts: list[int]) -> int:
    """Where it ends, if `data` comes in pieces; something else stands around them, as in a buffer."""
    skipper = ValueSkipper()
    begin(skipper)
    for start, stop in pairwise([0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]):
        end = find(skipper, b'"]}' + data[start:stop] + b'"]}"]}"]}', 3, 3 + stop - start)
        if end >= 0:
            return start + end - 3
    return -1


@settings(max_examples=100_000 if DEEP else 250, deadline=None)
@given(TEXTS, CUTS)
def test_where_a_string_ends(data: bytes, cuts: list[int]) -> None:
    expected = end_of_string(data)
    for find in (string_by_both, ValueSkipper.string_by_search, ValueSkipper.string_end):
        assert in_pieces(find, ValueSkipper.begin_string, data, cuts) == expected


@settings(max_examples=100_000 if DEEP else 250, deadline=None)
@given(TEXTS, CUTS)
def test_where_a_nested_value_ends(data: bytes, cuts: list[int]) -> None:
    expected = end_of_nested(data)
    for find in (nested_by_both, ValueSkipper.nested_by_search, ValueSkipper.nested_end):
        assert in_pieces(find, ValueSkipper.begin_nested, data, cuts) == expected


@pytest.mark.parametrize("mark", range(256))
def test_each_byte_at_each_place_of_a_word(mark: int) -> None:
    """Beside bytes that are looked for, and such that are not."""
    for place in range(16):
        for filler in (b"a", b"\xff", b"\x00", b"[", b'"'):
            data = filler * place + bytes([mark]) + filler * 9 + b']"}]' * 20
            for cuts in ([], [place], [place + 1]):
                assert in_pieces(string_by_both, ValueSkipper.begin_string, data, cuts) == end_of_string(data)
                assert in_pieces(nested_by_both, ValueSkipper.begin_nested, data, cuts) == end_of_nested(data)


@pytest.mark.parametrize("run", range(40))
def test_backslashes_in_a_row(run: int) -> None:
    for before in range(9):
        data = b'"' + b"x" * before + b"\\" * run + b'"]' + b'"]' * 9
        assert in_pieces(nested_by_both, ValueSkipper.begin_nested, data, []) == end_of_nested(data)
        assert in_pieces(string_by_both, ValueSkipper.begin_string, data[1:], []) == end_of_string(data[1:])


def test_nesting_without_bound_is_a_number() -> None:
    skipper = ValueSkipper()
    skipper.begin_nested()
    for _ in range(100):
        assert skipper.nested_end(b"[" * 10_000, 0, 10_000) == -1
    for _ in range(100):
        assert skipper.nested_end(b"]" * 10_000, 0, 10_000) == -1
    assert skipper.nested_end(b" ]", 0, 2) == 1
