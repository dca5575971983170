"""Minimum replicas by weekday and hour, on days of 23, 24 and 25 hours."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from activator.config.model.scaling import WEEKDAYS, ScheduledScale
from activator.control_plane.scaling.schedule import ScheduledMinimum, minimum_at, next_change_s, scheduled

BERLIN = "Europe/Berlin"  # clocks change on 2026-03-29 at 02:00 and on 2026-10-25 at 03:00


def entry(
    from_: str, until: str, days: str = "mon tue wed thu fri sat sun", zone: str = BERLIN, least: int = 2
) -> ScheduledMinimum:
    return scheduled(ScheduledScale(least, from_, until, days.split(), zone))


def at(text: str, zone: str = BERLIN, fold: int = 0) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold).timestamp()


def changes(schedule: tuple[ScheduledMinimum, ...], from_s: float, until_s: float) -> list[tuple[str, int]]:
    """What an autoscaler sees that steps at the times that it is given: local times in Berlin, and the minimum then."""
    seen = [(from_s, minimum_at(schedule, from_s))]
    now_s = from_s
    while (now_s := next_change_s(schedule, now_s)) < until_s:
        least = minimum_at(schedule, now_s)
        if least != seen[-1][1]:
            seen.append((now_s, least))
    return [(datetime.fromtimestamp(one, ZoneInfo(BERLIN)).isoformat(), least) for one, least in seen[1:]]


def test_office_hours() -> None:
    office = (entry("08:00", "18:30", "mon tue wed thu fri"),)
    friday = at("2026-11-27T00:00")
    assert changes(office, friday, friday + 4 * 86400.0) == [
        ("2026-11-27T08:00:00+01:00", 2),
        ("2026-11-27T18:30:00+01:00", 0),
        ("2026-11-30T08:00:00+01:00", 2),
        ("2026-11-30T18:30:00+01:00", 0),
    ]


def test_over_midnight_belongs_to_the_day_on_which_it_begins() -> None:
    night = (entry("22:00", "06:00", "fri"),)
    assert [minimum_at(night, at(one)) for one in ("2026-11-27T05:00", "2026-11-27T23:00", "2026-11-28T05:59")] == [
        0,
        2,
        2,
    ]
    assert [minimum_at(night, at(one)) for one in ("2026-11-28T06:00", "2026-11-28T23:00")] == [0, 0]


def test_equal_hours_are_a_whole_day() -> None:
    sundays = (entry("00:00", "00:00", "sun"),)
    saturday = at("2026-11-28T12:00")
    assert changes(sundays, saturday, saturday + 3 * 86400.0) == [
        ("2026-11-29T00:00:00+01:00", 2),
        ("2026-11-30T00:00:00+01:00", 0),
    ]


@pytest.mark.parametrize(
    ("from_", "until", "day", "expected"),
    [
        ("01:00", "06:00", "2026-03-29", [("2026-03-29T01:00:00+01:00", 2), ("2026-03-29T06:00:00+02:00", 0)]),
        # 02:30 does not exist: it begins when the clock is past it, at 03:00.
        ("02:30", "06:00", "2026-03-29", [("2026-03-29T03:00:00+02:00", 2), ("2026-03-29T06:00:00+02:00", 0)]),
        ("01:00", "02:30", "2026-03-29", [("2026-03-29T01:00:00+01:00", 2), ("2026-03-29T03:00:00+02:00", 0)]),
        ("02:10", "02:50", "2026-03-29", []),
        ("01:00", "06:00", "2026-10-25", [("2026-10-25T01:00:00+02:00", 2), ("2026-10-25T06:00:00+01:00", 0)]),
        # 02:30 comes twice, and so do hours that begin or end there.
        (
            "02:30",
            "02:45",
            "2026-10-25",
            [
                ("2026-10-25T02:30:00+02:00", 2),
                ("2026-10-25T02:45:00+02:00", 0),
                ("2026-10-25T02:30:00+01:00", 2),
                ("2026-10-25T02:45:00+01:00", 0),
            ],
        ),
    ],
)
def test_days_on_which_clocks_are_changed(from_: str, until: str, day: str, expected: list[tuple[str, int]]) -> None:
    schedule = (entry(from_, until),)
    assert changes(schedule, at(f"{day}T00:00"), at(f"{day}T12:00")) == expected


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 95),
            st.integers(0, 95),
            st.lists(st.sampled_from(WEEKDAYS), min_size=1, max_size=7, unique=True),
            st.sampled_from([BERLIN, "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata", "UTC"]),
            st.integers(1, 5),
        ),
        min_size=1,
        max_size=3,
    ),
    st.sampled_from(["2026-03-07", "2026-03-28", "2026-04-04", "2026-10-03", "2026-10-24", "2026-10-31", "2026-06-01"]),
)
def test_no_change_lies_between_two_looks(entries: list[tuple[int, int, list[str], str, int]], day: str) -> None:
    """The oracle steps every quarter of an hour, over two days on which clocks are changed somewhere."""
    schedule = tuple(
        entry(_hour(from_), _hour(until), " ".join(days), zone, least) for from_, until, days, zone, least in entries
    )
    start = datetime.fromisoformat(day).replace(tzinfo=UTC)
    step_s, least = start.timestamp(), minimum_at(schedule, start.timestamp())
    steps = 0
    for quarter in range(2 * 96):
        now_s = (start + timedelta(minutes=15 * quarter)).timestamp()
        while step_s <= now_s:
            step_s, least = next_change_s(schedule, step_s), minimum_at(schedule, step_s)
            steps += 1
        assert minimum_at(schedule, now_s) == least
    assert steps <= 2 * (96 + 1)


def _hour(quarter: int) -> str:
    return f"{quarter // 4:02}:{quarter % 4 * 15:02}"
