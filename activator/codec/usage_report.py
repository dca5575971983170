"""The report of tokens at the end of a stream of OpenAI's API: the option that asks for it, and the event that has it.

Rules
  1. A request with `"stream": true` and without `stream_options`, or with `null` there, gets
     `"stream_options": {"include_usage": true}` as its last member, which counts. One with its own `stream_options` is
     not changed: if they lack `include_usage`, some servers report and others do not.
  2. The event is one with an object in one line `data:`, which has an empty list `choices` and an object `usage` (the
     name without escapes). It is removed with the empty line that ends it. If it has more than a report, as `timings`
     of llama.cpp, which come in another event without the option, only `usage` is removed.
  3. Only an event that may still be this one is held back, up to EVENT_BYTES_MAX; a longer one is passed on. Whatever
     the pieces are, the result is the same, and each byte is read a bounded number of times.
  4. An event that the end of the stream cuts off counts as if an empty line followed.
"""

from __future__ import annotations

import json
import re
from typing import Final, final

from mypy_extensions import i64

from activator.codec.json_edit import BodyEditor, ObjectEdit, ObjectEditor
from activator.codec.json_members import (
    ANY,
    EMPTY_LIST,
    ENDED,
    MISMATCH,
    NO_OBJECT,
    NULL,
    OBJECT,
    OPEN,
    TRUE,
    MemberWalk,
)
from activator.runtime.units import KIB

EVENT_BYTES_MAX: Final = 4 * KIB  # tokens of a longer report are not counted either (token_counts.py)

_OPTION: Final = b',"stream_options":{"include_usage":true}'
_REQUEST_MEMBERS: Final = {"stream": ANY, "stream_options": ANY}
_EVENT_MEMBERS: Final = {"choices": EMPTY_LIST, "usage": OBJECT}
# A client that did not ask for the report misses nothing if the event has no other members.
_REPORT_MEMBERS: Final = frozenset(
    {"id", "object", "created", "model", "choices", "usage", "system_fingerprint", "service_tier", "obfuscation"}
)
_WITHOUT_USAGE: Final = ObjectEdit(["usage"], ())
_DATA: Final = b"data:"
_USAGE: Final = b'"usage"'
_LINE_END: Final = re.compile(rb"(\r\n|\r|\n)")
_LF: Final = 0x0A
_CR: Final = 0x0D
_COLON: Final = 0x3A

# Kinds of the current line.
_START: Final = 0  # its first bytes may become the name `data`
_VALUE: Final = 1  # the value of `data`
_SKIPPED: Final = 2  # the line of another field

# What happens to a line feed that follows a carriage return.
_KEEP: Final = 0  # it belongs to the event that the carriage return belongs to
_PASS: Final = 1
_DROP: Final = 2


@final
class UsageOption(BodyEditor):
    """The edit that adds the option to one request body."""

    def __init__(self) -> None:
        self.is_added: bool = False
        self.is_wrapped: bool = False  # the filter has wrapped the request's client, to remove the event
        self._walk = MemberWalk(_REQUEST_MEMBERS)

    def feed(self, data: bytes) -> bytes:
        walk = self._walk
        if walk.state != OPEN:
            return data
        end = walk.feed(data, 0, len(data))
        if walk.state != ENDED or walk.kinds.get("stream") != TRUE or walk.kinds.get("stream_options", NULL) != NULL:
            return data
        self.is_added = True
        return data[:end] + _OPTION + data[end:]

    def finish(self) -> bytes:
        return b""


@final
class UsageEventRemoval:
    """The removal of the events that report tokens from one event stream."""

    def __init__(self) -> None:
        self._held: bytes = b""  # the beginning of an event, which may be a report
        self._walk = MemberWalk(_EVENT_MEMBERS)
        self._passes: bool = False  # the current event or comment is not a report
        self._in_comment: bool = False  # the current line is a comment between events
        self._has_data: bool = False  # the walk has begun
        self._has_begun: bool = False  # a line of the current event, other than a comment before it, has begun
        self._in_line: bool = False  # the current line is not empty
        self._line_kind: i64 = _START
        self._name: bytes = b""  # the first bytes of the line, while they may become `data:`
        self._after_cr: bool = False  # the last byte was a carriage return
        self._line_feed: i64 = _KEEP
        # In the current piece:
        self._written: list[bytes] = []
        self._start: i64 = 0  # the bytes before it are written or removed
        self._event: i64 = 0  # the current event begins here or in an earlier piece

    def feed(self, data: bytes) -> bytes:
        """Return the next piece without such events; an event that may be one follows later."""
        size: i64 = len(data)
        self._start = self._event = 0
        pos: i64 = self._skip_line_feed(data) if self._after_cr and size > 0 else 0
        ends = _LineEnds(data)
        while pos < size:
            end = ends.next(pos)
            if end > pos:
                self._take(data, pos, end, end < size)
            pos = self._end_line(data, end, size) if end < size else size
        return self._take_written(data, size)

    def finish(self) -> bytes:
        """Return the rest of a stream that ends within an event."""
        rest = None if self._passes else self._without_report(b"")
        held, self._held = self._held, b""
        return held if rest is None else rest

    # --- internals ---

    def _skip_line_feed(self, data: bytes) -> i64:
        """Return the position behind a line feed that belongs to the carriage return before it."""
        self._after_cr = False
        if data[0] != _LF:
            return 0
        self._event = 0 if self._line_feed == _KEEP else 1
        self._start = 1 if self._line_feed == _DROP else 0
        return 1

    def _take(self, data: bytes, pos: i64, end: i64, is_end: bool) -> None:
        """Process a part of a line, which is not empty. `is_end`: the line ends there."""
        self._in_line = True
        if self._passes:
            return
        if not self._has_begun and data[pos] == _COLON:
            self._passes = self._in_comment = True
            return
        self._has_begun = True
        if self._line_kind == _START:
            name = self._name + data[pos : pos + len(_DATA) - len(self._name)]
            pos += len(name) - len(self._name)
            if name == _DATA:
                self._line_kind = _VALUE
                self._passes = self._has_data or (is_end and data.find(_USAGE, pos, end) < 0)
                self._has_data = self._has_data or not self._passes
            elif _DATA.startswith(name):
                self._name = name
            else:
                self._line_kind = _SKIPPED
        if self._line_kind == _VALUE and not self._passes:
            walk = self._walk
            if walk.state == OPEN:
                pos = walk.feed(data, pos, end) + 1
            has_more = walk.state == ENDED and pos < end and len(data[pos:end].strip(b" \t")) > 0
            self._passes = has_more or walk.state in (NO_OBJECT, MISMATCH)

    def _end_line(self, data: bytes, end: i64, size: i64) -> i64:
        """Process the line end at `end`, and the event that it may end; return the position behind it."""
        pos = end + 1
        if data[end] == _CR:
            self._after_cr = pos == size
            if pos < size and data[pos] == _LF:
                pos += 1
        is_end = not self._in_line
        self._in_line = False
        self._line_kind = _START
        self._name = b""
        self._line_feed = _KEEP
        rest = self._without_report(data[self._event : end]) if is_end and not self._passes else None
        if rest is not None:
            self._written.append(data[self._start : self._event])
            if rest:
                self._written.append(rest + data[end:pos])
            self._held = b""
            self._start = pos
            self._line_feed = _PASS if rest else _DROP
            self._begin_event(pos)
        elif is_end or self._in_comment:
            self._release()
            self._line_feed = _PASS
            self._begin_event(pos)
        return pos

    def _begin_event(self, pos: i64) -> None:
        """Begin an event, or a comment between events, at `pos` of the current piece."""
        self._event = pos
        self._passes = self._in_comment = self._has_begun = False
        if self._has_data:
            self._has_data = False
            self._walk = MemberWalk(_EVENT_MEMBERS)

    def _release(self) -> None:
        """Write the part of the event in earlier pieces; nothing of this piece is written yet."""
        if self._held:
            self._written.append(self._held)
            self._held = b""

    def _take_written(self, data: bytes, size: i64) -> bytes:
        """Return the edited form of the piece, and hold back the event that may be removed."""
        event = self._event
        if self._passes or len(self._held) + size - event > EVENT_BYTES_MAX:
            self._passes = True
            self._release()
            event = size
        if event == size and self._start == 0 and not self._written:
            return data
        written, self._written = self._written, []
        written.append(data[self._start : event])
        if event < size:
            self._held += data[event:]
        return written[0] if len(written) == 1 else b"".join(written)

    def _without_report(self, text: bytes) -> bytes | None:
        """Return the event that ends with `text` without its report, mostly empty; None if it has none."""
        walk = self._walk
        if (
            walk.state != ENDED
            or len(walk.kinds) != len(_EVENT_MEMBERS)
            or len(self._held) + len(text) > EVENT_BYTES_MAX
        ):
            return None
        parts = _LINE_END.split(self._held + text)  # lines, and between them their ends
        (index,) = [number for number, line in enumerate(parts) if line.startswith(_DATA)]
        data = parts[index]
        if _USAGE not in data:
            return None
        try:
            event = json.loads(data[len(_DATA) :].decode())
        except (ValueError, RecursionError):
            return None
        if not isinstance(event, dict) or event.get("choices") != [] or not isinstance(event.get("usage"), dict):
            return None
        if event.keys() <= _REPORT_MEMBERS:
            return b""
        editor = ObjectEditor(_WITHOUT_USAGE)
        parts[index] = _DATA + editor.feed(data[len(_DATA) :]) + editor.finish()
        return b"".join(parts)


@final
class _LineEnds:
    """The ends of lines in one piece, each of which is searched for once."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._line_feed: i64 = -1  # the next one
        self._carriage_return: i64 = -1

    def next(self, pos: i64) -> i64:
        """Return the position of the first line end from `pos` on; the size of the piece if there is none."""
        if self._line_feed < pos:
            self._line_feed = self._find(b"\n", pos)
        if self._carriage_return < pos:
            self._carriage_return = self._find(b"\r", pos)
        return min(self._line_feed, self._carriage_return)

    def _find(self, mark: bytes, pos: i64) -> i64:
        """Return the position of the mark from `pos` on; the size of the piece if there is none."""
        found: i64 = self._data.find(mark, pos)
        return len(self._data) if found < 0 else found
