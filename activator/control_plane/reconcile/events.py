"""Events on an Activation (events.k8s.io/v1): decisions worth telling, bounded in rate and folded into series.

Rules
  1. What is said again within SERIES_S is the same event: its count grows, by a patch at most every SERIES_PATCH_S.
     What is counted and not patched yet is patched then, in a pass that is asked for.
  2. Each object has a budget of new events: EVENTS_BURST at once, one every EVENT_REFILL_S after that. What is beyond
     it is counted and not sent.
  3. An event that the API refuses is not tried again: it is counted as failed, and what it says stands in the status.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, final

from activator.control_plane.reconcile import wire
from activator.control_plane.reconcile.api import Json, not_found
from activator.control_plane.reconcile.desired import Desired, EventSpec
from activator.control_plane.reconcile.report import UNCHANGED, Component, Outcome, Result
from activator.control_plane.reconcile.rights import EVENTS
from activator.control_plane.reconcile.run import Pass
from activator.control_plane.reconcile.writer import MANAGERS
from activator.runtime.clock import Now

SERIES_S: Final = 360.0  # what is said again within this is one series
SERIES_PATCH_S: Final = 60.0  # its count is written at most so often
SERIES_MAX: Final = 4_096  # that are remembered; the oldest is forgotten and begins anew
EVENTS_BURST: Final = 10  # new events of one object at once …
EVENT_REFILL_S: Final = 30.0  # … and one more after each of these
EVENTS_PENDING_MAX: Final = 16  # kinds of events of one object that wait for its pass
NOTE_LENGTH_MAX: Final = 1_024  # characters that the API takes

REPORTING_CONTROLLER: Final = "activator.dev/activator"

log = logging.getLogger("activator.kubernetes")

SeriesKey = tuple[str, str, str, bool]


class Series:
    """One event and how often it was said. `told`: how often of these the API knows."""

    __slots__ = ("count", "event_name", "last_s", "told", "told_s", "wall_s")

    def __init__(self, event_name: str, now_s: float, wall_s: float) -> None:
        self.event_name = event_name
        self.count = self.told = 1
        self.last_s = self.told_s = now_s
        self.wall_s = wall_s


class PendingEvents:
    """What waits to be told of one object: latest Desired wins, but no event of an earlier one is lost by that."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str, bool], tuple[EventSpec, int]] = {}

    def __bool__(self) -> bool:
        return bool(self._counts)

    def add(self, events: tuple[EventSpec, ...]) -> int:
        """How many were dropped: too many kinds wait already."""
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
        """The latest of each kind, and how often it was said."""
        counts, self._counts = self._counts, {}
        return list(counts.values())


@final
class EventComponent:
    """`instance` names this process, as its pod. `dropped_total`: beyond a budget."""

    component = Component.EVENTS

    def __init__(self, instance: str, now: Now, wall_s: Callable[[], float]) -> None:
        self._instance = instance[:128]
        self._now = now
        self._wall_s = wall_s
        self._series: OrderedDict[SeriesKey, Series] = OrderedDict()
        self._untold: dict[str, set[SeriesKey]] = {}  # by UID: series whose count the API does not know yet
        self._budgets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # by UID: tokens, and when
        self._pending: dict[str, PendingEvents] = {}
        self.dropped_total = 0

    def add(self, desired: Desired) -> None:
        """Its events are to be told by the next pass."""
        if desired.events:
            self.dropped_total += self._pending.setdefault(desired.key, PendingEvents()).add(desired.events)

    def forget(self, key: str, uid: str) -> None:
        """The Activation is gone."""
        self._pending.pop(key, None)
        for one in self._untold.pop(uid, ()):
            self._series.pop(one, None)
        self._budgets.pop(uid, None)

    def has_work(self, run: Pass) -> bool:
        """Also where a count is to be written later: the pass says when."""
        return run.desired.key in self._pending or run.desired.uid in self._untold

    async def run(self, run: Pass) -> Outcome:
        """Tell what is pending, and the counts that are due."""
        pending = self._pending.pop(run.desired.key, None)
        outcome = UNCHANGED
        for event, count in pending.take() if pending is not None else ():
            if await self._tell(run, event, count):
                outcome = Outcome(Result.WRITTEN)
        for key in list(self._untold.get(run.desired.uid, ())):
            series = self._series.get(key)
            if series is None or series.count == series.told:
                self._told(key)
            elif self._now() - series.told_s >= SERIES_PATCH_S:
                await self._patch(run, key, series)
                outcome = Outcome(Result.WRITTEN)
        due_s = self._due_in_s(run.desired.uid)
        return outcome if due_s is None else Outcome(outcome.result, again_in_s=due_s)

    async def _tell(self, run: Pass, event: EventSpec, count: int) -> bool:
        now_s, uid = self._now(), run.desired.uid
        key = (uid, event.reason, event.action, event.warning)
        series = self._series.get(key)
        if series is not None and now_s - series.last_s < SERIES_S:
            series.count += count
            series.last_s, series.wall_s = now_s, self._wall_s()
            self._untold.setdefault(uid, set()).add(key)
            return False
        if not self._may_tell(uid, now_s):
            self.dropped_total += 1
            return False
        return await self._create(run, key, event, count)

    async def _create(self, run: Pass, key: SeriesKey, event: EventSpec, count: int) -> bool:
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
            self._untold.setdefault(key[0], set()).add(key)
        if len(self._series) > SERIES_MAX:
            self._told(self._series.popitem(last=False)[0])
        return True

    async def _patch(self, run: Pass, key: SeriesKey, series: Series) -> None:
        count = series.count
        patch: Json = {"series": {"count": count, "lastObservedTime": wire.rfc3339_micro(series.wall_s)}}
        path = EVENTS.path(run.desired.namespace, series.event_name)
        series.told, series.told_s = count, self._now()  # also where it fails: the next one says it
        self._told(key)
        try:
            call = run.writer.api.merge_patch(path, patch, MANAGERS[self.component])
            await run.writer.counted(self.component, call)
        except Exception as error:
            if not_found(error):  # the API keeps events for an hour
                self._series.pop(key, None)
            else:
                log.warning("%s: the event %s could not be counted: %s", run.desired.key, key[1], error)

    def _told(self, key: SeriesKey) -> None:
        untold = self._untold.get(key[0])
        if untold is not None:
            untold.discard(key)
            if not untold:
                del self._untold[key[0]]

    def _due_in_s(self, uid: str) -> float | None:
        """Until a count of this object is to be written; None: none is."""
        told = [self._series[key].told_s for key in self._untold.get(uid, ()) if key in self._series]
        return max(min(told) + SERIES_PATCH_S - self._now(), 0.0) if told else None

    def _may_tell(self, uid: str, now_s: float) -> bool:
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
