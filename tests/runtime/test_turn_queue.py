"""However many connections go on in a later turn, a turn has a bound, and nobody is passed over."""

from __future__ import annotations

from collections.abc import Callable

from activator.runtime.turn_queue import SHARES_PER_TURN_MAX, TurnQueue
from tests.manual_clock import ManualClock


class Line:
    """A queue, and in which order its callbacks were called."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.errors: list[Exception] = []
        self.queue = TurnQueue(self.clock.defer, self.errors.append)
        self.called: list[int] = []

    def add(self, number: int, then: Callable[[], None] = lambda: None) -> None:
        def call() -> None:
            self.called.append(number)
            then()

        self.queue.add(call)

    def turns(self) -> list[int]:
        """How many were called in each turn, until nothing is deferred any more."""
        counts = []
        before = len(self.called)
        while self.clock.turn():
            counts.append(len(self.called) - before)
            before = len(self.called)
        return counts


def test_a_turn_has_a_bound_and_who_came_first_goes_first() -> None:
    line = Line()
    count = 3 * SHARES_PER_TURN_MAX + 5
    for number in range(count):
        line.add(number)
    assert line.turns() == [SHARES_PER_TURN_MAX] * 3 + [5]
    assert line.called == list(range(count))


def test_who_has_more_to_do_waits_behind_all_others() -> None:
    line = Line()
    line.add(0, lambda: line.add(100))
    for number in range(1, SHARES_PER_TURN_MAX + 1):
        line.add(number)
    assert line.turns() == [SHARES_PER_TURN_MAX, 2]
    assert line.called[-2:] == [SHARES_PER_TURN_MAX, 100]


def test_the_next_turn_is_asked_for_once() -> None:
    line = Line()
    line.add(0, lambda: line.add(1))
    assert line.clock.turn() == 1
    assert line.clock.turn() == 1
    assert line.clock.turn() == 0 and line.called == [0, 1]
    line.add(2)
    assert line.turns() == [1]


def test_one_that_raises_costs_itself_alone() -> None:
    line = Line()

    def fail() -> None:
        raise RuntimeError("injected")

    line.add(0, fail)
    line.add(1)
    assert line.turns() == [2]
    assert [str(error) for error in line.errors] == ["injected"]
