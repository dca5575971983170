"""A schedule of keys: against a plain dictionary, and bounded whatever is planned and cancelled."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from activator.runtime.clock import NEVER
from activator.runtime.schedule import OUTDATED_SPARE, Schedule

KEYS = 5

steps = st.lists(
    st.one_of(
        st.tuples(st.just("plan"), st.integers(0, KEYS - 1), st.integers(0, 9)),
        st.tuples(st.just("cancel"), st.integers(0, KEYS - 1), st.just(0)),
        st.tuples(st.just("pop"), st.just(0), st.integers(0, 9)),
    ),
    max_size=200,
)


@given(steps)
def test_it_is_a_dictionary_of_due_times_that_gives_the_earliest(steps: list[tuple[str, int, int]]) -> None:
    schedule: Schedule[int] = Schedule()
    oracle: dict[int, tuple[int, int]] = {}  # the due time and the number of the plan
    for number, (step, key, time_s) in enumerate(steps):
        if step == "plan":
            schedule.plan(key, float(time_s))
            oracle[key] = (time_s, number)
        elif step == "cancel":
            schedule.cancel(key)
            oracle.pop(key, None)
        else:
            first = min(oracle, key=lambda one: oracle[one], default=None)
            due = first if first is not None and oracle[first][0] <= time_s else None
            assert schedule.pop(float(time_s)) == due
            if due is not None:
                del oracle[due]
        assert len(schedule) == len(oracle)
        assert all((one in schedule) == (one in oracle) for one in range(KEYS))
        assert schedule.next_s() == min((float(due_s) for due_s, _ in oracle.values()), default=NEVER)


def test_a_key_that_is_planned_for_never_comes_only_when_everything_does() -> None:
    schedule: Schedule[str] = Schedule()
    assert schedule.pop(NEVER) is None
    schedule.plan("a", NEVER)
    assert schedule.pop(1e9) is None
    assert schedule.pop(NEVER) == "a"


def test_planning_and_cancelling_the_same_keys_for_hours_keeps_a_bounded_heap() -> None:
    schedule: Schedule[int] = Schedule()
    for number in range(10_000):
        schedule.plan(number % 3, float(number))
        if number % 2:
            schedule.cancel(number % 3)
        assert schedule.entries <= 2 * 3 + OUTDATED_SPARE + 1
    schedule.clear()
    assert (len(schedule), schedule.entries, schedule.next_s()) == (0, 0, NEVER)
