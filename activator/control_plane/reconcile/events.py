"""Writes events on an Activation (events.k8s.io/v1): reported decisions, limited in rate and folded into series.

Rules
  1. An event that is repeated within SERIES_S is the same event: its count grows, by a patch at most every
     SERIES_PATCH_S. A count that must wait for that is patched when it is due, in a pass that is requested for it.
  2. Each object has a budget of new events: EVENTS_BURST at once, then one every EVENT_REFILL_S. Events beyond the
     budget are counted and not sent.
  3. An event that the API refuses is not retried: it is counted as failed, and the status has the same information.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, final

from activator.control_plane.reconcile import wire
from activator.control_plane.reconcile.api import Json, not_found
from activator.control_plane.reconcile.desired import Desired, EventSpec
from activator.control_plane.reconcile.report import UNCHANGED, Component, ComponentResult, Result
from activator.control_plane.reconcile.rights import EVENTS
from activator.control_plane.reconcile.run import ReconcileRun
from activator.control_plane.reconcile.writer import MANAGERS
from activator.runtime.clock import Now

SERIES_S: Final = 360.0  # an event that is repeated within this time belongs to the series
SERIES_PATCH_S: Final = 60.0  # between two writes of a series' count
SERIES_MAX: Final = 4_096  # remembered series; the oldest is forgotten
EVENTS_BURST: Final = 10  # new events of one object at once
EVENT_REFILL_S: Final = 30.0  # until the budget has one more event
EVENTS_PENDING_MAX: Final = 16  # kinds of events of one object that wait for its pass
NOTE_LENGTH_MAX: Final = 1_024  # characters that the API accepts

REPORTING_CONTROLLER: Final = "activator.dev/activator"

log = logging.getLogger("activator.kubernetes")

SeriesKey = tuple[str, str, str, bool]


class Series:
    """One event and its count. `written`: the count that the API knows."""

    __slots__ = ("count", "event_name", "last_s", "wall_s", "written", "written_s")

    def __init__(self, event_name: str, now_s: float, wall_s: float) -> None:
        self.event_name = event_name
        self.count = self.written = 1
        self.last_s = self.written_s = now_s
        self.wall_s = wall_s


class PendingEvents:
    """The pending events of one object. The latest Desired replaces earlier ones, but their events are kept here."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str, bool], tuple[EventSpec, int]] = {}

    def __bool__(self) -> bool:
        return bool(self._counts)

    def add(self, events: tuple[EventSpec, ...]) -> int:
        """Add events; return how many were dropped because too many kinds are pending."""
        dropped = 0
        for event in events:
            kind = (event.reason, event.action, event.warning)
            _, count = self._counts.get(kind, (event, 0))
            if not count and len(self._counts) >= EVENTS_PENDING_MAX:
                dropped += 1
            else:
                self._counts[kind] = (event, count + 1)
        return dropped

    def take(self) -> list[tuple[EventSpec, int]]:
        """Return and remove the latest event of each kind, with its count."""
        counts, self._counts = self._counts, {}
        return list(counts.values())


@final
class EventComponent:
    """The component that writes events. `instance` names this process. `dropped_total`: events beyond a budget."""

    component = Component.EVENTS

    def __init__(self, instance: str, now: Now, wall_s: Callable[[], float]) -> None:
        self._instance = instance[:128]
        self._now = now
        self._wall_s = wall_s
        self._series: OrderedDict[SeriesKey, Series] = OrderedDict()
        self._unwritten: dict[str, set[SeriesKey]] = {}  # by UID: series with an unwritten count
        self._budgets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # by UID: tokens, and their time
        self._pending: dict[str, PendingEvents] = {}
        self.dropped_total = 0

    def add(self, desired: Desired) -> None:
        """Queue the events of `desired` for its next pass."""
        if desired.events:
            self.dropped_total += self._pending.setdefault(desired.key, PendingEvents()).add(desired.events)

    def forget(self, key: str, uid: str) -> None:
        """Forget the events of an Activation that was removed."""
        self._pending.pop(key, None)
        for series_key in self._unwritten.pop(uid, ()):
            self._series.pop(series_key, None)
        self._budgets.pop(uid, None)

    def has_work(self, run: ReconcileRun) -> bool:
        """Return True if events are pending, or a count is unwritten; `run` returns when the count is due."""
        return run.desired.key in self._pending or run.desired.uid in self._unwritten

    async def run(self, run: ReconcileRun) -> ComponentResult:
        """Write the pending events and the counts that are due."""
        pending = self._pending.pop(run.desired.key, None)
        outcome = UNCHANGED
        for event, count in pending.take() if pending is not None else ():
            if await self._report(run, event, count):
                outcome = ComponentResult(Result.WRITTEN)
        for key in list(self._unwritten.get(run.desired.uid, ())):
            series = self._series.get(key)
            if series is None or series.count == series.written:
                self._drop_unwritten(key)
            elif self._now() - series.written_s >= SERIES_PATCH_S:
                await self._patch(run, key, series)
                outcome = ComponentResult(Result.WRITTEN)
        due_s = self._due_in_s(run.desired.uid)
        return outcome if due_s is None else ComponentResult(outcome.result, again_in_s=due_s)

    async def _report(self, run: ReconcileRun, event: EventSpec, count: int) -> bool:
        """Add the event to its series, or create it if the budget allows; return True if it was created."""
        now_s, uid = self._now(), run.desired.uid
        key = (uid, event.reason, event.action, event.warning)
        series = self._series.get(key)
        if series is not None and now_s - series.last_s < SERIES_S:
            series.count += count
            series.last_s, series.wall_s = now_s, self._wall_s()
            self._unwritten.setdefault(uid, set()).add(key)
            return False
        if not self._take_budget(uid, now_s):
            self.dropped_total += 1
            return False
        return await self._create(run, key, event, count)

    async def _create(self, run: ReconcileRun, key: SeriesKey, event: EventSpec, count: int) -> bool:
        """Create the event and its series; return False if the API refuses."""
        wall_s = self._wall_s()
        name = f"{run.desired.name[:230]}.{int(wall_s * 1e6):016x}{len(self._series) & 0xFFF:03x}"
        body = self._body(run.desired, event, name, wall_s)
        call = run.writer.api.create(EVENTS.collection(run.desired.namespace), body, MANAGERS[self.component])
        try:
            await run.writer.counted(self.component, call)
        except Exception as error:
            log.warning("%s: the event %s could not be written: %s", run.desired.key, event.reason, error)
            return False
        series = Series(name, self._now(), wall_s)
        series.count = count
        self._series[key] = series
        self._series.move_to_end(key)
        if count > 1:
            self._unwritten.setdefault(key[0], set()).add(key)
        if len(self._series) > SERIES_MAX:
            self._drop_unwritten(self._series.popitem(last=False)[0])
        return True

    async def _patch(self, run: ReconcileRun, key: SeriesKey, series: Series) -> None:
        """Write the count of a series."""
        count = series.count
        patch: Json = {"series": {"count": count, "lastObservedTime": wire.rfc3339_micro(series.wall_s)}}
        path = EVENTS.path(run.desired.namespace, series.event_name)
        series.written, series.written_s = count, self._now()  # even if it fails: the next patch has the count too
        self._drop_unwritten(key)
        try:
            call = run.writer.api.merge_patch(path, patch, MANAGERS[self.component])
            await run.writer.counted(self.component, call)
        except Exception as error:
            if not_found(error):  # the API keeps events for an hour
                self._series.pop(key, None)
            else:
                log.warning("%s: the count of the event %s could not be written: %s", run.desired.key, key[1], error)

    def _drop_unwritten(self, key: SeriesKey) -> None:
        """Remove the series from those with an unwritten count."""
        unwritten = self._unwritten.get(key[0])
        if unwritten is not None:
            unwritten.discard(key)
            if not unwritten:
                del self._unwritten[key[0]]

    def _due_in_s(self, uid: str) -> float | None:
        """Return the seconds until a count of this object is due; None: none is."""
        written = [self._series[key].written_s for key in self._unwritten.get(uid, ()) if key in self._series]
        return max(min(written) + SERIES_PATCH_S - self._now(), 0.0) if written else None

    def _take_budget(self, uid: str, now_s: float) -> bool:
        """Take one event from the budget of an object; return False if the budget is used up."""
        tokens, since_s = self._budgets.get(uid, (float(EVENTS_BURST), now_s))
        tokens = min(tokens + (now_s - since_s) / EVENT_REFILL_S, EVENTS_BURST)
        allowed = tokens >= 1.0
        self._budgets[uid] = (tokens - allowed, now_s)
        self._budgets.move_to_end(uid)
        if len(self._budgets) > SERIES_MAX:
            self._budgets.popitem(last=False)
        return allowed

    def _body(self, desired: Desired, event: EventSpec, name: str, wall_s: float) -> Json:
        return {
            "apiVersion": EVENTS.api_version,
            "kind": "Event",
            "metadata": {"name": name, "namespace": desired.namespace},
            "eventTime": wire.rfc3339_micro(wall_s),
            "reportingController": REPORTING_CONTROLLER,
            "reportingInstance": self._instance,
            "action": event.action[:128],
            "reason": event.reason[:128],
            "regarding": {
                "apiVersion": desired.owner.api_version,
                "kind": desired.owner.kind,
                "namespace": desired.namespace,
                "name": desired.name,
                "uid": desired.uid,
            },
            "note": event.note[:NOTE_LENGTH_MAX],
            "type": "Warning" if event.warning else "Normal",
        }
