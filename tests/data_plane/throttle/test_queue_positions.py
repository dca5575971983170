"""Where waiters stand, for those who ask often."""

from __future__ import annotations

from activator.config.specs import QueueSpec
from activator.data_plane.throttle.disciplines import make_queue
from activator.data_plane.throttle.queue import POSITIONS_AGE_S, Positions
from activator.data_plane.throttle.waiters import Waiter, WaiterQueue


def added(queue: WaiterQueue, arrival: int) -> Waiter:
    waiter = Waiter()
    waiter.arrival = arrival
    queue.join(waiter)
    return waiter


def test_each_has_its_place_and_the_line_is_read_once_in_a_while() -> None:
    queue, positions = make_queue(QueueSpec()), Positions()
    waiters = [added(queue, 10 * number) for number in range(1000)]
    assert [positions.of(queue, waiter, 5.0) for waiter in waiters] == list(range(1, 1001))
    late = added(queue, 10_000)
    assert positions.of(queue, late, 5.1) == 1001
    for waiter in waiters[:500]:
        queue.leave(waiter)
    assert positions.of(queue, waiters[600], 5.1) == 501, "as it was read, but never more than there are"
    now_s = 5.0 + POSITIONS_AGE_S
    assert positions.of(queue, waiters[600], now_s) == 101
    assert positions.of(queue, late, now_s) == 501


def test_one_alone() -> None:
    queue, positions = make_queue(QueueSpec()), Positions()
    waiter = added(queue, 1)
    assert positions.of(queue, waiter, 0.0) == 1
    queue.leave(waiter)
    assert positions.of(queue, waiter, 0.1) == 1
