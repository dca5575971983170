"""Runs a pass at most once per object and turn of the loop, however many events the object had in that turn.

Rules
  1. `mark` schedules a pass of an object at the end of the turn. An object that is marked twice has one pass.
  2. A pass that raises affects its object only: it is retried after a pause, or at once when another event arrives.
  3. A pass may return a time at which it runs again without an event; the next pass replaces that time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from activator.runtime.clock import NEVER, Defer, Later, Timer
from activator.runtime.controller_counts import Controllers


class ReconcileQueue:
    """The passes of a source.

    `work(key)` is one pass; it returns when it is due again (monotonic seconds; NEVER: when something changes).
    `failed(key, error)` receives the exception of a pass and returns how long to wait, in seconds. `defer` runs a
    callable in the loop's next turn; `later` is the loop's `call_later`.
    """

    def __init__(
        self,
        work: Callable[[str], float],
        failed: Callable[[str, Exception], float],
        defer: Defer,
        later: Later,
        controllers: Controllers,
    ) -> None:
        self._work = work
        self._failed = failed
        self._defer = defer
        self._later = later
        self._controllers = controllers
        self._dirty: dict[str, tuple[str, float]] = {}  # by key: the controller that marked it first, and when
        self._again: dict[str, Timer] = {}  # by key: a pass at a later time
        self._deferred = False

    def mark(self, key: str, controller: str, is_retry: bool = False) -> None:
        """Schedule a pass of the object; `is_retry`: its last pass has failed."""
        if key not in self._dirty:
            self._dirty[key] = (controller, self._controllers.now())
            self._controllers.added(controller, is_retry)
        if not self._deferred:
            self._deferred = True
            self._defer(self.flush)

    def is_behind(self) -> bool:
        """Return True if a marked object's pass has not run."""
        return bool(self._dirty)

    def cancel_later_pass(self, key: str) -> None:
        """Cancel the object's pass that is scheduled for a later time; a marked one still runs."""
        timer = self._again.pop(key, None)
        if timer is not None:
            timer.cancel()

    def flush(self) -> None:
        """Run the passes of all marked objects."""
        self._deferred = False
        dirty, self._dirty = self._dirty, {}
        for key, (controller, since_s) in dirty.items():
            self._controllers.taken(controller, self._controllers.now() - since_s)
            try:
                with self._controllers.reconcile(controller):
                    due_s = self._work(key)
            except Exception as error:  # a defect: of this object only
                wait_s = self._failed(key, error)
                self.cancel_later_pass(key)
                self._again[key] = self._later(wait_s, partial(self._retry, key, controller))
            else:
                self.cancel_later_pass(key)
                if due_s != NEVER:
                    wait_s = max(due_s - self._controllers.now(), 0.0)
                    self._again[key] = self._later(wait_s, partial(self._run_due, key, controller))

    def _retry(self, key: str, controller: str) -> None:
        del self._again[key]
        self.mark(key, controller, is_retry=True)

    def _run_due(self, key: str, controller: str) -> None:
        del self._again[key]
        self.mark(key, controller)
