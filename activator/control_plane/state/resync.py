"""Revisions of which the state worker may have lost something, until all of it has been said again.

An exception outside of any one change may hit the worker with changes in its hands, or effects that were committed and
not sent. What exactly is lost nobody knows. So all of that revision is made anew from the model (its table, its
probes), and its source submits all that it knows.
"""

from __future__ import annotations

from typing import NamedTuple


class _Entry(NamedTuple):
    cause: str
    not_before_s: float


class Resync:
    """By revision; each until `done`."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def note(self, key: str, cause: str) -> None:
        """At once, also where it was put off."""
        self._entries[key] = _Entry(cause, 0.0)

    def due(self, now_s: float) -> list[tuple[str, str]]:
        """Revisions and causes."""
        return [(key, one.cause) for key, one in self._entries.items() if one.not_before_s <= now_s]

    def put_off(self, key: str, until_s: float) -> None:
        """It could not be said again: not before then."""
        self._entries[key] = _Entry(self._entries[key].cause, until_s)

    def done(self, key: str) -> None:
        self._entries.pop(key, None)
