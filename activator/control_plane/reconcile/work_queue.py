"""Which Activation's turn it is: one pass per key at a time, first come, first served, the urgent ones before.

Rules
  1. A key stands in it once. What is put in while its pass is under way comes again after it.
  2. Urgent keys (a start from zero) jump the queue; after URGENT_IN_A_ROW_MAX of them one of the others has its turn.
  3. A key that failed waits for a growing, jittered pause of its own, and holds up no other. Only an urgent change ends
     the pause early, or the end of an outage (`wake`), which it does not where the API or a component asked for it.
  4. It is bounded by its keys: KEYS_MAX, and no more than one entry each.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, final

from activator.runtime.backoff import Backoff
from activator.runtime.clock import NEVER, Later, Now, Timer
from activator.runtime.schedule import Schedule
from lb.rng import Rng

URGENT_IN_A_ROW_MAX: Final = 8  # urgent passes before one that is not urgent
FAILED_PAUSE_INITIAL_S: Final = 0.25  # after a pass that failed: between half of it and all of it …
FAILED_PAUSE_MAX_S: Final = 60.0  # … doubling up to this

WOKEN_PAUSE_MAX_S: Final = 1.0  # a key that is woken, and fails again, pauses for so long at the most


class _Key:
    """One Activation in the queue. `backoff`: None unless its last pass failed. `is_dirty`: it was put in during its
    pass. `is_pausing`: it waits because it failed; neither the API nor a component asked for the pause.
    """

    __slots__ = ("added_s", "backoff", "is_active", "is_dirty", "is_pausing", "is_urgent")

    def __init__(self) -> None:
        self.added_s = 0.0
        self.backoff: Backoff | None = None
        self.is_active = False
        self.is_dirty = False
        self.is_pausing = False
        self.is_urgent = False


@final
class WorkQueue:
    """`ready` is called when a key comes whose time it is; `added` when one is put in (again: after a failure)."""

    def __init__(
        self, now: Now, call_later: Later, rng: Rng, ready: Callable[[], None], added: Callable[[bool], None]
    ) -> None:
        self._now = now
        self._call_later = call_later
        self._rng = rng
        self._ready = ready
        self._added = added
        self._keys: dict[str, _Key] = {}
        self._urgent: OrderedDict[str, None] = OrderedDict()
        self._waiting: OrderedDict[str, None] = OrderedDict()
        self._urgent_in_a_row = 0
        self._due: Schedule[str] = Schedule()  # keys that wait for a time
        self._timer: Timer | None = None
        self._timer_s = 0.0

    def __len__(self) -> int:
        """Keys whose turn is to come now."""
        return len(self._urgent) + len(self._waiting)

    @property
    def is_idle(self) -> bool:
        """No key waits for its turn, none has its pass; some may wait for a time to come."""
        return not self and not any(key.is_active for key in self._keys.values())

    def is_free(self, key: str) -> bool:
        """Nothing is under way, waits or has failed for this key."""
        return key not in self._keys

    def put(self, key: str, urgent: bool = False) -> None:
        """It has something to do."""
        entry = self._keys.get(key)
        if entry is None:
            entry = self._keys[key] = _Key()
        if entry.is_active:
            entry.is_dirty = True
            entry.is_urgent |= urgent
        elif key in self._urgent:
            pass
        elif key in self._waiting:
            if urgent:
                del self._waiting[key]
                self._urgent[key] = None
        elif key not in self._due or urgent or entry.backoff is None:
            entry.is_urgent |= urgent
            self._enqueue(key, entry, False)

    def take(self) -> tuple[str, float] | None:
        """The next key and how long it has waited; its pass is under way from now on."""
        lines = (self._urgent, self._waiting)
        if self._urgent_in_a_row >= URGENT_IN_A_ROW_MAX and self._waiting:
            lines = (self._waiting, self._urgent)
        for line in lines:
            if line:
                key, _ = line.popitem(last=False)
                break
        else:
            return None
        self._urgent_in_a_row = self._urgent_in_a_row + 1 if line is self._urgent else 0
        entry = self._keys[key]
        entry.is_active, entry.is_urgent = True, False
        return key, self._now() - entry.added_s

    def done(self, key: str, failed: bool, again_in_s: float | None = None, at_least_s: float = 0.0) -> float | None:
        """Its pass is over; how long it waits until it is tried again, None: it has nothing to do.

        `again_in_s`: when it has more to do, also after a failure; `at_least_s`: no sooner, as the API asked for.
        """
        entry = self._keys[key]
        entry.is_active = False
        wait_s: float | None = again_in_s
        if failed:
            if entry.backoff is None:
                entry.backoff = Backoff(FAILED_PAUSE_INITIAL_S, FAILED_PAUSE_MAX_S, self._rng)
            pause_s = entry.backoff.next_s()
            # A component that says when it is to come again knows better than the pause.
            wait_s = max(pause_s if again_in_s is None else again_in_s, at_least_s)
        else:
            entry.backoff = None
        entry.is_pausing = failed and again_in_s is None and at_least_s <= 0.0
        if entry.is_dirty:
            entry.is_dirty = False
            if not failed or entry.is_urgent:
                self._enqueue(key, entry, failed)
                return 0.0
        if wait_s is None:
            del self._keys[key]
            return None
        self._due.plan(key, self._now() + wait_s)
        self._arm()
        return wait_s

    def wake(self) -> None:
        """Give every key its turn now that pauses because it failed."""
        for key, entry in list(self._keys.items()):
            if key in self._due and entry.is_pausing and entry.backoff is not None:
                entry.backoff.lower(WOKEN_PAUSE_MAX_S)
                self._enqueue(key, entry, True)

    def forget(self, key: str) -> None:
        """It is gone; a pass that is under way ends by itself."""
        self._urgent.pop(key, None)
        self._waiting.pop(key, None)
        self._due.cancel(key)
        entry = self._keys.get(key)
        if entry is not None:
            if entry.is_active:
                entry.is_dirty = False
            else:
                del self._keys[key]

    def close(self) -> None:
        """No more turns."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._urgent.clear()
        self._waiting.clear()
        self._due.clear()

    # --- what waits for its time --------------------------------------------------------------------------------------

    def _enqueue(self, key: str, entry: _Key, again: bool) -> None:
        self._due.cancel(key)
        entry.added_s = self._now()
        (self._urgent if entry.is_urgent else self._waiting)[key] = None
        self._added(again)
        self._ready()

    def _arm(self) -> None:
        next_s = self._due.next_s()
        if next_s == NEVER:
            return
        if self._timer is not None:
            if self._timer_s <= next_s:
                return
            self._timer.cancel()
        self._timer_s = next_s
        self._timer = self._call_later(max(next_s - self._now(), 0.0), self._fire)

    def _fire(self) -> None:
        self._timer = None
        now_s = self._now()
        while (key := self._due.pop(now_s)) is not None:
            self._enqueue(key, self._keys[key], self._keys[key].backoff is not None)
        self._arm()
