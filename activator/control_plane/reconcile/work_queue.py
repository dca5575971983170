"""The queue of Activations: one pass per key at a time, in order of arrival, urgent keys first.

Rules
  1. A key is queued once. A key that is put during its pass is queued again after it.
  2. Urgent keys (a start from zero) jump the queue; after URGENT_IN_A_ROW_MAX of them one of the others is taken.
  3. A key that failed waits for its own growing pause with jitter, and delays no other. Only an urgent change ends the
     pause early, or the end of an outage (`wake`) unless the API or a component has asked for the pause.
  4. The queue is bounded by its keys: KEYS_MAX, with at most one entry each.
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
FAILED_PAUSE_INITIAL_S: Final = 0.25  # after a failed pass: between half of it and all of it; doubles
FAILED_PAUSE_MAX_S: Final = 60.0  # the longest such pause

WOKEN_PAUSE_MAX_S: Final = 1.0  # the longest pause of a key that is woken and fails again


class _Key:
    """One Activation in the queue.

    `backoff`: None unless its last pass failed. `is_dirty`: it was put during its pass. `is_pausing`: it waits because
    it failed, and neither the API nor a component asked for the pause.
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
    """The queue. `ready` is called when a key is due; `added` when one is put (True: after a failure)."""

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
        self._due: Schedule[str] = Schedule()  # keys that are due later
        self._timer: Timer | None = None
        self._timer_s = 0.0

    def __len__(self) -> int:
        """Return the number of keys that are due."""
        return len(self._urgent) + len(self._waiting)

    @property
    def is_idle(self) -> bool:
        """True if no key is due or has a running pass; some may be due later."""
        return not self and not any(key.is_active for key in self._keys.values())

    def is_free(self, key: str) -> bool:
        """Return True if the key has no running pass, does not wait and has not failed."""
        return key not in self._keys

    def put(self, key: str, urgent: bool = False) -> None:
        """Queue a key."""
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
        """Return the next key and how long it has waited; its pass starts now."""
        queues = (self._urgent, self._waiting)
        if self._urgent_in_a_row >= URGENT_IN_A_ROW_MAX and self._waiting:
            queues = (self._waiting, self._urgent)
        for queue in queues:
            if queue:
                key, _ = queue.popitem(last=False)
                break
        else:
            return None
        self._urgent_in_a_row = self._urgent_in_a_row + 1 if queue is self._urgent else 0
        entry = self._keys[key]
        entry.is_active, entry.is_urgent = True, False
        return key, self._now() - entry.added_s

    def done(self, key: str, failed: bool, again_in_s: float | None = None, at_least_s: float = 0.0) -> float | None:
        """End a pass; return how long the key waits until its next one, or None if it has none.

        `again_in_s`: when the component has more to do, also after a failure. `at_least_s`: the shortest pause, as the
        API asked.
        """
        entry = self._keys[key]
        entry.is_active = False
        wait_s: float | None = again_in_s
        if failed:
            if entry.backoff is None:
                entry.backoff = Backoff(FAILED_PAUSE_INITIAL_S, FAILED_PAUSE_MAX_S, self._rng)
            pause_s = entry.backoff.next_s()
            # A component's own time takes precedence over the pause.
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
        """Queue every key that pauses because it failed."""
        for key, entry in list(self._keys.items()):
            if key in self._due and entry.is_pausing and entry.backoff is not None:
                entry.backoff.lower(WOKEN_PAUSE_MAX_S)
                self._enqueue(key, entry, True)

    def forget(self, key: str) -> None:
        """Remove a key; its running pass, if there is one, ends by itself and is the last."""
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
        """Clear the queue."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._urgent.clear()
        self._waiting.clear()
        self._due.clear()

    # --- keys that are due later --------------------------------------------------------------------------------------

    def _enqueue(self, key: str, entry: _Key, is_retry: bool) -> None:
        """Make the key due now; `is_retry`: its last pass failed."""
        self._due.cancel(key)
        entry.added_s = self._now()
        (self._urgent if entry.is_urgent else self._waiting)[key] = None
        self._added(is_retry)
        self._ready()

    def _arm(self) -> None:
        """Set the timer to the next key that is due later."""
        next_s = self._due.next_s()
        if next_s == NEVER:
            return
        if self._timer is not None:
            if self._timer_s <= next_s:
                return
            self._timer.cancel()
        self._timer_s = next_s
        self._timer = self._call_later(max(next_s - self._now(), 0.0), self._enqueue_due)

    def _enqueue_due(self) -> None:
        self._timer = None
        now_s = self._now()
        while (key := self._due.pop(now_s)) is not None:
            self._enqueue(key, self._keys[key], self._keys[key].backoff is not None)
        self._arm()
