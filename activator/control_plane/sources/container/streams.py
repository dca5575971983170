"""Parsers for the streams of an engine: the output of containers and lines of JSON. No I/O, and bounded memory."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

from activator.runtime.units import MIB

LINE_BYTES_MAX: Final = MIB  # an event, or a progress message of a pull

_HEADER_BYTES: Final = 8
_STREAMS: Final = {0: "stdout", 1: "stdout", 2: "stderr"}
_LINES: Final = re.compile(rb"[^\n]*\n|[^\n]+")
_TIME: Final = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)")
_TIME_BYTES_MAX: Final = 35  # with nanoseconds and a zone
_SECOND_NS: Final = 1_000_000_000
_WHOLE: Final = 1 << 62  # more bytes than a message has


class NoStreamError(Exception):
    """The stream is malformed."""


class Piece(NamedTuple):
    """A part of one message of the output; `begins` and `ends`: it has the message's first or last byte."""

    stream: str
    data: bytes
    begins: bool
    ends: bool


class Demultiplexer:
    """Parser for the output of a container without a terminal: frames of both streams, each with a header of 8 bytes.

    A frame is a message: the engines write one for each entry of their log.
    """

    def __init__(self) -> None:
        self._header = b""
        self._stream = ""
        self._frame_left = 0  # bytes left in the frame
        self._begins = False  # no byte of the frame has been read

    def feed(self, data: bytes) -> Iterator[Piece]:
        """Yield the pieces that `data` holds. Raises NoStreamError."""
        position = 0
        while position < len(data):
            if self._frame_left:
                piece = data[position : position + self._frame_left]
                position += len(piece)
                self._frame_left -= len(piece)
                begins, self._begins = self._begins, False
                yield Piece(self._stream, piece, begins, not self._frame_left)
                continue
            taken = data[position : position + _HEADER_BYTES - len(self._header)]
            position += len(taken)
            self._header += taken
            if len(self._header) == _HEADER_BYTES:
                self._begin_frame(self._header)
                self._header = b""

    def _begin_frame(self, header: bytes) -> None:
        stream = _STREAMS.get(header[0])
        if stream is None or header[1:4] != b"\0\0\0":
            raise NoStreamError("output that is not in frames")
        self._stream = stream
        self._frame_left = int.from_bytes(header[4:], "big")
        self._begins = True


class TerminalLines:
    """Parser for the output of a container with a terminal: one stream without frames, in which a line is a message."""

    def __init__(self) -> None:
        self._begins = True

    def feed(self, data: bytes) -> Iterator[Piece]:
        """Yield the pieces that `data` holds."""
        for line in _LINES.findall(data):
            begins, self._begins = self._begins, line.endswith(b"\n")
            yield Piece("stdout", line, begins, self._begins)


class LogPosition:
    """The position up to which the output of one container has been read, to resume after a broken connection.

    Engines put the time in front of each message (`timestamps=1`), some of them in whole seconds: a position is the
    time of the last message of each stream, and the number of messages that had this time. What an engine sends again
    up to there is dropped. A message without a time always passes.
    """

    def __init__(self) -> None:
        self._streams: dict[str, _StreamPosition] = {}
        self._latest_ns = 0  # the time of the newest message of both streams

    def since_s(self) -> float | None:
        """Return the Unix time from which to read again; None if no message had a time."""
        # Messages of the two streams may be out of order by a moment, and a time may be a whole second.
        return self._latest_ns // _SECOND_NS - 1.0 if self._latest_ns else None

    def handed(self) -> dict[str, tuple[int, int, int]]:
        """Return the position for another process of the activator.

        By stream: the time of its last message in Unix nanoseconds, how many messages had that time, and how many bytes
        of the last one were read (-1: all).
        """
        self.resume()
        return {name: one.handed() for name, one in self._streams.items()}

    def restore(self, positions: Mapping[str, tuple[int, int, int]]) -> None:
        """Continue at the position that a former process of the activator has handed over."""
        for name, position in positions.items():
            restored = self._streams[name] = _StreamPosition(*position)
            self._latest_ns = max(self._latest_ns, restored.read_ns)
        self.resume()

    def resume(self) -> None:
        """Expect messages from `since_s` on, some of which are known."""
        for position in self._streams.values():
            position.resume()

    def unread_part(self, piece: Piece) -> bytes:
        """Return the part of a piece that has not been read before, without times; the position moves past it."""
        position = self._streams.get(piece.stream)
        if position is None:
            position = self._streams[piece.stream] = _StreamPosition()
        data = position.unread_part(piece)
        self._latest_ns = position.read_ns or self._latest_ns
        return data


class _StreamPosition:
    """The position in one of the two streams."""

    def __init__(self, last_ns: int = 0, count: int = 0, read_bytes: int = -1) -> None:
        self.read_ns = last_ns  # the time of the message that was read last, for the first time or again
        self._last_ns = last_ns  # time of the last message
        self._count = count  # messages with the time `_last_ns`
        self._prefix: bytes | None = None  # the beginning of a message whose time is not complete
        self._offset = -1  # in the message that is being read; -1: none is
        self._read_bytes = read_bytes  # bytes of the last message that were read, if a break cut it; -1: it is complete
        self._skipped_bytes = 0  # bytes still to be dropped from the message that is being read
        self._is_replay = False  # messages that were read before the break may be repeated
        self._replayed = 0  # replayed messages with the time `_last_ns`

    def handed(self) -> tuple[int, int, int]:
        return self._last_ns, self._count, self._read_bytes

    def resume(self) -> None:
        if self._skipped_bytes != _WHOLE:
            self._read_bytes = max(self._read_bytes, self._offset)
        self._prefix, self._offset, self._skipped_bytes = None, -1, 0
        self._is_replay, self._replayed = self._last_ns > 0, 0

    def unread_part(self, piece: Piece) -> bytes:
        data = piece.data
        if piece.begins:
            self._prefix = b""
        if self._prefix is not None:
            data = self._prefix + data
            position = data.find(b" ", 0, _TIME_BYTES_MAX + 1)
            if position < 0 and len(data) <= _TIME_BYTES_MAX and not piece.ends:
                self._prefix = data
                return b""
            self._prefix, self._offset = None, 0
            time_ns = nanoseconds_of(data[: max(position, 0)])
            if time_ns:
                data = data[position + 1 :]
            self._begin_message(time_ns)
        self._offset += len(data)
        dropped = min(self._skipped_bytes, len(data))
        if self._skipped_bytes != _WHOLE:
            self._skipped_bytes -= dropped
        if piece.ends:
            if self._skipped_bytes != _WHOLE:
                self._read_bytes = -1
            self._offset, self._skipped_bytes = -1, 0
        return data[dropped:]

    def _begin_message(self, time_ns: int) -> None:
        """Begin a message with this time; 0: it has none."""
        self.read_ns = time_ns
        if self._is_replay and time_ns:
            if time_ns < self._last_ns:
                self._skipped_bytes = _WHOLE
                return
            if time_ns == self._last_ns and self._replayed < self._count:
                self._replayed += 1
                is_last = self._replayed == self._count
                self._skipped_bytes = self._read_bytes if is_last and self._read_bytes >= 0 else _WHOLE
                return
        self._is_replay, self._read_bytes = False, -1
        if time_ns:
            self._count = self._count + 1 if time_ns == self._last_ns else 1
            self._last_ns = time_ns


def nanoseconds_of(time: bytes) -> int:
    """Return a time of RFC 3339 as Unix nanoseconds; 0 if `time` is malformed."""
    match = _TIME.fullmatch(time)
    if match is None:
        return 0
    try:
        seconds = datetime.fromisoformat(f"{match[1].decode()}{match[3].decode()}").timestamp()
    except (ValueError, OverflowError):
        return 0
    return int(seconds) * _SECOND_NS + int((match[2] or b"").ljust(9, b"0") or b"0")


class JsonLines:
    """A parser of consecutive JSON objects; white space between them may be missing."""

    def __init__(self) -> None:
        self._open = ""
        self._text = codecs.getincrementaldecoder("utf-8")("replace")  # a read may end in the middle of a character
        self._decoder = json.JSONDecoder()

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """Yield the objects that end in `data`. Raises NoStreamError."""
        *lines, self._open = (self._open + self._text.decode(data)).split("\n")
        for line in lines:
            yield from self._objects(line)
        if len(self._open) > LINE_BYTES_MAX:
            raise NoStreamError("a line that is too long")

    def end(self) -> Iterator[dict[str, Any]]:
        """Yield the last object, whose line is not terminated."""
        rest, self._open = self._open + self._text.decode(b"", final=True), ""
        yield from self._objects(rest)

    def _objects(self, line: str) -> Iterator[dict[str, Any]]:
        rest = line.strip()
        while rest:
            try:
                decoded, position = self._decoder.raw_decode(rest)
            except (ValueError, RecursionError):
                raise NoStreamError("a line that is not JSON") from None
            if isinstance(decoded, dict):
                yield decoded
            rest = rest[position:].lstrip()
