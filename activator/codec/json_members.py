"""A walk over the members of the outermost object of a JSON text, which comes in pieces.

Rules
  1. The walk records the kind of each wanted member's value; of several with one name, the last. It stops at one whose
     kind is not the required one.
  2. Values are skipped without validation, as in json_field.py: a text that is not valid JSON may be walked to an end.
  3. At most a name is buffered, as long as it may be a wanted one. Each byte is read a bounded number of times.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

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

# States of the walk.
OPEN: Final = 0
ENDED: Final = 1  # the object has ended
NO_OBJECT: Final = 2  # the text is not an object
MISMATCH: Final = 3  # a wanted member has another kind than required

# Kinds of values.
ANY: Final = -1  # nothing is required
OTHER: Final = 0
TRUE: Final = 1
OBJECT: Final = 2
LIST: Final = 3
EMPTY_LIST: Final = 4
NULL: Final = 5

# One more position of the next byte, beside those of json_values.py.
_ITEM: Final = 10  # after the opening bracket of a wanted array

_ESCAPED_BYTES_MAX: Final = 6  # the longest form of one ASCII character
_SCALARS: Final = {b"true": TRUE, b"null": NULL}
_SCALAR_BYTES_MAX: Final = 4


@final
class MemberWalk:
    """One walk. `wanted`: the ASCII names of members, with the required kinds; `kinds`: the kinds that were found."""

    def __init__(self, wanted: dict[str, int]) -> None:
        self.state: i64 = OPEN
        self.kinds: dict[str, int] = {}
        self._wanted = wanted
        self._name_bytes_max: i64 = _ESCAPED_BYTES_MAX * max([len(name) for name in wanted], default=0)
        self._step: i64 = START
        self._skipper = ValueSkipper()
        self._token: bytes = b""  # the part of the current name or scalar in earlier pieces
        self._is_long: bool = False  # the current name or scalar is too long to be one that matters
        self._name: str = ""  # the current member's name if it is wanted, otherwise empty

    def feed(self, data: bytes, pos: i64, size: i64) -> i64:
        """Walk over `data[pos:size]`, the next piece; return the position of the brace that ends the object, or `size`.

        The walk stops at that brace, and at the byte that shows that the text is not an object or a mismatch.
        """
        while pos < size and self.state == OPEN:
            step = self._step
            if step == NESTED:
                pos = self._skip_to(self._skipper.nested_end(data, pos, size), size)
            elif step == STRING:
                pos = self._skip_to(self._skipper.string_end(data, pos, size), size)
            elif step == IN_NAME:
                pos = self._take_name(data, pos, size)
            elif step == _ITEM and not is_space(data[pos]) and data[pos] != CLOSES_ARRAY:
                self._record_kind(LIST)
                self._begin_nested()  # this byte is its first
            else:
                self._take_byte(data[pos])
                if self.state == OPEN:
                    pos += 1
        return pos

    # --- internals ---

    def _skip_to(self, end: i64, size: i64) -> i64:
        """Return the position after a value that ends at `end`; `size` if it does not end in this piece."""
        if end < 0:
            return size
        self._step = AFTER_VALUE
        return end + 1

    def _take_byte(self, byte: i64) -> None:
        """Process one byte outside of names, strings and nested values."""
        step = self._step
        if step == SCALAR:
            self._take_scalar(byte)
        elif is_space(byte) or (step == START and byte in (0xEF, 0xBB, 0xBF)):  # a byte order mark
            return
        elif step == START:
            self._continue_if(byte == OPENS_OBJECT, FIRST)
        elif step == AFTER_NAME:
            self._continue_if(byte == COLON_BYTE, VALUE)
        elif step == VALUE:
            self._begin_value(byte)
        elif step == _ITEM:
            self._record_kind(EMPTY_LIST)
            self._step = AFTER_VALUE
        elif step == AFTER_VALUE:
            self._end_member(byte)
        elif step == FIRST and byte == CLOSES_OBJECT:
            self.state = ENDED
        else:
            self._skipper.begin_string()
            self._token = b""
            self._is_long = False
            self._continue_if(byte == QUOTE, IN_NAME)

    def _continue_if(self, is_valid: bool, step: i64) -> None:
        """Continue with `step` if `is_valid`; otherwise the text is not an object."""
        if is_valid:
            self._step = step
        else:
            self.state = NO_OBJECT

    def _begin_value(self, byte: i64) -> None:
        """Begin a value at its first byte, which decides how it is skipped."""
        if byte == QUOTE:
            self._record_kind(OTHER)
            self._skipper.begin_string()
            self._step = STRING
        elif byte == OPENS_ARRAY and self._name:
            self._step = _ITEM
        elif byte in (OPENS_OBJECT, OPENS_ARRAY):
            self._record_kind(OBJECT)
            self._begin_nested()
        else:
            self._token = bytes([byte])
            self._is_long = False
            self._continue_if(byte not in (COMMA, COLON_BYTE, CLOSES_OBJECT, CLOSES_ARRAY), SCALAR)

    def _begin_nested(self) -> None:
        self._skipper.begin_nested()
        self._step = NESTED

    def _take_scalar(self, byte: i64) -> None:
        """Process a byte of a number or a literal name, or the byte behind it."""
        if byte in (COMMA, CLOSES_OBJECT) or is_space(byte):
            self._record_kind(OTHER if self._is_long else _SCALARS.get(self._token, OTHER))
            self._step = AFTER_VALUE
            if self.state == OPEN and not is_space(byte):
                self._end_member(byte)
        elif byte in (QUOTE, COLON_BYTE, OPENS_OBJECT, OPENS_ARRAY, CLOSES_ARRAY):
            self.state = NO_OBJECT
        elif len(self._token) < _SCALAR_BYTES_MAX:
            self._token += bytes([byte])
        else:
            self._is_long = True

    def _end_member(self, byte: i64) -> None:
        if byte == CLOSES_OBJECT:
            self.state = ENDED
        else:
            self._continue_if(byte == COMMA, NAME)

    def _record_kind(self, kind: int) -> None:
        """Record the kind of the current member's value, if the member is wanted."""
        name = self._name
        if name:
            self.kinds[name] = kind
            if self._wanted[name] not in (ANY, kind):
                self.state = MISMATCH

    def _take_name(self, data: bytes, pos: i64, size: i64) -> i64:
        """Process this piece's part of a name. Return the position after it."""
        end = self._skipper.string_end(data, pos, size)
        stop = size if end < 0 else end
        if len(self._token) + stop - pos > self._name_bytes_max:
            self._is_long = True
        elif not self._is_long:
            self._token += data[pos:stop]
        if end < 0:
            return size
        name = None if self._is_long else text_of(self._token)
        self._name = name if name is not None and name in self._wanted else ""
        self._step = AFTER_NAME
        return end + 1
