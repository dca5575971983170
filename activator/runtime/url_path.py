"""Paths of URLs as all their readers understand them: what a rule is compared with, and what a pod is sent.

Rules
  1. Empty segments and dot segments are resolved, and percent-encoded letters, digits, `-`, `.`, `_` and `~` decoded
     (RFC 3986 6.2.2). A pod is sent the path so: nobody behind us resolves it to another one.
  2. To compare, other printable characters are decoded as well, except those that delimit: a pod decodes them, too.
  3. Some servers take an encoded slash, or a backslash, for a slash, and leave out of a segment what follows a
     semicolon. `other_reading` is how they read the path. Where it would lead to another revision the request is
     refused: whoever asks for that has found out that proxy and pod differ.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

_UNRESERVED: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_COMPARED: Final = frozenset(range(0x21, 0x7F)) - frozenset(b"/\\%?#")
_SAFE: Final = "/%!$&'()*+,;=:@~"  # what a path may hold as it is


def normal_prefix(text: str) -> bytes:
    """How a prefix is compared, of what a user has written: without a slash at its end; empty for /."""
    return for_comparison(quote(text, safe=_SAFE).encode()).rstrip(b"/")


def is_plain(path: bytes) -> bool:
    """It is normal already, and every server reads it in the same way."""
    return b"%" not in path and b"/." not in path and b"//" not in path and b";" not in path


def to_send(path: bytes) -> bytes:
    """What a pod is sent."""
    return _resolved(path, _UNRESERVED, False)


def for_comparison(path: bytes) -> bytes:
    """What prefixes are compared with."""
    return _resolved(path, _COMPARED, False)


def other_reading(path: bytes) -> bytes:
    """The same as servers have it that know more delimiters."""
    slashed = path.replace(b"%2f", b"/").replace(b"%2F", b"/").replace(b"%5c", b"/").replace(b"%5C", b"/")
    return _resolved(slashed.replace(b"\\", b"/"), _COMPARED, True)


def without_segments(path: bytes, count: int) -> bytes:
    """A path without its first `count` segments; / where nothing is left."""
    place = 0
    for _ in range(count):
        place = path.find(b"/", place + 1)
        if place < 0:
            return b"/"
    return path[place:]


def _resolved(path: bytes, decoded: frozenset[int], drops_parameters: bool) -> bytes:
    kept: list[bytes] = []
    last = b""
    for segment in path.split(b"/"):
        last = _unescaped(segment, decoded) if b"%" in segment else segment
        if drops_parameters and b";" in last:
            last = last.partition(b";")[0]
        if last == b"..":
            if kept:
                kept.pop()
        elif last not in {b"", b"."}:
            kept.append(last)
    if kept and last in {b"", b".", b".."}:
        kept.append(b"")
    return b"/" + b"/".join(kept)


def _unescaped(segment: bytes, decoded: frozenset[int]) -> bytes:
    """With the escapes of `decoded` bytes decoded, and the others in capitals. What is no escape stays."""
    first, *parts = segment.split(b"%")
    made = [first]
    for part in parts:
        digits = part[:2]
        if len(digits) == 2 and not digits.translate(None, b"0123456789abcdefABCDEF"):
            byte = int(digits, 16)
            made.append((bytes([byte]) if byte in decoded else b"%" + digits.upper()) + part[2:])
        else:
            made.append(b"%" + part)
    return b"".join(made)
