"""One member of a JSON object, found in the beginning of a body without parsing the rest of it.

Rules
  1. The member is looked for in the outermost object only. Of several of that name the first counts: the scan ends
     there, so that nothing has to be waited for. A value that is not a string is as if there were none.
  2. What is passed over is not judged: only strings and brackets are told apart. A body that is not JSON may be found
     to have the member; that it is not JSON, its reader says.
  3. Nothing is kept but TOKEN_BYTES_MAX bytes of a name or a value. Nesting is a number. Each byte is looked at a
     bounded number of times, however the body is cut into pieces and whatever is in it.
"""

from __future__ import annotations

import json
from typing import Final, final

from mypy_extensions import i64

from activator.codec.json_values import ValueSkipper

TOKEN_BYTES_MAX: Final = 1024  # of a name or a value, as it is written; a longer one is none

# What has become of the search.
PENDING: Final = 0  # it has not come yet
FOUND: Final = 1
ABSENT: Final = 2  # the object has none, or it is no text, or this is no object
BEYOND: Final = 3  # not among the bytes that are looked at

# Where in the text the next byte stands.
_START: Final = 0  # before the object
_FIRST: Final = 1  # behind its brace
_NAME: Final = 2  # before a name
_IN_NAME: Final = 3
_COLON: Final = 4  # behind a name
_VALUE: Final = 5  # before a value
_STRING: Final = 6  # in a value that is a string
_NESTED: Final = 7  # in a value that is an object or an array
_SCALAR: Final = 8
_BEHIND: Final = 9  # behind a value
_IN_FOUND: Final = 10  # in the value that is looked for

_QUOTE: Final = 0x22
_OPENS_OBJECT: Final = 0x7B
_CLOSES_OBJECT: Final = 0x7D
_OPENS_ARRAY: Final = 0x5B
_CLOSES_ARRAY: Final = 0x5D
_COMMA: Final = 0x2C
_BETWEEN: Final = 0x3A
_SPACE: Final = 0x20
_TAB: Final = 0x09
_LF: Final = 0x0A
_CR: Final = 0x0D
_BOM: Final = b"\xef\xbb\xbf"
_BOM_BYTES: Final = 3


@final
class FieldScan:
    """The search for the member `name` among the first `bytes_max` bytes.

    Once it is FOUND, `value` is what it says, written in the body from `start` to `end`, quotes included.
    """

    def __init__(self, name: str, bytes_max: i64) -> None:
        self._name = name
        self._plain_name = name.encode()
        self._left: i64 = bytes_max
        self._offset: i64 = 0  # of the piece that is being looked at
        self._step: i64 = _START
        self._bom: i64 = 0  # bytes of a byte order mark
        self._skipper = ValueSkipper()
        self._token: bytes = b""  # of a name or value, what the pieces before had
        self._too_long: bool = False
        self.state: i64 = PENDING
        self.value: str = ""
        self.start: i64 = 0
        self.end: i64 = 0

    def feed(self, data: bytes) -> None:
        """The next piece of the body."""
        size: i64 = len(data)
        if size > self._left:
            size = self._left
        pos: i64 = 0
        while pos < size and self.state == PENDING:
            step = self._step
            if step == _NESTED:
                pos = self._pass(self._skipper.nested_end(data, pos, size), size)
            elif step == _STRING:
                pos = self._pass(self._skipper.string_end(data, pos, size), size)
            elif step in (_IN_NAME, _IN_FOUND):
                pos = self._take_string(data, pos, size)
            else:
                self._look_at(data[pos], pos)
                pos += 1
        self._offset += size
        self._left -= size
        if self.state == PENDING and self._left == 0:
            self.state = BEYOND

    def finish(self) -> None:
        """The body is here to its end."""
        if self.state == PENDING:
            self.state = ABSENT

    # --- within ---

    def _pass(self, end: i64, size: i64) -> i64:
        """Go on behind a value, if it ends in this piece."""
        if end < 0:
            return size
        self._step = _BEHIND
        return end + 1

    def _look_at(self, byte: i64, pos: i64) -> None:
        """One byte outside of strings and nested values."""
        step = self._step
        if step == _SCALAR:
            if byte in (_COMMA, _CLOSES_OBJECT):
                self._end_value(byte)
            elif _is_space(byte):
                self._step = _BEHIND
            elif byte in (_QUOTE, _BETWEEN, _OPENS_OBJECT, _OPENS_ARRAY, _CLOSES_ARRAY):
                self.state = ABSENT
        elif _is_space(byte) and not 0 < self._bom < _BOM_BYTES:
            return
        elif step == _START:
            self._open(byte, pos)
        elif step == _COLON:
            self._become(byte == _BETWEEN, _VALUE)
        elif step == _VALUE:
            self._begin_value(byte, pos)
        elif step == _BEHIND:
            self._end_value(byte)
        else:  # before a name
            self._begin_string()
            self._become(byte == _QUOTE, _IN_NAME)

    def _become(self, is_so: bool, step: i64) -> None:
        """Go on to `step` where the text is as it should be; else it is no object, or has ended."""
        if is_so:
            self._step = step
        else:
            self.state = ABSENT

    def _open(self, byte: i64, pos: i64) -> None:
        bom = self._bom
        if bom < _BOM_BYTES and byte == _BOM[bom] and (bom > 0 or self._offset + pos == 0):
            self._bom = bom + 1
        else:
            self._become(byte == _OPENS_OBJECT and bom in (0, _BOM_BYTES), _FIRST)

    def _begin_value(self, byte: i64, pos: i64) -> None:
        if self.start > 0:  # the member
            self.start = self._offset + pos
            self._begin_string()
            self._become(byte == _QUOTE, _IN_FOUND)
        elif byte == _QUOTE:
            self._skipper.begin_string()
            self._step = _STRING
        elif byte in (_OPENS_OBJECT, _OPENS_ARRAY):
            self._skipper.begin_nested()
            self._step = _NESTED
        else:
            self._become(byte not in (_COMMA, _BETWEEN, _CLOSES_OBJECT, _CLOSES_ARRAY), _SCALAR)

    def _end_value(self, byte: i64) -> None:
        self._become(byte == _COMMA, _NAME)  # a brace is the end of the object

    def _begin_string(self) -> None:
        """One that is kept."""
        self._skipper.begin_string()
        self._token = b""
        self._too_long = False

    def _take_string(self, data: bytes, pos: i64, size: i64) -> i64:
        """Of a name, or of the value that is looked for: as far as this piece has it."""
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
            self._step = _COLON
            if self._is_name():
                self.start = 1  # its place follows; that it is the member is all that counts
        return end + 1

    def _is_name(self) -> bool:
        token = self._token
        if len(token) <= len(self._plain_name):  # an escaped one is longer
            return token == self._plain_name
        return b"\\" in token and text_of(token) == self._name

    def _end_found(self, end: i64) -> None:
        value = None if self._too_long else text_of(self._token)
        if value is None:
            self.state = ABSENT
            return
        self.value = value
        self.end = self._offset + end + 1
        self.state = FOUND


def text_of(token: bytes) -> str | None:
    """What a string of JSON says, without its quotes; None where it is none."""
    try:
        text = token.decode()
        if "\\" not in text:
            return None if any(one < " " for one in text) else text
        found = json.loads(f'"{text}"')
        found.encode()  # half of a pair of surrogates is no text
    except ValueError:
        return None
    return found if isinstance(found, str) else None


def _is_space(byte: i64) -> bool:
    return byte in (_SPACE, _LF, _TAB, _CR)
