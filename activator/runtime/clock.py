"""An injected monotonic clock, and one hashed timing wheel for all deadlines of the data path.

Rules
  1. Times are monotonic seconds as float. Code that needs the time gets a `Now`; the data path never imports `time`.
  2. A deadline never expires early, and at most one tick late while the loop runs (except for rule 5).
  3. Entries are intrusive: arming, moving and cancelling allocate nothing and are O(1). Moving a deadline *later* only
     writes a number, which the wheel checks when it reaches the entry (four `call_later` per request took a quarter of
     the whole budget of a request).
  4. The wheel sleeps until its next occupied slot, and an empty wheel costs nothing.
  5. Of entries that are due at the same time, ENTRIES_PER_TURN_MAX are processed in each turn of the loop, in their
     order.
  6. Time in which the loop does not run is not counted: after a stop of the process (SIGSTOP, a paused virtual machine,
     a debugger) every deadline would have passed, although no peer had a chance to meet it. If `on_pause` is set, the
     wheel wakes every BEAT_S, and extends all deadlines if it wakes more than PAUSE_S late.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from mypy_extensions import mypyc_attr

Now = Callable[[], float]

NEVER: Final = float("inf")
TICK_S: Final = 0.020
ROUNDING_TICKS: Final = 1e-4
WHEEL_SLOTS: Final = 512  # one rotation takes 10.24 s; longer deadlines are checked once per rotation
BEAT_S: Final = 1.0
PAUSE_S: Final = 1.0
ENTRIES_PER_TURN_MAX: Final = 1_000  # 0.1 ms, plus the work of the entries


def until_next(interval_s: float, now_s: float) -> float:
    """Return the seconds until the next multiple of the interval that is at least half of it away.

    Periodic work that begins at such times wakes the process together, not each at its own time.
    """
    left_s = interval_s - now_s % interval_s
    return left_s if left_s >= interval_s / 2 else left_s + interval_s


class Timer(Protocol):
    """The handle that `loop.call_later` returns."""

    def cancel(self) -> None: ...


Later = Callable[[float, Callable[[], None]], Timer]  # `loop.call_later`
Defer = Callable[[Callable[[], None]], object]  # `loop.call_soon`


@mypyc_attr(allow_interpreted_subclasses=True)
class Deadline:
    """An entry of the wheel; subclasses implement `expired`."""

    def __init__(self) -> None:
        self.deadline_s: float = NEVER
        self.wheel_due_s: float = NEVER  # when the wheel will check the entry; <= deadline_s while armed
        self.wheel_next: Deadline | None = None
        self.wheel_prev: Deadline | None = None

    def expired(self, now_s: float) -> None:
        """Handle the expiry; the entry is no longer armed and may be armed again."""
        raise NotImplementedError

    def loop_paused(self, pause_s: float) -> None:
        """Extend the times from which the deadline was computed: the loop did not run for `pause_s`."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Periodic(Deadline):
    """A periodic entry: `expired` arms it for the next time, or the wheel does if `expired` raised an exception."""

    def __init__(self, interval_s: float) -> None:
        super().__init__()
        self.interval_s = interval_s


class TimingWheel:
    """All deadlines of one event loop.

    `call_later(delay_s, callback)` is the loop's; `on_error(exception)` is called if `expired` raised, so that one
    defective entry does not affect the others. `on_pause(seconds)` is called when deadlines were extended because the
    loop did not run; with None, they are not extended.
    """

    def __init__(
        self,
        now: Now,
        call_later: Later,
        on_error: Callable[[Exception], None],
        on_pause: Callable[[float], None] | None = None,
    ) -> None:
        self._now = now
        self._call_later = call_later
        self._on_error = on_error
        self._on_pause = on_pause
        self._slept_from_s: float = 0.0  # when the timer was set
        self._wakes_s: float = NEVER  # when the timer is due
        self._slots: list[Deadline] = [_new_ring() for _ in range(WHEEL_SLOTS)]
        self._epoch_s: float = int(now() / TICK_S + ROUNDING_TICKS) * TICK_S
        self._cursor: int = 0  # the last tick whose slot has been emptied
        self._timer: Timer | None = None
        self._timer_tick: int = 0
        self._advancing: bool = False
        self._entries_left: int = 0  # entries that may still be processed in this turn
        self.armed: int = 0

    def arm(self, entry: Deadline, deadline_s: float) -> None:
        """Schedule `entry` to expire at `deadline_s`, which replaces its previous deadline; NEVER disarms it."""
        if entry.wheel_next is not None:
            if deadline_s >= entry.wheel_due_s and deadline_s != NEVER:
                entry.deadline_s = deadline_s
                return
            self.cancel(entry)
        if deadline_s == NEVER:
            return
        entry.deadline_s = deadline_s
        if self.armed == 0:
            self._cursor = self._tick_before(self._now())
        self._insert(entry)
        self.armed += 1

    def cancel(self, entry: Deadline) -> None:
        """Disarm `entry`, if it is armed."""
        following = entry.wheel_next
        preceding = entry.wheel_prev
        if following is None or preceding is None:
            return
        preceding.wheel_next = following
        following.wheel_prev = preceding
        entry.wheel_next = None
        entry.wheel_prev = None
        entry.deadline_s = NEVER
        entry.wheel_due_s = NEVER
        self.armed -= 1

    def close(self) -> None:
        """Stop the timer; entries that are armed never expire."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def advance(self) -> None:
        """Expire the entries that are due. The loop's timer calls this, and tests with their own clock do."""
        now_s = self._now()
        if self._on_pause is not None and now_s - self._wakes_s > PAUSE_S:
            self._extend(now_s - self._slept_from_s)
        last = self._tick_before(now_s)
        self._timer = None
        self._advancing = True
        if last > self._cursor:
            first = max(self._cursor + 1, last - WHEEL_SLOTS + 1)  # after a long stall, each slot is processed once
            self._cursor = last
            self._entries_left = ENTRIES_PER_TURN_MAX
            tick = first
            try:
                while tick <= last and self._empty_slot(self._slots[tick % WHEEL_SLOTS], now_s):
                    tick += 1
            finally:
                # The share of this turn is used up, or a BaseException is being raised: continue in the next turn.
                if tick <= last:
                    self._cursor = tick - 1
                self._advancing = False
                self._sleep_until_occupied()
            return
        self._advancing = False
        self._sleep_until_occupied()

    def _extend(self, pause_s: float) -> None:
        """Extend all deadlines; the entries stay in their slots."""
        self._epoch_s += pause_s
        for ring in self._slots:
            entry = ring.wheel_next
            while entry is not None and entry is not ring:
                following = entry.wheel_next
                entry.deadline_s += pause_s
                entry.wheel_due_s += pause_s
                try:
                    entry.loop_paused(pause_s)
                except Exception as error:
                    self._on_error(error)
                entry = following
        if self._on_pause is not None:
            self._on_pause(pause_s)

    def _tick_before(self, time_s: float) -> int:
        """Return the last tick at or before this time."""
        # A timer may fire slightly before its tick because of rounding; without the slack it would be set repeatedly.
        return int((time_s - self._epoch_s) / TICK_S + ROUNDING_TICKS)

    def _insert(self, entry: Deadline) -> None:
        """Put the entry into its slot, and set the timer if it is the next one due."""
        # The slot *after* the one the deadline falls in: its tick is the first at which the deadline has passed.
        tick = self._cursor + WHEEL_SLOTS - 1
        ahead_s = entry.deadline_s - self._epoch_s
        if ahead_s < (tick - 1) * TICK_S:
            tick = max(int(ahead_s / TICK_S) + 1, self._cursor + 1)
        ring = self._slots[tick % WHEEL_SLOTS]
        last = ring.wheel_prev
        assert last is not None
        entry.wheel_prev = last
        entry.wheel_next = ring
        last.wheel_next = entry
        ring.wheel_prev = entry
        entry.wheel_due_s = min(self._epoch_s + tick * TICK_S, entry.deadline_s)
        if not self._advancing and (self._timer is None or tick < self._timer_tick):
            self._sleep_until(tick)

    def _empty_slot(self, ring: Deadline, now_s: float) -> bool:
        """Expire the entries of a slot. Return False if some are left."""
        first = ring.wheel_next
        last = ring.wheel_prev
        assert first is not None and last is not None
        if first is ring:
            return True
        # The whole list is first moved to a ring of its own, because `expired` may arm entries in this slot.
        due = Deadline()
        due.wheel_next = first
        due.wheel_prev = last
        first.wheel_prev = due
        last.wheel_next = due
        ring.wheel_next = ring
        ring.wheel_prev = ring
        try:
            return self._expire_all(due, now_s)
        finally:
            if due.wheel_next is not due:
                _put_back(due, ring)
            due.wheel_next = None  # leave no reference cycle
            due.wheel_prev = None

    def _expire_all(self, due: Deadline, now_s: float) -> bool:
        """Expire the entries of a ring. Return False if some are left for the next turn."""
        while True:
            entry = due.wheel_next
            assert entry is not None
            if entry is due:
                return True
            if self._entries_left == 0:
                return False
            self._entries_left -= 1
            deadline_s = entry.deadline_s
            self.cancel(entry)
            if deadline_s > now_s:
                entry.deadline_s = deadline_s
                self._insert(entry)
                self.armed += 1
                continue
            try:
                entry.expired(now_s)
            except Exception as error:
                if isinstance(entry, Periodic) and entry.wheel_next is None:
                    self.arm(entry, now_s + entry.interval_s)
                self._on_error(error)

    def _sleep_until_occupied(self) -> None:
        """Set the timer to the next tick whose slot has entries."""
        if self.armed == 0:
            return
        for tick in range(self._cursor + 1, self._cursor + WHEEL_SLOTS + 1):
            ring = self._slots[tick % WHEEL_SLOTS]
            if ring.wheel_next is not ring:
                self._sleep_until(tick)
                return

    def _sleep_until(self, tick: int) -> None:
        """Set the timer to this tick, or to BEAT_S from now if that is earlier and pauses are detected."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer_tick = tick
        now_s = self._now()
        delay_s = max(self._epoch_s + tick * TICK_S - now_s, 0.0)
        if self._on_pause is not None and delay_s > BEAT_S:
            delay_s = BEAT_S
        self._slept_from_s = now_s
        self._wakes_s = now_s + delay_s
        self._timer = self._call_later(delay_s, self.advance)


def _put_back(due: Deadline, ring: Deadline) -> None:
    """Return the entries that are left to their slot: for the next turn, or after `on_error` has raised."""
    first = due.wheel_next
    last = due.wheel_prev
    following = ring.wheel_next
    assert first is not None and last is not None and following is not None
    ring.wheel_next = first
    first.wheel_prev = ring
    last.wheel_next = following
    following.wheel_prev = last


def _new_ring() -> Deadline:
    ring = Deadline()
    ring.wheel_next = ring
    ring.wheel_prev = ring
    return ring
