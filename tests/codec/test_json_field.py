"""The scan for one member of a JSON object, against a parser of the whole."""

from __future__ import annotations

import json
import os
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from activator.codec.json_field import ABSENT, BEYOND, FOUND, PENDING, TOKEN_BYTES_MAX, FieldScan
from activator.runtime.units import KIB

DEEP = os.environ.get("ACTIVATOR_DEEP") == "1"
BOUND = 64 * KIB
NAMES = st.sampled_from(["model", "Model", "model ", "", "mode", "models", 'model"', "a", "\\model", "é"])
TEXTS = st.one_of(st.text(max_size=60), st.sampled_from(['"model":"x"', '{"model":', "\\", '\\"', "]}", "x" * 100]))
LEAVES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), TEXTS)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(NAMES | TEXTS, inner, max_size=5), max_leaves=20
)
MEMBERS = st.lists(st.tuples(NAMES, VALUES), max_size=8)
SPACES = st.sampled_from(["", " ", "\n\t", "\r\n   "])


def scanned(data: bytes, cuts: list[int] | None = None, bound: int = BOUND, whole: bool = True) -> FieldScan:
    scan = FieldScan("model", bound)
    for start, end in pairwise([0, *sorted(cut % (len(data) + 1) for cut in cuts or []), len(data)]):
        scan.feed(data[start:end])
    if whole:
        scan.finish()
    return scan


def first_model(data: bytes) -> str | None:
    """As a parser has it: of several of that name the first, if it is a text."""
    found: list[Any] = []

    def keep(pairs: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
        found[:] = [pairs]  # the outermost object ends last
        return pairs

    document = json.loads(data.decode("utf-8-sig"), object_pairs_hook=keep)
    if not found or document is not found[0]:
        return None
    value = next((value for name, value in found[0] if name == "model"), None)
    if not isinstance(value, str):
        return None
    try:
        encoded = value.encode()
    except UnicodeEncodeError:
        return None
    return value if len(encoded) <= TOKEN_BYTES_MAX // 6 else "too long to say"


def written(members: list[tuple[str, Any]], space: str, ascii_only: bool, bom: bool) -> bytes:
    parts = [
        f"{space}{json.dumps(name, ensure_ascii=ascii_only)}{space}:{space}"
        f"{json.dumps(value, ensure_ascii=ascii_only)}{space}"
        for name, value in members
    ]
    text = space + "{" + ",".join(parts) + (space if not parts else "") + "}" + space
    return (b"\xef\xbb\xbf" if bom else b"") + text.encode("utf-8", "surrogatepass")


@settings(max_examples=20_000 if DEEP else 150, deadline=None)
@given(MEMBERS, SPACES, st.booleans(), st.booleans(), st.lists(st.integers(0, 5000), max_size=8))
@example([("a", "\\" * 41), ("model", "x")], "", True, False, [])
@example([("a", ["\\" * 41, "[" * 100]), ("model", "x")], "", True, False, [44, 45])
@example([("a", {"b": ["]" * 50, {"model": "no"}]}), ("model", "x")], " ", True, True, [1, 2])
def test_finds_what_a_parser_finds(
    members: list[tuple[str, Any]], space: str, ascii_only: bool, bom: bool, cuts: list[int]
) -> None:
    data = written(members, space, ascii_only, bom)
    expected = first_model(data)
    for scan in (scanned(data, cuts), scanned(data, list(range(len(data))))):
        assert scan.state in {FOUND, ABSENT}
        if expected is None:
            assert scan.state == ABSENT
        else:
            assert scan.state == FOUND and scan.value == expected
            assert json.loads(data[scan.start : scan.end]) == expected


SHORT = st.one_of(st.sampled_from(["]}", "{", '"', "\\", 'a"]', "", '\\"']), st.text('ab {}[]"\\,:', max_size=40))
NEST = st.recursive(
    SHORT | st.integers(0, 9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(SHORT, inner, max_size=3),
    max_leaves=10,
)


@settings(max_examples=5_000 if DEEP else 60, deadline=None)
@given(st.lists(NEST, min_size=1, max_size=4), st.integers(1, 14), st.lists(st.integers(0, 20_000), max_size=5))
def test_finds_the_member_behind_blocks_full_of_quotes(units: list[Any], depth: int, cuts: list[int]) -> None:
    """Blocks in which whole texts and nested values are passed over at once."""
    nested: Any = units * (12_000 // len(json.dumps(units)) + 1)
    for _ in range(depth):
        nested = [nested, "model"]
    data = json.dumps({"a": nested, "b": {"model": "no"}, "model": "yes"}).encode()
    end = len(data) - 1
    for scan in (scanned(data, cuts), scanned(data, list(range(0, len(data), 7))), scanned(data)):
        assert (scan.state, scan.value, scan.start, scan.end) == (FOUND, "yes", end - 5, end)


PLAIN = [{"role": "user", "content": "is this [one] of {those}, or another, or none"}] * 80


@pytest.mark.parametrize("shift", range(-3, 4))
@pytest.mark.parametrize("text", ['"', "\\", '\\"', 'a"]}'])
def test_an_escape_on_the_border_of_two_blocks(shift: int, text: str) -> None:
    filler = "y" * (4096 - len('{"a": ["') - 1 + shift)
    data = json.dumps({"a": [filler + text, *PLAIN], "model": "yes"}).encode()
    assert scanned(data).value == "yes"


@pytest.mark.parametrize("before", range(0, 4000, 197))
def test_a_nested_value_that_ends_anywhere_in_a_block_full_of_quotes(before: int) -> None:
    data = json.dumps({"a": ["y" * before, PLAIN], "b": PLAIN[:9], "model": "yes", "c": PLAIN}).encode()
    assert scanned(data).value == "yes"


@settings(max_examples=5_000 if DEEP else 120, deadline=None)
@given(
    st.binary(max_size=300)
    | st.lists(st.sampled_from([*b'{}[]":,\\ \n', *b"model", 0x80, 0xEF, 0xBB, 0xBF, 0]), max_size=200).map(bytes),
    st.lists(st.integers(0, 300), max_size=6),
)
def test_any_bytes_end_in_the_same_way_however_they_are_cut(data: bytes, cuts: list[int]) -> None:
    whole = scanned(data)
    parts = scanned(data, cuts)
    assert (whole.state, whole.value, whole.start * (whole.state == FOUND), whole.end) == (
        parts.state,
        parts.value,
        parts.start * (parts.state == FOUND),
        parts.end,
    )
    try:
        expected = first_model(data)
    except (ValueError, RecursionError):
        return  # no JSON: whatever is found, its reader refuses it
    assert (whole.value if whole.state == FOUND else None) == expected


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b'{"model":"x","model":"y"}', "x"),
        (b'{"mod\\u0065l":"x"}', "x"),
        (b'{"model":"\\u00e9\\ud83d\\ude00"}', "é😀"),
        ('{"model":"é😀"}'.encode(), "é😀"),
        (b'\xef\xbb\xbf\n{"model":"x"', "x"),  # what comes behind it is not waited for
        (b'{"model":""}', ""),
        (b'{"a":"{\\"model\\":\\"y\\"}","model":"x"}', "x"),
        (b'{"messages":[{"model":"y"}],"model":"x"}', "x"),
        (b'{"a":1e9,"b":-0.5,"c":true,"d":null,"model":"x"}', "x"),
        (b'{"model":1,"model":"x"}', None),
        (b'{"model":{"name":"x"}}', None),
        (b'{"model":["x"]}', None),
        (b'{"model":null}', None),
        (b'{"model":"\xff"}', None),
        (b'{"model":"a\nb"}', None),
        (b'{"model":"\\ud800"}', None),
        (b'{"model":"\\x"}', None),
        (b'{"model":"x', None),
        (b'{"model" "x"}', None),
        (b'{model:"x"}', None),
        (b'["model","x"]', None),
        (b'"model"', None),
        (b"", None),
        (b"{}", None),
        (b'{}{"model":"x"}', None),
        (b'\xef\xbb{"model":"x"}', None),
        (b'{"a":1}\n{"model":"x"}', None),
        ('{"model":"x"}'.encode("utf-16"), None),
        (b"--boundary\r\nmodel", None),
        (b"\x00\x00\x00\x00\x05model", None),
    ],
)
def test_by_hand(data: bytes, value: str | None) -> None:
    scan = scanned(data)
    assert (scan.value if scan.state == FOUND else None) == value


def test_a_name_or_value_that_is_too_long_is_none() -> None:
    fits = b"x" * TOKEN_BYTES_MAX
    for cuts in ([], list(range(3000))):
        assert scanned(b'{"model":"%b"}' % fits, cuts).value == fits.decode()
        assert scanned(b'{"model":"x%b"}' % fits, cuts).state == ABSENT
        assert scanned(b'{"%b":1,"x%b":2,"model":"y"}' % (fits, fits), cuts).value == "y"


@pytest.mark.parametrize("filler", [b'"' + b"y" * 200_000 + b'"', b"[" * 100_000 + b"]" * 100_000, b"1" * 200_000])
def test_what_lies_beyond_the_bound_is_not_looked_at(filler: bytes) -> None:
    data = b'{"a":%b,"model":"x"}' % filler
    assert scanned(data, whole=False).state == BEYOND
    assert scanned(data, [100, 70_000]).state == BEYOND
    assert scanned(data, bound=len(data)).value == "x"


def test_the_bound_is_exact() -> None:
    data = b'{"model":"x"}'
    assert scanned(data, bound=12).value == "x"
    assert scanned(data, bound=11).state == BEYOND
    assert scanned(data[:11], bound=12, whole=False).state == PENDING


@pytest.mark.parametrize("unit", [b"[", b"]", b'\\"', b"\\\\", b'"a",', b'{"a":[', b"[]", b"{}", b" ", b"1,", b'"'])
def test_no_body_takes_long(unit: bytes) -> None:
    """A search that began again for each unit would take minutes here."""
    filler = unit * (1_000_000 // len(unit))
    for start in (b'{"a":[', b'{"a":"', b'{"a":', b"{"):
        scan = FieldScan("model", 1 << 40)
        scan.feed(start + filler)
        scan.finish()
        assert scan.state == ABSENT
