"""The removal and addition of members of a JSON object, while it passes through in pieces.

Rules
  1. Only members of the outermost object count. All members with a removed name are removed, in whatever way the name
     is escaped; the added ones come first. A name that is added is also removed.
  2. A text that is not an object is not changed. A text that is not valid JSON is not changed from the first byte on
     that shows it.
  3. The text of a member that remains is not changed; white space between members is dropped.
  4. A strict edit stops at the first byte that shows that the text is not valid JSON, and at the end of the object.
     It removes all members whose name some readers take for a removed one.
  5. At most a name is buffered, as long as it may be one that is removed. Each byte is read a bounded number of times,
     whatever the text contains and however it is split.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final, final

from mypy_extensions import i64, mypyc_attr

from activator.codec.json_field import (
    CLOSES_ARRAY,
    CLOSES_OBJECT,
    COLON_BYTE,
    COMMA,
    OPENS_ARRAY,
    OPENS_OBJECT,
    QUOTE,
    is_space,
    text_of,
)
from activator.codec.json_values import (
    AFTER_NAME,
    AFTER_VALUE,
    FIRST,
    IN_NAME,
    NAME,
    NESTED,
    SCALAR,
    START,
    STRING,
    VALUE,
    ValueSkipper,
)

# One more position of the next byte, beside those of json_values.py.
_UNCHANGED: Final = 10  # the rest is not changed

_ESCAPED_BYTES_MAX: Final = 12  # one character may be a pair of surrogates

_STRICT_NAME_BYTES_MAX: Final = 1024  # a zero byte may follow the name

_NONE: Final = -1  # nothing of the current piece is being copied


@mypyc_attr(allow_interpreted_subclasses=True)
class BodyEditor:
    """The edit of one body, which comes in pieces."""

    def feed(self, data: bytes) -> bytes:
        """Return the edited form of the next piece; parts of it may follow later."""
        raise NotImplementedError

    def finish(self) -> bytes:
        """Return the rest of the edited body, at its end."""
        raise NotImplementedError


@final
class EditorPair(BodyEditor):
    """Two edits of one body, of which the second changes what the first one writes."""

    def __init__(self, first: BodyEditor, second: BodyEditor) -> None:
        self._first = first
        self._second = second

    def feed(self, data: bytes) -> bytes:
        return self._second.feed(self._first.feed(data))

    def finish(self) -> bytes:
        return self._second.feed(self._first.finish()) + self._second.finish()


@final
class ObjectEdit:
    """The names of removed members, and added members: names with the JSON text of their values.

    With `is_strict`, names in lower case stand for all that some readers take for them (in another case, or with a zero
    byte), and nothing is written from the first byte on that shows that the text is not JSON, or behind the object.
    """

    def __init__(self, removed: Iterable[str], added: Iterable[tuple[str, str]], is_strict: bool = False) -> None:
        pairs = dict(added)
        self.is_strict: bool = is_strict
        self.names: frozenset[str] = frozenset(removed) | frozenset(pairs)
        self.plain_names: frozenset[bytes] = frozenset([name.encode() for name in self.names])
        self.name_bytes_max: i64 = _ESCAPED_BYTES_MAX * max([len(name) for name in self.names], default=0)
        if is_strict:
            self.name_bytes_max = _STRICT_NAME_BYTES_MAX
        self.added_text: bytes = b",".join([f"{json.dumps(name)}:{value}".encode() for name, value in pairs.items()])


@final
class ObjectEditor(BodyEditor):
    """The edit of one text by an `ObjectEdit`."""

    def __init__(self, edit: ObjectEdit) -> None:
        self._edit = edit
        self._step: i64 = START
        self._skipper = ValueSkipper()
        self._token: bytes = b""  # the part of the current name that is not written
        self._holds_name: bool = False  # the current name may be one that is removed
        self._copies: bool = True  # the next byte is copied
        self._has_members: bool = False  # a member has been written
        self._copy_from: i64 = 0  # in the current piece: the first byte that is to be copied
        self._stop: i64 = _NONE  # in the current piece of a strict edit: the first byte that is not written
        self._written: list[bytes] = []

    def feed(self, data: bytes) -> bytes:
        if self._step == _UNCHANGED:
            return b"" if self._edit.is_strict else data
        size: i64 = len(data)
        pos: i64 = 0
        self._copy_from = 0 if self._copies else _NONE
        while pos < size and self._step != _UNCHANGED:
            step = self._step
            if step == NESTED:
                pos = self._skip_to(self._skipper.nested_end(data, pos, size), size)
            elif step == STRING:
                pos = self._skip_to(self._skipper.string_end(data, pos, size), size)
            elif step == IN_NAME:
                pos = self._take_name(data, pos, size)
            else:
                self._take_byte(data, pos, data[pos])
                pos += 1
        self._copies = self._copy_from != _NONE
        self._write_until(data, size if self._stop == _NONE else self._stop)
        written = b"".join(self._written)
        self._written = []
        return written

    def finish(self) -> bytes:
        token, self._token = self._token, b""
        if self._step != IN_NAME or not self._holds_name or self._edit.is_strict:
            return b""
        self._step = _UNCHANGED
        return b"%b%b" % (b',"' if self._has_members else b'"', token)

    # --- internals ---

    def _write_until(self, data: bytes, end: i64) -> None:
        """Copy the piece from `_copy_from` up to `end`."""
        if self._copy_from != _NONE:
            if self._copy_from < end:
                self._written.append(data[self._copy_from : end])
            self._copy_from = _NONE

    def _skip_to(self, end: i64, size: i64) -> i64:
        """Return the position after a value that ends at `end`; `size` if it does not end in this piece."""
        if end < 0:
            return size
        self._step = AFTER_VALUE
        return end + 1

    def _take_byte(self, data: bytes, pos: i64, byte: i64) -> None:
        """Process one byte outside of names, strings and nested values."""
        step = self._step
        if step == SCALAR:
            if byte in (COMMA, CLOSES_OBJECT):
                self._end_member(data, pos, byte)
            elif is_space(byte):
                self._step = AFTER_VALUE
            elif byte in (QUOTE, COLON_BYTE, OPENS_OBJECT, OPENS_ARRAY, CLOSES_ARRAY):
                self._give_up(pos)
        elif is_space(byte) or (step == START and byte in (0xEF, 0xBB, 0xBF)):  # a byte order mark
            return
        elif step == START:
            if byte == OPENS_OBJECT:
                self._open(data, pos)
            else:
                self._give_up(pos)
        elif step == AFTER_NAME:
            self._step = VALUE
            if byte != COLON_BYTE:
                self._give_up(pos)
        elif step == VALUE:
            self._begin_value(pos, byte)
        elif step == AFTER_VALUE:
            self._end_member(data, pos, byte)
        else:
            self._begin_name(pos, byte)

    def _give_up(self, pos: i64, is_end: bool = False) -> None:
        """Copy the rest, which begins at `pos`, as it is; a strict edit copies no more than the end of the object."""
        self._step = _UNCHANGED
        if self._edit.is_strict:
            self._stop = pos + 1 if is_end else pos
        if self._copy_from == _NONE:
            self._copy_from = pos

    def _open(self, data: bytes, pos: i64) -> None:
        """Write the opening brace and the added members."""
        self._write_until(data, pos + 1)
        if self._edit.added_text:
            self._written.append(self._edit.added_text)
            self._has_members = True
        self._step = FIRST

    def _begin_name(self, pos: i64, byte: i64) -> None:
        """Begin a name. Any other byte ends the edit: the object has ended, or the text is not JSON."""
        if byte == QUOTE:
            self._skipper.begin_string()
            self._holds_name = True
            self._step = IN_NAME
            return
        is_end = self._step == FIRST and byte == CLOSES_OBJECT
        if self._step == NAME:  # not JSON: the comma before it stays
            self._written.append(b",")
        self._give_up(pos, is_end)

    def _begin_value(self, pos: i64, byte: i64) -> None:
        """Begin a value at its first byte, which decides how it is skipped."""
        if byte == QUOTE:
            self._skipper.begin_string()
            self._step = STRING
        elif byte in (OPENS_OBJECT, OPENS_ARRAY):
            self._skipper.begin_nested()
            self._step = NESTED
        elif byte in (COMMA, COLON_BYTE, CLOSES_OBJECT, CLOSES_ARRAY):
            self._give_up(pos)
        else:
            self._step = SCALAR

    def _end_member(self, data: bytes, pos: i64, byte: i64) -> None:
        if byte == COMMA:
            self._write_until(data, pos)
            self._step = NAME
        else:  # the end of the object, or not JSON
            self._give_up(pos, byte == CLOSES_OBJECT)

    def _take_name(self, data: bytes, pos: i64, size: i64) -> i64:
        """Process this piece's part of a name. Return the position after it."""
        end = self._skipper.string_end(data, pos, size)
        stop = size if end < 0 else end
        if self._holds_name:
            token = self._token + data[pos:stop]
            is_long = len(token) > self._edit.name_bytes_max
            if end >= 0 and not is_long and self._is_removed(token):
                self._token = b""
            elif end >= 0 or is_long:
                self._begin_member(token)
                self._copy_from = stop
            else:
                self._token = token
        if end < 0:
            return size
        self._step = AFTER_NAME
        return end + 1

    def _begin_member(self, token: bytes) -> None:
        """Write the beginning of a member that remains."""
        self._written.append(b',"' if self._has_members else b'"')
        self._written.append(token)
        self._has_members = True
        self._holds_name = False
        self._token = b""

    def _is_removed(self, token: bytes) -> bool:
        """Return True if members with this encoded name are removed."""
        edit = self._edit
        if edit.is_strict:
            return (text_of(token) or "").partition("\0")[0].lower() in edit.names
        return token in edit.plain_names or (b"\\" in token and (text_of(token) or "") in edit.names)
