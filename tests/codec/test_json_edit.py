"""Members that are removed from and added to an object, against `json`, in any pieces."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from activator.codec.json_edit import ObjectEdit, ObjectEditor

NAMES = ["temperature", "top_p", "a", "ü", "😀", 'a"b', "\\", "\n"]
REMOVED = st.lists(st.sampled_from(NAMES), max_size=4)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=3), inner),
    max_leaves=8,
)
MEMBERS = st.lists(st.tuples(st.sampled_from(NAMES) | st.text(max_size=4), VALUES), max_size=6)
SPACES = st.sampled_from(["", " ", "\n\t", "\r\n  "])


def edited(edit: ObjectEdit, text: bytes, cuts: list[int]) -> bytes:
    editor = ObjectEditor(edit)
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    return b"".join(editor.feed(text[start:end]) for start, end in pairwise(places)) + editor.finish()


def added_of(pairs: list[tuple[str, Any]]) -> list[tuple[str, str]]:
    return [(name, json.dumps(value)) for name, value in dict(pairs).items()]


def escaped(name: str, how: int) -> str:
    """A name in one of its spellings."""
    if how == 0:
        return json.dumps(name, ensure_ascii=False)
    if how == 1:
        return json.dumps(name)
    units = name.encode("utf-16-be", "surrogatepass")
    return '"' + "".join(f"\\u{units[i]:02x}{units[i + 1]:02X}" for i in range(0, len(units), 2)) + '"'


@given(MEMBERS, REMOVED, MEMBERS, st.lists(st.integers(0, 300), max_size=6), st.data())
def test_it_is_the_object_that_json_makes(
    members: list[tuple[str, Any]],
    removed: list[str],
    added: list[tuple[str, Any]],
    cuts: list[int],
    data: st.DataObject,
) -> None:
    members = [(name, value) for name, value in members if name == name.encode(errors="ignore").decode()]
    space = data.draw(SPACES)
    spelt = [escaped(name, data.draw(st.integers(0, 2))) for name, _ in members]
    inner = f"{space},{space}".join(
        f"{name}{space}:{space}{json.dumps(value, indent=data.draw(st.sampled_from([None, 1])))}"
        for name, (_, value) in zip(spelt, members)
    )
    text = f"{space}{{{space}{inner}{space}}}{space}".encode()
    edit = ObjectEdit(removed, added_of(added))
    found = json.loads(edited(edit, text, cuts), object_pairs_hook=list)
    gone = set(removed) | dict(added).keys()
    kept = [(name, value) for name, value in json.loads(text, object_pairs_hook=list) if name not in gone]
    again = [(name, json.loads(json.dumps(value), object_pairs_hook=list)) for name, value in dict(added).items()]
    assert found == again + kept


@given(
    st.binary(max_size=60) | st.text('{}[]",:\\ 1atemprue', max_size=60).map(str.encode), st.lists(st.integers(0, 60))
)
@example(b'{"a":1,}', [])
@example(b'{"temperature', [])
@example(b'{"a":1,"temper', [9])
@example(b'\xef\xbb\xbf{"a" 1}', [1, 2])
def test_pieces_make_no_difference_and_other_texts_pass_unchanged(text: bytes, cuts: list[int]) -> None:
    """Nothing is removed here: only white space between members may be lost."""
    edit = ObjectEdit(["no such name"], [])
    whole = edited(edit, text, [])
    assert edited(edit, text, cuts) == whole
    spaces = bytes.maketrans(b"", b""), b" \t\r\n"
    assert whole.translate(*spaces) == text.translate(*spaces)
    if not text.lstrip(b" \t\r\n\xef\xbb\xbf").startswith(b"{"):
        assert whole == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"", b""),
        (b"{}", b'{"t":1}'),
        (b'[{"t":2}]', b'[{"t":2}]'),
        (b"null", b"null"),
        (b'"t"', b'"t"'),
        (b'{"t":2}', b'{"t":1}'),
        (b'{"t":{"t":3},"b":[{"t":4}]}', b'{"t":1,"b":[{"t":4}]}'),
        (b'{"b":2,"t":"x","t":[1]} trailing', b'{"t":1,"b":2} trailing'),
        (b'{"\\u0074":2,"b":2}', b'{"t":1,"b":2}'),
        (b'{"b":2,}', b'{"t":1,"b":2,}'),
        (b"{'t':2}", b"{\"t\":1't':2}"),
        (b'{"b":2 "t":3}', b'{"t":1,"b":2 "t":3}'),
    ],
)
def test_examples(text: bytes, expected: bytes) -> None:
    edit = ObjectEdit([], [("t", "1")])
    assert edited(edit, text, []) == expected
    assert edited(edit, text, list(range(len(text)))) == expected


def test_no_more_than_a_name_is_held() -> None:
    """A name that is longer than each that is removed is not waited for, and a value never."""
    editor = ObjectEditor(ObjectEdit(["ab"], []))
    assert editor.feed(b'{"a') == b"{"
    assert editor.feed(b"b") == b""
    assert editor.feed(b'":' + b"[" * 1000) == b""
    assert editor.feed(b"]" * 1000 + b',"' + b"x" * 25) == b'"' + b"x" * 25
    assert editor.feed(b"y" * 9) == b"y" * 9
    assert editor.feed(b'":"') == b'":"'
    assert editor.feed(b"z" * 9) == b"z" * 9
    assert editor.feed(b'"}') == b'"}'
