"""The timeline of a group: what its programs did in the last hour."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from activator.control_plane.groups.counts import ProgramCounts
from activator.control_plane.groups.timeline import CHANGES_MAX, NOTHING, TIMELINE_S, Timeline, state_of

LOADING, SERVING = ProgramCounts(started=1), ProgramCounts(started=1, ready=1)
LEAVING, ASLEEP, GONE = ProgramCounts(leaving=1), ProgramCounts(sleeping=1), ProgramCounts()
ALL = [LOADING, SERVING, LEAVING, ASLEEP, GONE]


def spans(timeline: Timeline, now_s: float) -> dict[str, list[tuple[str, float, float]]]:
    def plain(one: dict[str, Any]) -> tuple[str, float, float]:
        return one["state"], one["from_age_s"], one["to_age_s"]

    return {row["revision"]: [plain(one) for one in row["spans"]] for row in timeline.shown(now_s)}


def test_a_swap() -> None:
    timeline = Timeline()
    for at_s, key, counts in [
        (0.0, "a", LOADING),
        (10.0, "a", SERVING),
        (11.0, "a", SERVING),
        (50.0, "a", LEAVING),
        (52.0, "a", ASLEEP),
        (52.0, "b", LOADING),
        (60.0, "b", SERVING),
    ]:
        timeline.record(key, counts, at_s)
    assert spans(timeline, 100.0) == {
        "a": [("loading", 100.0, 90.0), ("serving", 90.0, 50.0), ("leaving", 50.0, 48.0), ("asleep", 48.0, 0.0)],
        "b": [("loading", 48.0, 40.0), ("serving", 40.0, 0.0)],
    }


def test_what_lasts_for_more_than_an_hour_is_cut() -> None:
    timeline = Timeline()
    timeline.record("a", SERVING, 0.0)
    timeline.record("b", SERVING, 0.0)
    timeline.record("b", GONE, 10.0)
    assert spans(timeline, 2.0 * TIMELINE_S) == {"a": [("serving", TIMELINE_S, 0.0)]}


def test_a_fast_succession_is_bounded() -> None:
    timeline = Timeline()
    for place in range(3 * CHANGES_MAX):
        timeline.record("a", SERVING if place % 2 else LEAVING, float(place))
    found = spans(timeline, 3.0 * CHANGES_MAX)["a"]
    assert len(found) == CHANGES_MAX + 1


@given(st.lists(st.tuples(st.floats(0.0, 900.0), st.sampled_from("abc"), st.sampled_from(ALL)), max_size=40))
def test_the_spans_are_the_states_of_each_moment(steps: list[tuple[float, str, ProgramCounts]]) -> None:
    timeline, now_s, noted = Timeline(), 0.0, [(0.0, "", GONE)]
    for passed_s, key, counts in steps:
        now_s += round(passed_s)
        timeline.record(key, counts, now_s)
        noted.append((now_s, key, counts))
    end_s = now_s + 1.0
    found = spans(timeline, end_s)
    for age_s in range(0, int(TIMELINE_S), 97):
        for key in "abc":
            at_s = end_s - age_s - 0.5
            before = [counts for time_s, name, counts in noted if name == key and time_s <= at_s]
            expected = state_of(before[-1]) if before else NOTHING
            covering = [state for state, from_s, to_s in found.get(key, []) if from_s > age_s + 0.5 >= to_s]
            assert covering == ([expected] if expected else [])
