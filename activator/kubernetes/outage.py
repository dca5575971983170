"""Detects outages of the Kubernetes API, and when one ends, wakes the tasks that pause because of it.

Rules
  1. An outage begins with a call that has no answer, or an answer 5xx, and ends with the first good answer to any call.
     Every pause after a failure ends then; separate backoffs would each end at another time.
  2. An API that fails only some calls, or fails intermittently, must not get every retry each second: the time between
     two wakes of the listeners doubles up to WAKES_APART_MAX_S.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from activator.runtime.clock import NEVER, Now

WAKES_APART_INITIAL_S: Final = 1.0  # shortest time between two wakes; doubles with each
WAKES_APART_MAX_S: Final = 30.0
WAKES_FORGOTTEN_S: Final = 60.0  # after this time without a wake the gap is reset

log = logging.getLogger("activator.kubernetes")


class Outage:
    """The outages of one cluster's API, as the calls of one client show them."""

    def __init__(self, now: Now) -> None:
        self._now = now
        self._listeners: list[Callable[[], None]] = []
        self._began_s = -NEVER  # when the last outage began
        self._woke_s = -NEVER  # when the listeners were last called
        self._gap_s = WAKES_APART_INITIAL_S  # shortest time until the next wake
        self.is_on = False
        self.wakes_total = 0

    def on_end(self, listener: Callable[[], None]) -> None:
        """Call `listener` when an outage ends."""
        self._listeners.append(listener)

    def forget(self, listener: Callable[[], None]) -> None:
        """Stop calling `listener`."""
        self._listeners.remove(listener)

    def failed(self) -> None:
        """Record that a call had no answer, or 5xx."""
        if not self.is_on:
            self.is_on = True
            self._began_s = self._now()

    def answered(self) -> None:
        """Record a good answer; wake the listeners if it ends an outage (rule 2)."""
        if not self.is_on:
            return
        self.is_on = False
        now_s = self._now()
        since_wake_s = now_s - self._woke_s
        if since_wake_s < self._gap_s:
            return
        self._gap_s = WAKES_APART_INITIAL_S if since_wake_s >= WAKES_FORGOTTEN_S else self._gap_s * 2.0
        self._gap_s = min(self._gap_s, WAKES_APART_MAX_S)
        self._woke_s = now_s
        self.wakes_total += 1
        log.debug("the Kubernetes API answers again, after %.1f s", now_s - self._began_s)
        for listener in list(self._listeners):
            listener()
