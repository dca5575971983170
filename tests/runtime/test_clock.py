"""The timing wheel, against a list of deadlines that is simply looked through."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from activator.runtime.clock import (
    BEAT_S,
    ENTRIES_PER_TURN_MAX,
    NEVER,
    PAUSE_S,
    TICK_S,
    WHEEL_SLOTS,
    Deadline,
    Periodic,
    TimingWheel,
    until_next,
)
from tests.manual_clock import ManualClock


class Recorded(Deadline):
    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._clock = clock
        self.expired_at_s: list[float] = []

    def expired(self, now_s: float) -> None:
        self.expired_at_s.append(self._clock.now())


def make() -> tuple[ManualClock, TimingWheel, list[Exception]]:
    clock = ManualClock()
    errors: list[Exception] = []
    return clock, TimingWheel(clock.now, clock.call_later, errors.append), errors


@given(st.lists(st.floats(0.0, 60.0), min_size=1, max_size=30), st.floats(0.0, 0.5))
def test_nothing_expires_early_or_more_than_a_tick_late(delays: list[float], offset: float) -> None:
    clock, wheel, _ = make()
    clock.now_s += offset  # deadlines need not fall on ticks
    entries = []
    for delay in delays:
        entry = Recorded(clock)
        wheel.arm(entry, clock.now() + delay)
        entries.append((entry, clock.now() + delay))
    clock.pass_time(61.0)
    for entry, due_s in entries:
        assert len(entry.expired_at_s) == 1
        assert due_s <= entry.expired_at_s[0] <= due_s + TICK_S + 1e-6
    assert wheel.armed == 0
    assert clock.pending() == 0, "an empty wheel sleeps"


@given(st.data())
def test_arming_anew_moves_the_deadline_either_way(data: st.DataObject) -> None:
    clock, wheel, _ = make()
    entry = Recorded(clock)
    due_s = NEVER
    for _ in range(data.draw(st.integers(1, 12))):
        clock.pass_time(data.draw(st.floats(0.0, 0.2)))
        if entry.expired_at_s:
            break
        due_s = clock.now() + data.draw(st.floats(0.0, 15.0))
        wheel.arm(entry, due_s)
    clock.pass_time(20.0)
    assert len(entry.expired_at_s) == 1
    assert due_s <= entry.expired_at_s[0] <= due_s + TICK_S + 1e-6


def test_a_later_deadline_only_writes_a_number() -> None:
    clock, wheel, _ = make()
    entry = Recorded(clock)
    wheel.arm(entry, clock.now() + 1.0)
    timers = clock.pending()
    for step in range(100):
        wheel.arm(entry, clock.now() + 1.0 + step * 0.01)
    assert clock.pending() == timers
    assert wheel.armed == 1
    clock.pass_time(1.5)
    assert not entry.expired_at_s
    clock.pass_time(1.0)
    assert len(entry.expired_at_s) == 1


def test_cancelled_entries_never_expire_and_cancelling_twice_is_harmless() -> None:
    clock, wheel, _ = make()
    entry = Recorded(clock)
    wheel.arm(entry, clock.now() + 0.1)
    wheel.cancel(entry)
    wheel.cancel(entry)
    wheel.arm(entry, NEVER)
    clock.pass_time(1.0)
    assert not entry.expired_at_s
    assert wheel.armed == 0


def test_an_expired_entry_may_arm_itself_and_cancel_its_neighbour() -> None:
    clock, wheel, _ = make()
    neighbour = Recorded(clock)

    class Twice(Recorded):
        def expired(self, now_s: float) -> None:
            super().expired(now_s)
            wheel.cancel(neighbour)
            if len(self.expired_at_s) < 2:
                wheel.arm(self, now_s)

    twice = Twice(clock)
    wheel.arm(twice, clock.now() + 0.1)
    wheel.arm(neighbour, clock.now() + 0.1)
    clock.pass_time(1.0)
    assert len(twice.expired_at_s) == 2
    assert not neighbour.expired_at_s


def test_one_broken_entry_does_not_stop_the_others() -> None:
    clock, wheel, errors = make()

    class Broken(Deadline):
        def expired(self, now_s: float) -> None:
            raise RuntimeError("broken")

    wheel.arm(Broken(), clock.now() + 0.1)
    fine = Recorded(clock)
    wheel.arm(fine, clock.now() + 0.1)
    clock.pass_time(1.0)
    assert len(fine.expired_at_s) == 1
    assert [str(error) for error in errors] == ["broken"]


@pytest.mark.parametrize("arms_first", [False, True])
def test_a_periodic_entry_that_raises_expires_the_next_time_all_the_same(arms_first: bool) -> None:
    clock, wheel, errors = make()
    expired_s: list[float] = []

    class Broken(Periodic):
        def expired(self, now_s: float) -> None:
            if arms_first:
                wheel.arm(self, now_s + 2.0)
            expired_s.append(now_s - begun_s)
            raise RuntimeError("broken")

    begun_s = clock.now()
    broken = Broken(1.0)
    wheel.arm(broken, begun_s + 1.0)
    clock.pass_time(4.9)
    assert len(expired_s) == len(errors) == (2 if arms_first else 4)
    assert wheel.armed == 1
    wheel.cancel(broken)


@pytest.mark.parametrize("count", [1, 40])
def test_a_report_of_an_error_that_raises_stops_no_timer(count: int) -> None:
    """The loop is told; every deadline expires once all the same, those of the same tick and those of later ones."""
    clock = ManualClock()

    def report(error: Exception) -> None:
        raise RuntimeError("the report") from error

    class Broken(Deadline):
        def expired(self, now_s: float) -> None:
            raise ZeroDivisionError

    wheel = TimingWheel(clock.now, clock.call_later, report)
    entries = []
    for number in range(count):
        broken, good = Broken(), Recorded(clock)
        wheel.arm(broken, 1.0 + 0.01 * (number % 7))
        wheel.arm(good, 1.0 + 0.01 * (number % 7))
        entries.append(good)
    raised = 0
    for _ in range(10 * count):
        try:
            clock.pass_time(0.1)
        except RuntimeError:
            raised += 1
    assert raised == count
    assert [len(entry.expired_at_s) for entry in entries] == [1] * count
    assert wheel.armed == 0
    late = Recorded(clock)
    wheel.arm(late, clock.now() + 1.0)
    clock.pass_time(1.5)
    assert len(late.expired_at_s) == 1, "and the wheel goes on"


def test_a_stalled_loop_expires_everything_once() -> None:
    clock, wheel, _ = make()
    entries = [Recorded(clock) for _ in range(50)]
    for number, entry in enumerate(entries):
        wheel.arm(entry, clock.now() + number * 0.5)
    clock.now_s += WHEEL_SLOTS * TICK_S * 5  # nothing turned for five rotations
    wheel.advance()
    assert all(len(entry.expired_at_s) == 1 for entry in entries)


def test_many_that_fall_due_at_once_take_several_turns_and_keep_their_order() -> None:
    """What is armed and cancelled between two turns counts; the rest is not late by more than those turns."""
    clock, wheel, _ = make()
    order: list[int] = []

    class Numbered(Deadline):
        def __init__(self, number: int) -> None:
            super().__init__()
            self.number = number

        def expired(self, now_s: float) -> None:
            order.append(self.number)

    count = 2 * ENTRIES_PER_TURN_MAX + 500
    entries = [Numbered(number) for number in range(count)]
    later = Numbered(count)
    for entry in entries:
        wheel.arm(entry, clock.now() + 0.1)
    wheel.arm(later, clock.now() + 0.2)
    clock.now_s += 0.3
    assert clock.fire_due() == 1
    turns = [len(order)]
    wheel.cancel(entries[-1])
    between = Numbered(-1)
    wheel.arm(between, clock.now() + 5.0)
    while clock.fire_due():
        turns.append(len(order))
    assert turns == [ENTRIES_PER_TURN_MAX, 2 * ENTRIES_PER_TURN_MAX, count]
    assert order == [*range(count - 1), count]
    assert wheel.armed == 1
    clock.pass_time(5.1)
    assert order[-1] == -1


class Told(Deadline):
    def __init__(self) -> None:
        super().__init__()
        self.at_s: list[float] = []
        self.paused_s = 0.0

    def expired(self, now_s: float) -> None:
        self.at_s.append(now_s)

    def loop_paused(self, pause_s: float) -> None:
        self.paused_s += pause_s


@pytest.mark.parametrize("delay_s", [0.5, 3.0, 30.0, 300.0])
def test_time_in_which_the_loop_does_not_run_counts_for_no_deadline(delay_s: float) -> None:
    """A process that was stopped finds no deadline passed when it goes on."""
    clock = ManualClock()
    pauses: list[float] = []
    wheel = TimingWheel(clock.now, clock.call_later, lambda error: pytest.fail(str(error)), pauses.append)
    entry, other = Told(), Told()
    began_s = clock.now()
    wheel.arm(entry, began_s + delay_s)
    wheel.arm(other, began_s + 1000.0)
    clock.pass_time(min(delay_s / 2, 2.0))
    clock.now_s += 60.0  # nothing runs
    clock.fire_due()
    assert entry.at_s == [] and 60.0 <= entry.paused_s <= 60.0 + BEAT_S + TICK_S
    assert pauses == [entry.paused_s]
    clock.pass_time(delay_s + BEAT_S)
    (at_s,) = entry.at_s
    assert began_s + delay_s + 60.0 <= at_s <= began_s + delay_s + 60.0 + BEAT_S + 2 * TICK_S
    assert other.at_s == [] and other.deadline_s == pytest.approx(began_s + 1000.0 + entry.paused_s)


def test_a_loop_that_is_a_little_late_extends_nothing() -> None:
    clock = ManualClock()
    pauses: list[float] = []
    wheel = TimingWheel(clock.now, clock.call_later, lambda error: pytest.fail(str(error)), pauses.append)
    entry = Told()
    wheel.arm(entry, clock.now() + 3.0)
    for _ in range(10):
        clock.now_s += PAUSE_S * 0.9
        clock.fire_due()
    assert len(entry.at_s) == 1 and pauses == []


@given(st.sampled_from([0.02, 0.1, 0.2, 1.0, 10.0]), st.floats(0.0, 1e7))
def test_work_with_related_intervals_begins_at_the_same_times(interval_s: float, now_s: float) -> None:
    left_s = until_next(interval_s, now_s)
    assert interval_s / 2 <= left_s < interval_s * 1.5
    multiples = (now_s + left_s) / interval_s
    assert abs(multiples - round(multiples)) * interval_s < 1e-6
