"""Work that is done once per object and turn of the loop, however many events of it came in that turn.

Rules
  1. `mark` says that something of an object may have changed; its pass runs at the end of the turn. What is marked
     twice is worked out once.
  2. A pass that raises affects its object only: it is tried again after a pause, and what arrives meanwhile is tried
     at once.
  3. A pass may name a time at which it wants to run again though nothing has changed; the next pass takes that back.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from activator.runtime.clock import NEVER, Defer, Later, Timer
from activator.runtime.controller_counts import Controllers


class Passes:
    """`work(key)` is one pass; it returns when it is due again (monotonic seconds; NEVER: when something changes).
    `failed(key, error)` receives what a pass raises and returns how long to wait, in seconds. `defer` runs a callable
    in the loop's next turn; `later` is the loop's `call_later`.
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
        self._dirty: dict[str, tuple[str, float]] = {}  # by key: for which controller it was marked first, and when
        self._again: dict[str, Timer] = {}  # by key: when it is worked out again by itself
        self._deferred = False

    def mark(self, key: str, controller: str, again: bool = False) -> None:
        """Something of it may have changed; `again`: its pass has failed before."""
        if key not in self._dirty:
            self._dirty[key] = (controller, self._controllers.now())
            self._controllers.added(controller, again)
        if not self._deferred:
            self._deferred = True
            self._defer(self.flush)

    def is_behind(self) -> bool:
        """Something is marked whose pass has not run."""
        return bool(self._dirty)

    def forget(self, key: str) -> None:
        """It is not to be worked out again by itself."""
        timer = self._again.pop(key, None)
        if timer is not None:
            timer.cancel()

    def flush(self) -> None:
        """Run the passes of all that is marked."""
        self._deferred = False
        dirty, self._dirty = self._dirty, {}
        for key, (controller, since_s) in dirty.items():
            self._controllers.taken(controller, self._controllers.now() - since_s)
            try:
                with self._controllers.reconcile(controller):
                    due_s = self._work(key)
            except Exception as error:  # a defect: of this object only
                wait_s = self._failed(key, error)
                self.forget(key)
                self._again[key] = self._later(wait_s, partial(self._look_again, key, controller))
            else:
                self.forget(key)
                if due_s != NEVER:
                    wait_s = max(due_s - self._controllers.now(), 0.0)
                    self._again[key] = self._later(wait_s, partial(self._look_when_due, key, controller))

    def _look_again(self, key: str, controller: str) -> None:
        del self._again[key]
        self.mark(key, controller, again=True)

    def _look_when_due(self, key: str, controller: str) -> None:
        del self._again[key]
        self.mark(key, controller)
