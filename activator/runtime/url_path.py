"""Normalisation of URL paths, for comparison with rules and for forwarding.

Rules
  1. Empty segments and dot segments are resolved, and percent-encoded letters, digits, `-`, `.`, `_` and `~` are
     decoded (RFC 3986 6.2.2). The path is forwarded in this form, so that no server behind the proxy resolves it
     differently.
  2. For comparison, other printable characters except delimiters are decoded as well, because a pod decodes them.
  3. Some servers treat an encoded slash, or a backslash, as a slash, and ignore the part of a segment behind a
     semicolon. `other_reading` is the path as they read it. If it would lead to another revision, the request is
     refused, because it may exploit the difference between proxy and pod.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

_UNRESERVED: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_COMPARED: Final = frozenset(range(0x21, 0x7F)) - frozenset(b"/\\%?#")
_SAFE: Final = "/%!$&'()*+,;=:@~"  # characters that a path may contain unencoded


def normal_prefix(text: str) -> bytes:
    """Return a user's prefix in the form for comparison, without a slash at its end; empty for /."""
    return for_comparison(quote(text, safe=_SAFE).encode()).rstrip(b"/")


def is_plain(path: bytes) -> bool:
    """Return True if the path is already normal and all servers read it in the same way."""
    return b"%" not in path and b"/." not in path and b"//" not in path and b";" not in path


def to_send(path: bytes) -> bytes:
    """Return the path to forward to a pod."""
    return _resolved(path, _UNRESERVED, False)


def for_comparison(path: bytes) -> bytes:
    """Return the path for the comparison with prefixes."""
    return _resolved(path, _COMPARED, False)


def other_reading(path: bytes) -> bytes:
    """Return the path for comparison as servers with more delimiters read it."""
    slashed = path.replace(b"%2f", b"/").replace(b"%2F", b"/").replace(b"%5c", b"/").replace(b"%5C", b"/")
    return _resolved(slashed.replace(b"\\", b"/"), _COMPARED, True)


def without_segments(path: bytes, count: int) -> bytes:
    """Return a path without its first `count` segments; / if none is left."""
    position = 0
    for _ in range(count):
        position = path.find(b"/", position + 1)
        if position < 0:
            return b"/"
    return path[position:]


def _resolved(path: bytes, decoded: frozenset[int], drops_parameters: bool) -> bytes:
    """Return the path without empty and dot segments, and with the escapes of the `decoded` bytes decoded."""
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
    """Decode the escapes of the `decoded` bytes, and write the others in capitals; keep malformed escapes."""
    first, *parts = segment.split(b"%")
    pieces = [first]
    for part in parts:
        digits = part[:2]
        if len(digits) == 2 and not digits.translate(None, b"0123456789abcdefABCDEF"):
            byte = int(digits, 16)
            pieces.append((bytes([byte]) if byte in decoded else b"%" + digits.upper()) + part[2:])
        else:
            pieces.append(b"%" + part)
    return b"".join(pieces)
