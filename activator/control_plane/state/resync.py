"""The revisions of which the state worker may have lost changes, each until its source is to submit it again.

An exception outside of any one change may lose the changes in the worker's hands, and effects that were committed but
not sent. It is unknown which. So each of these revisions is rebuilt from the model (its table, its probes), and its
source submits its whole state.
"""

from __future__ import annotations

from typing import NamedTuple


class _Entry(NamedTuple):
    cause: str
    not_before_s: float


class Resync:
    """The revisions to resynchronize, each until `done`."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, key: str, cause: str) -> None:
        """Add a revision that is due at once, also if it was postponed."""
        self._entries[key] = _Entry(cause, 0.0)

    def due(self, now_s: float) -> list[tuple[str, str]]:
        """Return the revisions that are due, with causes."""
        return [(key, entry.cause) for key, entry in self._entries.items() if entry.not_before_s <= now_s]

    def postpone(self, key: str, until_s: float) -> None:
        """Postpone a revision whose resynchronization failed."""
        self._entries[key] = _Entry(self._entries[key].cause, until_s)

    def done(self, key: str) -> None:
        self._entries.pop(key, None)
