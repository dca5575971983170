"""The timeline of a group: the states of its programs in the last hour, for the live page."""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from activator.control_plane.groups.counts import ProgramCounts

TIMELINE_S: Final = 3_600.0  # older changes are forgotten
CHANGES_MAX: Final = 500  # kept changes of one group; a faster succession of swaps is shown for less time

LOADING: Final = "loading"
SERVING: Final = "serving"
LEAVING: Final = "leaving"
ASLEEP: Final = "asleep"
NOTHING: Final = ""


def state_of(counts: ProgramCounts) -> str:
    """Return the state of a revision with these programs: that of the program which does most."""
    if counts.ready:
        return SERVING
    if counts.started:
        return LOADING
    if counts.leaving or counts.stopping_asleep:
        return LEAVING
    return ASLEEP if counts.sleeping else NOTHING


class Timeline:
    """The changes of the states of all revisions of one group."""

    def __init__(self) -> None:
        self._changes: deque[tuple[float, str, str]] = deque()  # time, revision and its new state
        self._states: dict[str, str] = {}  # the present ones
        self._before: dict[str, str] = {}  # those before the first change that is kept
        self._since_s = 0.0  # earlier states are forgotten

    def record(self, key: str, counts: ProgramCounts, now_s: float) -> None:
        """Record the state of a revision with these present programs, if it has changed."""
        state = state_of(counts)
        if self._states.get(key, NOTHING) == state:
            return
        self._states[key] = state
        if state == NOTHING:
            del self._states[key]
        self._changes.append((now_s, key, state))
        self._forget(now_s)

    def shown(self, now_s: float) -> list[dict[str, Any]]:
        """Return a row for each revision, in the order of their names: its `spans`, the oldest first.

        Each span has a state, and the ages of its begin and its end in seconds; the present one ends at 0.
        """
        self._forget(now_s)
        rows: dict[str, list[dict[str, Any]]] = {}
        open_spans = {key: (state, self._since_s) for key, state in self._before.items()}
        for at_s, key, state in [*self._changes, *((now_s, key, NOTHING) for key in self._states)]:
            before, from_s = open_spans.pop(key, (NOTHING, at_s))
            if before != NOTHING:
                ages = {"from_age_s": round(now_s - from_s, 1), "to_age_s": round(now_s - at_s, 1)}
                rows.setdefault(key, []).append({"state": before, **ages})
            open_spans[key] = (state, at_s)
        return [{"revision": key, "spans": spans} for key, spans in sorted(rows.items())]

    def _forget(self, now_s: float) -> None:
        """Drop changes that are too old or too many; `_before` keeps the state that the last of them has set."""
        oldest_s = now_s - TIMELINE_S
        self._since_s = max(self._since_s, oldest_s)
        while self._changes and (self._changes[0][0] < oldest_s or len(self._changes) > CHANGES_MAX):
            at_s, key, state = self._changes.popleft()
            self._since_s = max(self._since_s, at_s)
            self._before[key] = state
            if state == NOTHING:
                del self._before[key]
