"""Edits that turn the client's request head into that for a pod: an ordered list, applied once per attempt.

Rules
  1. The client's head is never modified, so a retry or a fallback can neither lose nor repeat an edit.
  2. Edits are applied in order. Names are compared case-insensitively. Lines that no edit names keep their positions.
  3. A malicious head may contain thousands of fields; an edit costs one pass over the lines, however many names it has.
  4. A field that an edit removes or sets cannot return as a trailer, because some servers merge trailers into the head.
"""

from __future__ import annotations

import re
from typing import Final, final

from mypy_extensions import i64

from activator.codec.message import Fields, Headers, RequestHead

_TARGET: Final = re.compile(rb"[\x21-\x7e\x80-\xff]+")
_COLON: Final = ord(":")
_REMOVE: Final = 0
_SET: Final = 1
_APPEND: Final = 2
_UNCHANGED: Final = -2  # for the length of a body; -1 is an unknown length


@final
class FieldEdit:
    """One change of the fields; it can be created once and added to the edits of many requests."""

    def __init__(self, kind: i64, names: frozenset[bytes], line: bytes) -> None:
        self.kind = kind
        self.names = names
        self.line = line
        letters: i64 = 0
        for name in names:
            letters |= 1 << (name[0] & 31)
        # Fast checks: most lines differ in the first letter, or have the colon at another position.
        self._letters: i64 = letters
        sizes = {len(name) for name in names}
        self._size: i64 = sizes.pop() if len(sizes) == 1 else 0  # the size of every name; 0: the sizes differ

    def has(self, line: bytes) -> bool:
        """Return True if the edit names the field of this line."""
        if (self._letters >> (line[0] & 31)) & 1 == 0:
            return False
        size = self._size
        if size > 0:
            return len(line) > size and line[size] == _COLON and line[:size].lower() in self.names
        return line.partition(b":")[0].lower() in self.names


@final
class HeadEdits:
    """The differences between the request head of a client and that for a pod."""

    def __init__(self) -> None:
        self._edits: list[FieldEdit] = []
        self._target: bytes = b""  # empty: unchanged
        self._authority: bytes = b""  # empty: unchanged
        self._upgrade: bytes | None = None  # None: unchanged
        self._content_length: int = _UNCHANGED

    def copy(self) -> HeadEdits:
        """Return a copy, to which the edits of one attempt can be added."""
        other = HeadEdits()
        other._edits = self._edits.copy()
        other._target = self._target
        other._authority = self._authority
        other._upgrade = self._upgrade
        other._content_length = self._content_length
        return other

    def add(self, edit: FieldEdit) -> None:
        self._edits.append(edit)

    def remove(self, lowered_names: frozenset[bytes]) -> None:
        """Remove all fields with these names."""
        self._edits.append(removal(lowered_names))

    def set(self, name: bytes, value: bytes) -> None:
        """Replace the first field with this name and remove further ones; without any, add it before all fields.

        Raises ValueError if the name or the value contains CR, LF or NUL.
        """
        self._edits.append(replacement(name, value))

    def append(self, name: bytes, value: bytes) -> None:
        """Add a field after all others. Raises ValueError if the name or the value contains CR, LF or NUL."""
        self._edits.append(addition(name, value))

    def set_target(self, target: bytes) -> None:
        """Set another target (path and query) for the pod. Raises ValueError for spaces and control characters."""
        if _TARGET.fullmatch(target) is None:
            raise ValueError(f"{target!r} is not a valid request target")
        self._target = target

    def set_host(self, authority: bytes) -> None:
        """Set another host for the pod, in Host and `:authority`."""
        self.set(b"Host", authority)
        self._authority = authority

    def set_upgrade(self, protocols: bytes) -> None:
        """Offer the pod these protocols: a comma-separated list in lower case; empty for none.

        Raises ValueError for CR, LF or NUL.
        """
        _line(b"Upgrade", protocols)
        self._upgrade = protocols

    def set_content_length(self, length: int) -> None:
        """Set another length of the body, in bytes; -1: it is not known yet."""
        self._content_length = length

    def apply(self, head: RequestHead) -> RequestHead:
        """Return the head for the pod, or `head` itself if there are no edits."""
        if not self._edits and not self._target and self._upgrade is None and self._content_length == _UNCHANGED:
            return head
        edited = head.copy()
        if self._target:
            edited.target = self._target
        if self._authority:
            edited.authority = self._authority
        if self._upgrade is not None:
            edited.upgrade = self._upgrade
        if self._content_length != _UNCHANGED:
            edited.content_length = self._content_length
        if self._edits:
            edited.headers = edited_fields(head.headers, self._edits)
        return edited

    def trailers(self, trailers: Headers) -> Headers:
        """Return the client's trailers without those that a server could take for a field that is removed or set."""
        shapes = {shape_of(name) for edit in self._edits for name in edit.names}
        return [pair for pair in trailers if shape_of(pair[0].lower()) not in shapes]


def shape_of(lowered_name: bytes) -> bytes:
    """Return the form of a name in servers that pass fields as environment variables (CGI, WSGI), with `_` for `-`."""
    return lowered_name.replace(b"-", b"_")


def removal(lowered_names: frozenset[bytes]) -> FieldEdit:
    """Return the edit that removes all fields with these names."""
    return FieldEdit(_REMOVE, lowered_names, b"")


def addition(name: bytes, value: bytes) -> FieldEdit:
    """Return the edit that adds a field after all others. Raises ValueError for CR, LF or NUL."""
    return FieldEdit(_APPEND, frozenset(), _line(name, value))


def replacement(name: bytes, value: bytes) -> FieldEdit:
    """Return the edit of `HeadEdits.set`. Raises ValueError for CR, LF or NUL."""
    return FieldEdit(_SET, frozenset((name.lower(),)), _line(name, value))


def edited_fields(fields: Fields, edits: list[FieldEdit]) -> Fields:
    """Return the edited fields; `fields` itself is not modified."""
    lines = fields.block.split(b"\r\n")
    del lines[0]  # the block begins with a line end
    for edit in edits:
        lines = _edited(lines, edit)
    edited = Fields(b"\r\n" + b"\r\n".join(lines) if lines else b"")
    edited.never_indexed = fields.never_indexed
    return edited


def _line(name: bytes, value: bytes) -> bytes:
    """Return the line of a field, without its end. Raises ValueError for CR, LF or NUL."""
    line = b"%b: %b" % (name, value)
    if b"\r" in line or b"\n" in line or b"\0" in line:
        raise ValueError(f"CR, LF or NUL in the header field {name!r}")
    return line


def _edited(lines: list[bytes], edit: FieldEdit) -> list[bytes]:
    """Return the lines after `edit`; an addition modifies `lines` itself."""
    if edit.kind == _APPEND:
        lines.append(edit.line)
        return lines
    first: i64 = -1
    kept: list[bytes] = []
    for line in lines:
        if not edit.has(line):
            kept.append(line)
        elif first < 0:
            first = len(kept)
    if edit.kind == _SET:
        kept.insert(max(first, 0), edit.line)
    return kept
