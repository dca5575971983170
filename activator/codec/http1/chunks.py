"""A tracker for chunked bodies: it finds the end of the body and bounds its overhead.

llhttp does neither: it has no byte offsets, and accepts a chunk extension of any length and any number of trailers.
This tracker reads the same bytes just ahead of llhttp and only counts; llhttp checks the grammar and delivers the data.
`framing.py` refuses a message on whose end the two disagree.

Rules
  1. Overhead is bounded per chunk (size line with extensions), not per body: many small chunks are legitimate.
  2. The size of a body is refused when the chunk that exceeds it is announced, before its data.
  3. One call follows at most CHUNKS_PER_TURN_MAX chunks and then sets `spent`, because a chunk may be one byte long.
  4. llhttp is fed neither the extensions behind chunk sizes nor trailers (`cuts`): it refuses whitespace that RFC 9112
     7.1.1 allows around the parts of an extension, and trailers that a response may have (they are dropped). Their
     grammar is therefore checked here and in fields.py.
  5. Two things are buffered between calls: an incomplete size line, and the trailers; both are bounded. llhttp could
     deliver the trailers, but a parser that delivers fields also delivers those of every head.
"""

from __future__ import annotations

import re
from typing import Final

from mypy_extensions import i64

from activator.codec.http1.fields import end_of_line
from activator.runtime.errors import WireError
from activator.runtime.reasons import Reason
from activator.runtime.units import KIB

CHUNKS_PER_TURN_MAX: Final = 2_048  # per connection: 0.3 ms of parsing
CHUNK_OVERHEAD_BYTES_MAX: Final = 16 * KIB  # chunk size lines and extensions ahead of one chunk's data


# RFC 9112 7.1.1: *( BWS ";" BWS chunk-ext-name [ BWS "=" BWS chunk-ext-val ] ). No part can begin with a byte that the
# part before it accepts, so backtracking after a failure is linear. (Possessive quantifiers match too much in Python
# 3.11.2.)
_TOKEN: Final = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_QUOTED: Final = rb'"(?:[\t \x21\x23-\x5b\x5d-\x7e\x80-\xff]|\\[\t \x21-\x7e\x80-\xff])*"'
_EXTENSION: Final = re.compile(rb"(?:[ \t]*;[ \t]*%b(?:[ \t]*=[ \t]*(?:%b|%b))?)*" % (_TOKEN, _TOKEN, _QUOTED))

_SIZE: Final = 0  # within a size line
_DATA: Final = 1
_DATA_END: Final = 2  # within the CRLF after the data
_TRAILERS: Final = 3
_DONE: Final = 4

_SIZE_BEGUN_MAX: Final = 2**56 - 1  # one more digit, and the sum of any two sizes still stays below 2**63
_EXTENSION_STARTS: Final = b"; \t"
_ZERO: Final = 48
_LOWER: Final = 32  # the bit that lowers a letter
_A: Final = 97


class ChunkTracker:
    """A tracker of the chunked bodies of one connection; `start` begins a new body."""

    def __init__(
        self,
        bad: Reason,
        too_large: Reason,
        overhead_max: int,
        trailers_max: int,
        body_max: int,
        space_after_size: bool = False,
    ) -> None:
        self._bad = bad
        self._space_after_size = space_after_size  # accept whitespace at the end of a size line (not in the grammar)
        self._too_large = too_large
        self._overhead_max = overhead_max
        self._trailers_max = trailers_max
        self._body_max = body_max  # 0: no limit
        self.start()

    def start(self) -> None:
        self.done: bool = False
        self.spent: bool = False  # the last call stopped before the end of its data, at the boundary of a size line
        self._state: int = _SIZE
        self.cuts: list[tuple[int, int]] = []  # (start, stop): ranges of the last call's data that llhttp is not fed
        self._partial_line: bytes = b""  # the incomplete size line
        self._digits: int = 0  # checked hexadecimal digits at the start of `_partial_line`
        self._left: int = 0  # bytes still to come: the chunk's data, or the CRLF after it
        self._body: int = 0  # bytes of the body announced so far
        self.trailers: bytes = b""  # the trailer lines; once done, without the last, empty line except perhaps its CR
        self._trailers_begun: bool = False  # the trailer section is not just an empty line received in one piece
        self._trailers_bytes: int = 0  # bytes of complete trailer lines
        self._trailer_line_bytes: int = 0  # bytes of the incomplete trailer line
        self._after_cr: bool = False  # the last byte of the trailers read was a CR

    def advance(self, data: bytes, pos: int) -> int:
        """Follow the body from `pos`. Return the position after the last byte that was followed."""
        size = len(data)
        chunks = 0
        self.spent = False
        if self.cuts:
            self.cuts = []
        while pos < size and not self.done:
            state = self._state
            if state in (_DATA, _DATA_END):
                taken = min(self._left, size - pos)
                pos += taken
                self._left -= taken
                if self._left == 0:
                    self._state = _SIZE if state == _DATA_END else _DATA_END
                    self._left = 2
            elif state == _SIZE:
                if chunks >= CHUNKS_PER_TURN_MAX:
                    self.spent = True
                    return pos
                chunks += 1
                pos = self._size_line(data, pos)
            elif not self._trailers_begun and data.startswith(b"\r\n", pos):
                self.done = True
                self._state = _DONE
                pos += 2
            else:
                self._trailers_begun = True
                stop = self._trailer_line(data, pos)
                if not self.done:
                    self.trailers += data[pos:stop]
                self._cut(pos, stop)
                pos = stop
        return pos

    def _size_line(self, data: bytes, pos: int) -> int:
        """Follow a size line, or its part in `data`. Return the position after it, or the end of `data`."""
        if self._partial_line:
            held_bytes = len(self._partial_line)
            line = self._partial_line + data[pos : pos + self._overhead_max + 2]
            end = line.find(b"\r\n", held_bytes - 1)
            next_pos = pos + end + 2 - held_bytes
            if end >= 0:
                line = line[:end]
        else:
            end = end_of_line(data, pos, min(len(data), pos + self._overhead_max + 2))
            next_pos = end + 2
            line = data[pos:end] if end >= 0 else data[pos : pos + self._overhead_max + 2]
        # A CR at the end of an incomplete line is part of the line's end.
        if len(line) > self._overhead_max + (1 if end < 0 and line.endswith(b"\r") else 0):
            raise WireError(self._bad, "a chunk extension is too long")
        line_pos = pos - len(self._partial_line)
        if end < 0:
            self._partial_line = line
            self._check_begun(line, line_pos, pos, len(data))
            return len(data)
        self._partial_line = b""
        self._digits = 0
        digits = self._begin_chunk(line)
        if digits < len(line):
            self._check_extension(line[digits:])
            self._cut(max(line_pos + digits, pos), line_pos + len(line))
        return next_pos

    def _check_begun(self, line: bytes, line_pos: int, pos: int, size: int) -> None:
        """Refuse an incomplete size line that cannot become valid, and cut its extension from what llhttp is fed."""
        digits = self._digits  # not checked again, because leading zeros may come one by one
        while digits < len(line) and _hex_digit(line[digits]) >= 0:
            digits += 1
        self._digits = digits
        rest = line[digits:]
        ends_in_cr = rest.endswith(b"\r")
        if ends_in_cr:
            rest = rest[:-1]
        if not digits and (rest or ends_in_cr):
            raise WireError(self._bad, "a chunk size is not a number")
        if rest:
            self._check_extension_begun(rest)
            self._cut(max(line_pos + digits, pos), size - 1 if ends_in_cr else size)

    def _check_extension_begun(self, rest: bytes) -> None:
        """Refuse what follows the digits of a size line, perhaps incomplete, if it cannot be an extension."""
        if rest[0] not in _EXTENSION_STARTS:
            raise WireError(self._bad, "a chunk size is not a number")
        if b"\n" in rest or b"\r" in rest:
            raise WireError(self._bad, "a bare CR or LF in a chunk's size line")

    def _check_extension(self, rest: bytes) -> None:
        """Check everything behind the digits of a size line."""
        self._check_extension_begun(rest)
        if self._space_after_size:
            rest = rest.rstrip(b" \t")
        if _EXTENSION.fullmatch(rest) is None:
            raise WireError(self._bad, "a chunk extension is malformed")

    def _cut(self, start: int, stop: int) -> None:
        """Record a range of the current data that llhttp is not fed."""
        if start < stop:
            self.cuts.append((start, stop))

    def _begin_chunk(self, line: bytes) -> int:
        """Begin the chunk of a complete size line. Return the number of its digits."""
        size: i64 = 0
        pos: i64 = 0
        for byte in line:  # digit by digit: 20 ns compiled, where translate, lstrip and int take 300
            digit = _hex_digit(byte)
            if digit < 0:
                break
            if size > _SIZE_BEGUN_MAX:
                raise WireError(self._bad, "a chunk is too large")
            size = size * 16 + digit
            pos += 1
        if pos == 0:
            raise WireError(self._bad, "a chunk size is not a number")
        if size == 0:
            self._state = _TRAILERS
            return int(pos)
        self._left = size
        self._body += self._left
        if self._body > self._body_max > 0:
            raise WireError(Reason.BODY_TOO_LARGE, "the body is too large")
        self._state = _DATA
        return int(pos)

    def hides_end(self) -> bool:
        """Return True if the body has ended and its last line is among the cuts."""
        return self.done and self._trailers_begun

    def _trailer_line(self, data: bytes, pos: int) -> int:
        """Follow one line of the trailer section, which ends at the first empty line. Return the position behind it."""
        if self._after_cr:
            self._after_cr = False
            if data[pos] == 10:
                self._end_trailer_line(1)
                return pos + 1
        end = data.find(b"\r\n", pos)
        if end >= 0:
            self._end_trailer_line(end + 2 - pos)
            return end + 2
        self._trailer_line_bytes += len(data) - pos
        self._check_trailers(self._trailer_line_bytes)
        self._after_cr = data.endswith(b"\r")
        return len(data)

    def _end_trailer_line(self, size: int) -> None:
        """Count the last `size` bytes of a trailer line. An empty line ends the body."""
        line = self._trailer_line_bytes + size
        self._trailer_line_bytes = 0
        self._trailers_bytes += line
        self._check_trailers(0)
        if line == 2:
            self.done = True
            self._state = _DONE

    def _check_trailers(self, begun: int) -> None:
        """Raise WireError if the complete lines and the `begun` bytes of another one exceed the limit."""
        if self._trailers_bytes + begun > self._trailers_max:
            raise WireError(self._too_large, "the trailers are too large")


def _hex_digit(byte: i64) -> i64:
    """Return the value of a hexadecimal digit; -1 for any other byte."""
    if _ZERO <= byte <= _ZERO + 9:
        return byte - _ZERO
    letter = byte | _LOWER
    return letter - _A + 10 if _A <= letter <= _A + 5 else -1
