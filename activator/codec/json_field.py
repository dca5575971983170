"""One member of a JSON object, found in the beginning of a body without parsing the rest of it.

Rules
  1. The member is looked for in the outermost object only. Of several of that name the first counts: the scan ends
     there, so that nothing has to be waited for. A value that is not a string is as if there were none.
  2. What is passed over is not judged: only strings and brackets are told apart. A body that is not JSON may be found
     to have the member; that it is not JSON, its reader says.
  3. Nothing is kept but TOKEN_BYTES_MAX bytes of a name or a value. Nesting is a number. Each byte is looked at a
     bounded number of times, however the body is cut into pieces and whatever is in it.
  4. Strings and nested values of more than some bytes are passed over by searches of `bytes`: one byte at a time costs
     2 ns, and 64 KiB would take longer than all the rest of a request. Where there are many quotes, those that are
     escaped are overwritten first, in a copy of a block, and so are escaped backslashes; and a block within a nested
     value is reduced to its quotes and brackets, and these by pairs (`_outline`): 4 KiB in 4 us, 12 by searches.
"""

from __future__ import annotations

import json
from typing import Final, final

from mypy_extensions import i64

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
_BACKSLASH: Final = 0x5C
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
_BLOCK_BYTES: Final = 4096  # that are searched at a time: what comes behind the member is not touched
_DENSE_QUOTES: Final = 64  # in a block: with more, escaped ones are overwritten before the searches
_NEAR: Final = 16  # bytes that are looked at one by one before a search
_OUTLINED_BYTES: Final = 512  # so much of a block is worth an outline …
_OUTLINED_QUOTES: Final = 512  # … with at most so many quotes; with more, one byte after the other is faster
_PAIRINGS: Final = (
    6  # levels of nesting that are reduced in an outline; what is nested deeper is passed over by searches
)

_NOT_OUTLINE: Final = bytes(byte for byte in range(256) if byte not in b'"{}[]')
_ONE_KIND: Final = bytes.maketrans(b"[]", b"{}")  # what closes which is not judged


@final
class FieldScan:
    """The search for the member `name` among the first `bytes_max` bytes.

    Once it is FOUND, `value` is what it says, written in the body from `start` to `end`, quotes included.
    """

    def __init__(self, name: str, bytes_max: i64) -> None:
        self._name = name
        self._plain_name = name.encode()
        self._left: i64 = bytes_max
        self._offset: i64 = 0  # of the block that is being looked at
        self._step: i64 = _START
        self._bom: i64 = 0  # bytes of a byte order mark
        self._depth: i64 = 0  # of brackets that are open, the outermost object's included
        self._escaped: bool = False  # the block before ended with a backslash, in a string
        self._in_string: bool = False  # within a nested value
        self._outlines: bool = False  # the block is worth an outline, and no quote in it is escaped any more
        self._token: bytes = b""  # of a name or value, what the pieces before had
        self._too_long: bool = False
        self.state: i64 = PENDING
        self.value: str = ""
        self.start: i64 = 0
        self.end: i64 = 0

    def feed(self, data: bytes) -> None:
        """The next piece of the body."""
        size: i64 = len(data)
        pos: i64 = 0
        while pos < size and self.state == PENDING:
            stop: i64 = pos + _BLOCK_BYTES
            if stop > size:
                stop = size
            if stop > pos + self._left:
                stop = pos + self._left
            self._feed_block(data if pos == 0 and stop == size else data[pos:stop])
            self._offset += stop - pos
            self._left -= stop - pos
            pos = stop
            if self.state == PENDING and self._left == 0:
                self.state = BEYOND

    def finish(self) -> None:
        """The body is here to its end."""
        if self.state == PENDING:
            self.state = ABSENT

    # --- within ---

    def _feed_block(self, data: bytes) -> None:
        clean = data
        quotes: i64 = data.count(b'"')
        is_dense = quotes > _DENSE_QUOTES
        if is_dense and b"\\" in data:  # the tokens are taken from `data`
            start = 1 if self._escaped else 0
            clean = data[start:].replace(b"\\\\", b"__").replace(b'\\"', b"__")
            if start == 1:
                clean = b"_" + clean
            quotes = clean.count(b'"')
        self._outlines = is_dense and quotes <= _OUTLINED_QUOTES
        size: i64 = len(data)
        pos: i64 = 0
        while pos < size and self.state == PENDING:
            step = self._step
            if step == _NESTED:
                pos = self._pass_nested(clean, pos, size)
            elif step == _STRING:
                end = self._string_end(clean, pos, size)
                if end < 0:
                    pos = size
                else:
                    self._step = _BEHIND
                    pos = end + 1
            elif step in (_IN_NAME, _IN_FOUND):
                pos = self._take_string(data, clean, pos, size)
            else:
                self._look_at(data[pos], pos)
                pos += 1

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
            self._open(byte)
        elif step == _COLON:
            self._become(byte == _BETWEEN, _VALUE)
        elif step == _VALUE:
            self._begin_value(byte, pos)
        elif step == _BEHIND:
            self._end_value(byte)
        else:  # before a name
            self._token = b""
            self._too_long = False
            self._become(byte == _QUOTE, _IN_NAME)

    def _become(self, is_so: bool, step: i64) -> None:
        """Go on to `step` where the text is as it should be; else it is no object, or has ended."""
        if is_so:
            self._step = step
        else:
            self.state = ABSENT

    def _open(self, byte: i64) -> None:
        bom = self._bom
        if bom < _BOM_BYTES and byte == _BOM[bom] and (bom > 0 or self._offset == 0):
            self._bom = bom + 1
        else:
            self._depth = 1
            self._become(byte == _OPENS_OBJECT and bom in (0, _BOM_BYTES), _FIRST)

    def _begin_value(self, byte: i64, pos: i64) -> None:
        if self.start > 0:  # the member
            self.start = self._offset + pos
            self._token = b""
            self._become(byte == _QUOTE, _IN_FOUND)
        elif byte == _QUOTE:
            self._step = _STRING
        elif byte in (_OPENS_OBJECT, _OPENS_ARRAY):
            self._depth += 1
            self._step = _NESTED
        else:
            self._become(byte not in (_COMMA, _BETWEEN, _CLOSES_OBJECT, _CLOSES_ARRAY), _SCALAR)

    def _end_value(self, byte: i64) -> None:
        self._become(byte == _COMMA, _NAME)  # a brace is the end of the object

    def _take_string(self, data: bytes, clean: bytes, pos: i64, size: i64) -> i64:
        """Of a name, or of the value that is looked for: as far as this block has it."""
        end = self._string_end(clean, pos, size)
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

    def _string_end(self, clean: bytes, pos: i64, size: i64) -> i64:
        """Where the quote is that ends the string in which `pos` stands; -1: in a later block."""
        if self._escaped:
            self._escaped = False
            pos += 1
        while pos < size:
            near: i64 = pos + _NEAR
            if near > size:
                near = size
            while pos < near:
                byte: i64 = clean[pos]
                if byte == _QUOTE:
                    return pos
                pos += 2 if byte == _BACKSLASH else 1
            if pos >= size:
                break
            quote: i64 = clean.find(b'"', pos, size)
            stop = size if quote < 0 else quote
            back = stop
            while back > pos and clean[back - 1] == _BACKSLASH:
                back -= 1
            is_escaped = ((stop - back) & 1) == 1
            if quote >= 0 and not is_escaped:
                return quote
            pos = stop + 1 if is_escaped else stop
        self._escaped = pos > size
        return -1

    def _pass_nested(self, clean: bytes, pos: i64, size: i64) -> i64:
        """Through the value in which `pos` stands; where it ends, or the block does."""
        if self._outlines and size - pos >= _OUTLINED_BYTES and self._pass_block(clean, pos, size):
            return size
        depth = self._depth
        if self._in_string:
            pos = self._string_end(clean, pos, size) + 1
            if pos == 0:
                return size
            self._in_string = False
        near: i64 = pos + _NEAR  # as far as here, one by one
        while pos < size:
            if pos >= near:
                quote: i64 = clean.find(b'"', pos, size)
                near = size if quote < 0 else quote + 1
                closing = clean.count(b"}", pos, near) + clean.count(b"]", pos, near)
                if closing < depth - 1:  # it does not end before the next string
                    depth += clean.count(b"{", pos, near) + clean.count(b"[", pos, near) - closing
                    pos = near if quote < 0 else quote
                    continue
            byte: i64 = clean[pos]
            pos += 1
            if byte == _QUOTE:
                end = self._string_end(clean, pos, size)
                if end < 0:
                    self._in_string = True
                    pos = size
                    break
                pos = end + 1
                near = pos + _NEAR
            elif byte in (_OPENS_OBJECT, _OPENS_ARRAY):
                depth += 1
            elif byte in (_CLOSES_OBJECT, _CLOSES_ARRAY):
                depth -= 1
                if depth == 1:
                    self._step = _BEHIND
                    break
        self._depth = depth
        return pos

    def _pass_block(self, clean: bytes, pos: i64, size: i64) -> bool:
        """Pass the rest of a dense block, unless the nested value may end in it: then False, and nothing is done."""
        if clean[size - 1] == _BACKSLASH:
            return False
        outline = clean[pos + 1 if self._escaped else pos :].translate(_ONE_KIND, _NOT_OUTLINE)
        if self._in_string:
            outline = b'"' + outline
        # Two quotes in a row are a string without brackets, or lie between two strings, which become one.
        parts = outline.replace(b'""', b"").split(b'"')
        brackets = parts[0] if len(parts) == 1 else b"".join(parts[::2])
        for _ in range(_PAIRINGS):
            if b"{}" not in brackets:
                break
            brackets = brackets.replace(b"{}", b"")
        closing: i64 = brackets.count(b"}")
        if closing >= self._depth - 1:
            return False
        opening: i64 = len(brackets) - closing
        self._depth += opening - closing
        self._in_string = len(parts) % 2 == 0
        self._escaped = False
        return True


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
