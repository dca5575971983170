"""A search for one member of a JSON object at the beginning of a body, without parsing the rest.

Rules
  1. Only members of the outermost object count. If several have the name, the first is taken: the scan ends there and
     does not wait for the rest of the body. A member whose value is not a string counts as absent.
  2. Other members are skipped without validation: only strings and brackets are recognised. A body that is not valid
     JSON may be found to have the member; validation is left to the reader of the body.
  3. The scan buffers at most TOKEN_BYTES_MAX bytes of a name or a value, and nesting is a counter. Each byte is read a
     bounded number of times, whatever the body contains and however it is split.
"""

from __future__ import annotations

import json
from typing import Final, final

from mypy_extensions import i64

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

TOKEN_BYTES_MAX: Final = 1024  # the longest name or value, in its encoded form; a longer one does not match

# States of the search.
PENDING: Final = 0  # not found in the bytes received so far
FOUND: Final = 1
ABSENT: Final = 2  # the object has no such member, its value is not a string, or the text is not an object
BEYOND: Final = 3  # not within the first `bytes_max` bytes

# One more position of the next byte, beside those of json_values.py.
_IN_FOUND: Final = 10  # in the value that is searched for

# Bytes of structure.
QUOTE: Final = 0x22
OPENS_OBJECT: Final = 0x7B
CLOSES_OBJECT: Final = 0x7D
OPENS_ARRAY: Final = 0x5B
CLOSES_ARRAY: Final = 0x5D
COMMA: Final = 0x2C
COLON_BYTE: Final = 0x3A
_SPACE: Final = 0x20
_TAB: Final = 0x09
_LF: Final = 0x0A
_CR: Final = 0x0D
_BOM: Final = b"\xef\xbb\xbf"
_BOM_BYTES: Final = 3


@final
class FieldScan:
    """The search for the member `name` in the first `bytes_max` bytes of a body.

    Once `state` is FOUND, `value` is the decoded string, and `start` and `end` are its offsets in the body, including
    the quotes.
    """

    def __init__(self, name: str, bytes_max: i64) -> None:
        self._name = name
        self._plain_name = name.encode()
        self._left: i64 = bytes_max
        self._offset: i64 = 0  # the current piece's offset in the body
        self._step: i64 = START
        self._bom: i64 = 0  # bytes of a byte order mark
        self._skipper = ValueSkipper()
        self._token: bytes = b""  # the part of the current name or value in earlier pieces
        self._too_long: bool = False
        self.state: i64 = PENDING
        self.value: str = ""
        self.start: i64 = 0
        self.end: i64 = 0

    def feed(self, data: bytes) -> None:
        """Scan the next piece of the body."""
        size: i64 = len(data)
        if size > self._left:
            size = self._left
        pos: i64 = 0
        while pos < size and self.state == PENDING:
            step = self._step
            if step == NESTED:
                pos = self._skip_to(self._skipper.nested_end(data, pos, size), size)
            elif step == STRING:
                pos = self._skip_to(self._skipper.string_end(data, pos, size), size)
            elif step in (IN_NAME, _IN_FOUND):
                pos = self._take_string(data, pos, size)
            else:
                self._scan_byte(data[pos], pos)
                pos += 1
        self._offset += size
        self._left -= size
        if self.state == PENDING and self._left == 0:
            self.state = BEYOND

    def finish(self) -> None:
        """End the search: the body is complete."""
        if self.state == PENDING:
            self.state = ABSENT

    # --- internals ---

    def _skip_to(self, end: i64, size: i64) -> i64:
        """Return the position after a skipped value that ends at `end`; `size` if it does not end in this piece."""
        if end < 0:
            return size
        self._step = AFTER_VALUE
        return end + 1

    def _scan_byte(self, byte: i64, pos: i64) -> None:
        """Process one byte outside of strings and nested values."""
        step = self._step
        if step == SCALAR:
            if byte in (COMMA, CLOSES_OBJECT):
                self._end_value(byte)
            elif is_space(byte):
                self._step = AFTER_VALUE
            elif byte in (QUOTE, COLON_BYTE, OPENS_OBJECT, OPENS_ARRAY, CLOSES_ARRAY):
                self.state = ABSENT
        elif is_space(byte) and not 0 < self._bom < _BOM_BYTES:
            return
        elif step == START:
            self._open(byte, pos)
        elif step == AFTER_NAME:
            self._continue_if(byte == COLON_BYTE, VALUE)
        elif step == VALUE:
            self._begin_value(byte, pos)
        elif step == AFTER_VALUE:
            self._end_value(byte)
        else:  # before a name
            self._begin_string()
            self._continue_if(byte == QUOTE, IN_NAME)

    def _continue_if(self, is_valid: bool, step: i64) -> None:
        """Continue with `step` if `is_valid`; otherwise the text is not an object, or the object has ended."""
        if is_valid:
            self._step = step
        else:
            self.state = ABSENT

    def _open(self, byte: i64, pos: i64) -> None:
        """Process a byte before the object: a part of a byte order mark, or the opening brace."""
        bom = self._bom
        if bom < _BOM_BYTES and byte == _BOM[bom] and (bom > 0 or self._offset + pos == 0):
            self._bom = bom + 1
        else:
            self._continue_if(byte == OPENS_OBJECT and bom in (0, _BOM_BYTES), FIRST)

    def _begin_value(self, byte: i64, pos: i64) -> None:
        """Begin a value at its first byte: the one that is searched for is kept, others are skipped."""
        if self.start > 0:  # the value of the member that is searched for
            self.start = self._offset + pos
            self._begin_string()
            self._continue_if(byte == QUOTE, _IN_FOUND)
        elif byte == QUOTE:
            self._skipper.begin_string()
            self._step = STRING
        elif byte in (OPENS_OBJECT, OPENS_ARRAY):
            self._skipper.begin_nested()
            self._step = NESTED
        else:
            self._continue_if(byte not in (COMMA, COLON_BYTE, CLOSES_OBJECT, CLOSES_ARRAY), SCALAR)

    def _end_value(self, byte: i64) -> None:
        """Process the byte behind a value."""
        self._continue_if(byte == COMMA, NAME)  # a brace ends the object

    def _begin_string(self) -> None:
        """Begin a string that is kept."""
        self._skipper.begin_string()
        self._token = b""
        self._too_long = False

    def _take_string(self, data: bytes, pos: i64, size: i64) -> i64:
        """Keep this piece's part of a name or of the value. Return the position after it."""
        end = self._skipper.string_end(data, pos, size)
        stop = size if end < 0 else end
        if len(self._token) + stop - pos > TOKEN_BYTES_MAX:
            self._too_long = True
        elif not self._too_long:
            part = data[pos:stop]
            self._token = self._token + part if len(self._token) > 0 else part
        if end < 0:
            return size
        if self._step == _IN_FOUND:
            self._end_found(end)
        else:
            self._step = AFTER_NAME
            if self._is_name():
                self.start = 1  # marks the member as found; `_begin_value` sets the offset
        return end + 1

    def _is_name(self) -> bool:
        """Return True if the current name is the one that is searched for."""
        token = self._token
        if len(token) <= len(self._plain_name):  # an escaped name is longer
            return token == self._plain_name
        return b"\\" in token and text_of(token) == self._name

    def _end_found(self, end: i64) -> None:
        """End the search: the value that is searched for ends at `end` of the current piece."""
        value = None if self._too_long else text_of(self._token)
        if value is None:
            self.state = ABSENT
            return
        self.value = value
        self.end = self._offset + end + 1
        self.state = FOUND


def text_of(token: bytes) -> str | None:
    """Decode a JSON string that is given without its quotes. Return None if it is not valid."""
    try:
        text = token.decode()
        if "\\" not in text:
            return None if any(character < " " for character in text) else text
        found = json.loads(f'"{text}"')
        found.encode()  # raises for an unpaired surrogate
    except ValueError:
        return None
    return found if isinstance(found, str) else None


def is_space(byte: i64) -> bool:
    """Return True for white space of JSON."""
    return byte in (_SPACE, _LF, _TAB, _CR)
