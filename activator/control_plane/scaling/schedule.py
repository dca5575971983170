"""Minimum replicas by weekday and hour: the minimum at a time, and when it may change.

Rules
  1. Days and hours are local times of the entry's time zone (IANA name). On days on which clocks change, hours keep
     their local meaning: `until: 06:00` is six o'clock there, however many hours after midnight.
  2. Hours from the evening to the morning belong to the day on which they begin.
  3. Of several entries the largest counts. The time is passed in as Unix seconds.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

import msgspec

from activator.config.model.scaling import WEEKDAYS, ScheduledScale

ZONES_MAX: Final = 256  # cached time zones
STEP_S: Final = 1800.0  # step on days on which clocks change; offsets change at whole half hours

_DAY_MINUTES: Final = 1440


class ScheduledMinimum(msgspec.Struct, frozen=True):
    """One entry; minutes since midnight."""

    min: int
    weekdays: tuple[int, ...]  # Monday is 0
    from_minute: int
    until_minute: int  # exclusive; of the next day if it is not after `from_minute`
    time_zone: str


def scheduled(entry: ScheduledScale) -> ScheduledMinimum:
    """Convert an entry of the configuration, which has been checked."""
    days = tuple(sorted(WEEKDAYS.index(day) for day in entry.days))
    return ScheduledMinimum(entry.min, days, _minute(entry.from_), _minute(entry.until), entry.time_zone)


def minimum_at(schedule: tuple[ScheduledMinimum, ...], wall_s: float) -> int:
    """Return the minimum at this time; 0 where no entry applies."""
    return max((entry.min for entry in schedule if _applies(entry, _local(entry.time_zone, wall_s))), default=0)


def next_change_s(schedule: tuple[ScheduledMinimum, ...], wall_s: float) -> float:
    """Return the earliest time at which the minimum may change, though it need not. There must be entries."""
    return min(_next_boundary_s(entry, wall_s) for entry in schedule)


def _applies(entry: ScheduledMinimum, local: datetime) -> bool:
    """Return True if the entry applies at this local time."""
    minute = local.hour * 60 + local.minute
    if entry.from_minute < entry.until_minute:
        return entry.from_minute <= minute < entry.until_minute and local.weekday() in entry.weekdays
    if minute >= entry.from_minute:
        return local.weekday() in entry.weekdays
    return minute < entry.until_minute and (local.weekday() - 1) % 7 in entry.weekdays


def _next_boundary_s(entry: ScheduledMinimum, wall_s: float) -> float:
    """Return the next begin or end of the entry, at most a day after `wall_s`."""
    zone = _zone(entry.time_zone)
    local = _local(entry.time_zone, wall_s)
    midnight = datetime(local.year, local.month, local.day)  # noqa: DTZ001 - the zone is set below
    earliest_s = wall_s + 86400.0
    for day in (0, 1):
        for minute in (entry.from_minute, entry.until_minute % _DAY_MINUTES):
            at = midnight + timedelta(days=day, minutes=minute)
            for fold in (0, 1):  # an hour that occurs twice begins twice
                at_s = at.replace(tzinfo=zone, fold=fold).timestamp()
                if wall_s < at_s < earliest_s:
                    earliest_s = at_s
    if _local(entry.time_zone, earliest_s).utcoffset() != local.utcoffset():
        earliest_s = min(earliest_s, (wall_s // STEP_S + 1.0) * STEP_S)  # the hour may not exist on that day
    return earliest_s


def _local(time_zone: str, wall_s: float) -> datetime:
    return datetime.fromtimestamp(wall_s, UTC).astimezone(_zone(time_zone))


@lru_cache(ZONES_MAX)
def _zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)


def _minute(text: str) -> int:
    hour, _, minute = text.partition(":")
    return int(hour) * 60 + int(minute)
