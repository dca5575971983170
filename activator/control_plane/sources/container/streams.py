"""Bytes of an engine's streams into what they carry: output, and lines of JSON. No I/O, and memory with a bound."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from typing import Any, Final

from activator.runtime.units import MIB

LINE_BYTES_MAX: Final = MIB  # of an event, or of a step of a pull

_HEADER_BYTES: Final = 8
_STREAMS: Final = {0: "stdout", 1: "stdout", 2: "stderr"}


class NoStreamError(Exception):
    """The bytes are not what they should be."""


class Demultiplexer:
    """Output of a container without a terminal: both streams in frames, each with a header of 8 bytes."""

    def __init__(self) -> None:
        self._header = b""
        self._stream = ""
        self._left = 0  # bytes of the frame

    def feed(self, data: bytes) -> Iterator[tuple[str, bytes]]:
        """The pieces that `data` holds, and whose they are. Raises NoStreamError."""
        place = 0
        while place < len(data):
            if self._left:
                piece = data[place : place + self._left]
                place += len(piece)
                self._left -= len(piece)
                yield self._stream, piece
                continue
            taken = data[place : place + _HEADER_BYTES - len(self._header)]
            place += len(taken)
            self._header += taken
            if len(self._header) == _HEADER_BYTES:
                self._begin(self._header)
                self._header = b""

    def _begin(self, header: bytes) -> None:
        stream = _STREAMS.get(header[0])
        if stream is None or header[1:4] != b"\0\0\0":
            raise NoStreamError("output that is not in frames")
        self._stream = stream
        self._left = int.from_bytes(header[4:], "big")


class JsonLines:
    """Objects, one after the other; white space between them may be missing."""

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
        """Yield the last object, whose line has no end."""
        rest, self._open = self._open + self._text.decode(b"", final=True), ""
        yield from self._objects(rest)

    def _objects(self, line: str) -> Iterator[dict[str, Any]]:
        rest = line.strip()
        while rest:
            try:
                found, place = self._decoder.raw_decode(rest)
            except (ValueError, RecursionError):
                raise NoStreamError("a line that is not JSON") from None
            if isinstance(found, dict):
                yield found
            rest = rest[place:].lstrip()
