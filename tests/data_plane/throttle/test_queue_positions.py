"""Where waiters stand, for those who ask often."""

from __future__ import annotations

from activator.config.specs import RevisionSpec
from activator.data_plane.throttle.disciplines import make_line
from activator.data_plane.throttle.queue import POSITIONS_AGE_S, Positions
from activator.data_plane.throttle.waiters import Waiter, WaitingLine


def added(line: WaitingLine, arrival: int) -> Waiter:
    waiter = Waiter()
    waiter.arrival = arrival
    line.join(waiter)
    return waiter


def test_each_has_its_place_and_the_line_is_read_once_in_a_while() -> None:
    line, positions = make_line(RevisionSpec(key="ns/app")), Positions()
    waiters = [added(line, 10 * number) for number in range(1000)]
    assert [positions.of(line, waiter, 5.0) for waiter in waiters] == list(range(1, 1001))
    late = added(line, 10_000)
    assert positions.of(line, late, 5.1) == 1001
    for waiter in waiters[:500]:
        line.leave(waiter)
    assert positions.of(line, waiters[600], 5.1) == 501, "as it was read, but never more than there are"
    now_s = 5.0 + POSITIONS_AGE_S
    assert positions.of(line, waiters[600], now_s) == 101
    assert positions.of(line, late, now_s) == 501


def test_one_alone() -> None:
    line, positions = make_line(RevisionSpec(key="ns/app")), Positions()
    waiter = added(line, 1)
    assert positions.of(line, waiter, 0.0) == 1
    line.leave(waiter)
    assert positions.of(line, waiter, 0.1) == 1
