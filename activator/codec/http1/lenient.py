"""A parser that normalises the response heads of old servers for the strict parser, if a revision asks for it.

Rules
  1. Four deviations are repaired in a response's head: lines that end with a bare LF (RFC 9112 2.2), empty lines before
     it, continued lines (5.2), and whitespace between a name and its colon, which a proxy must remove (5.1). Any other
     error is refused as in strict parsing.
  2. Bodies are not changed: the framing of a chunked body must be valid.
  3. A head is buffered until it is complete, with the same bound as in strict parsing.
"""

from __future__ import annotations

import re
from typing import Final

from activator.codec.http1.response import RESPONSE_HEAD_BYTES_MAX, ResponseParser, ResponseSink
from activator.runtime.errors import WireError
from activator.runtime.reasons import Reason

_HEAD_END: Final = re.compile(rb"\n\r?\n")
_OVERLAP: Final = 2  # bytes of the head's end that an earlier piece may contain


class LenientResponseParser(ResponseParser):
    """The parser of the responses on one connection to an old server."""

    def __init__(self, sink: ResponseSink) -> None:
        super().__init__(sink)
        self._partial: bytes = b""  # the incomplete head
        self._searched: int = 0  # the end of the head does not begin before this offset

    def retire(self) -> None:
        self._partial = b""
        super().retire()

    def _is_repeatable(self) -> bool:
        return False

    def _read_head(self, data: bytes, pos: int) -> int:
        known_bytes = len(self._partial)
        begun = self._partial + data[pos:]
        if known_bytes == 0:
            blank = len(begun) - len(begun.lstrip(b"\r\n"))
            begun = begun[blank:]
            pos += blank
        match = _HEAD_END.search(begun, self._searched)
        if match is None:
            if len(begun) > RESPONSE_HEAD_BYTES_MAX:
                raise WireError(Reason.BAD_RESPONSE, "the head is too large")
            self._partial = begun
            self._searched = max(len(begun) - _OVERLAP, 0)
            return len(data)
        self._partial = b""
        self._searched = 0
        head = normalised(begun[: match.end()])
        if super()._read_head(head + begun[match.end() :], 0) != len(head):
            raise WireError(Reason.BAD_RESPONSE, "the head does not end where it should")
        return pos + match.end() - known_bytes


def normalised(head: bytes) -> bytes:
    """Return a head of an old server, which includes its last, empty line, in the form of RFC 9112."""
    lines: list[bytes] = []
    for line_and_cr in head.split(b"\n"):
        line = line_and_cr.removesuffix(b"\r")
        if line[:1] in {b" ", b"\t"} and len(lines) > 1:
            lines[-1] = b"%b %b" % (lines[-1].rstrip(b" \t"), line.strip(b" \t"))
            continue
        name, colon, value = line.partition(b":")
        lines.append(name.rstrip(b" \t") + colon + value if lines and colon else line)
    return b"\r\n".join(lines)
