"""Time that passes when a test says so, and an event loop's timers on it."""

from __future__ import annotations

from collections.abc import Callable


class ManualTimer:
    """What `call_later` returns."""

    def __init__(self, due_s: float, callback: Callable[[], None]) -> None:
        self.due_s = due_s
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class ManualClock:
    """`now` is the clock, `call_later` the loop's; `pass_time` runs what falls due, in order."""

    def __init__(self, now_s: float = 1000.0) -> None:
        self.now_s = now_s
        self._timers: list[ManualTimer] = []
        self._deferred: list[Callable[[], None]] = []

    def now(self) -> float:
        return self.now_s

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> ManualTimer:
        timer = ManualTimer(self.now_s + delay_s, callback)
        self._timers.append(timer)
        return timer

    def defer(self, callback: Callable[[], None]) -> None:
        """The loop's `call_soon`: run by the next `turn`."""
        self._deferred.append(callback)

    def turn(self) -> int:
        """Run what was deferred before this turn; how many there were."""
        deferred, self._deferred = self._deferred, []
        for callback in deferred:
            callback()
        return len(deferred)

    def pending(self) -> int:
        """Timers that are still to fire."""
        self._timers = [timer for timer in self._timers if not timer.cancelled]
        return len(self._timers)

    def fire_due(self) -> int:
        """Run the timers that are due now, each once, as one turn of a loop does; how many there were."""
        due = [timer for timer in self._timers if not timer.cancelled and timer.due_s <= self.now_s]
        self._timers = [timer for timer in self._timers if timer not in due]
        for timer in due:
            timer.callback()
        return len(due)

    def pass_time(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while True:
            due = [timer for timer in self._timers if not timer.cancelled and timer.due_s <= end_s]
            if not due:
                break
            timer = min(due, key=lambda one: one.due_s)
            self._timers.remove(timer)
            self.now_s = max(self.now_s, timer.due_s)
            timer.callback()
        self.now_s = end_s
