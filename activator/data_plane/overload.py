"""The steps that one worker takes against its own overload. The admin port is never affected.

    1  responses over HTTP/1.1 close their connections
    2  a request that would have to wait is refused, unless it waits for slots that another worker grants
    3  new connections are refused

Rules
  1. Scarce memory (`limits.memory`) asks for each step with those before it; many client connections ask for step 1.
  2. A late event loop asks for steps 2 and 3, not for step 1: a new connection costs twice as much time as a request on
     an open one, so closing connections would prolong the overload. The delay is the least of DELAY_SAMPLES in a row:
     one long turn, or a process that was stopped, is no overload.
  3. A step is taken at once. The step that a cause has asked for falls by one after each CALM_S in which it asks for
     less.
  4. Admitted requests are served: none is cut, and queued requests keep their positions.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from activator.config.model.listeners import Limits
from activator.data_plane.server.registry import ConnectionRegistry
from activator.data_plane.throttle.budget import HeldBudget
from activator.runtime.clock import Now, until_next
from activator.runtime.units import MIB

NORMAL: Final = 0
CLOSES_KEPT: Final = 1
NO_QUEUEING: Final = 2
NO_CONNECTIONS: Final = 3

CHECK_INTERVAL_S: Final = 0.1  # interval of the checks
DELAY_SAMPLES: Final = 3
CALM_S: Final = 0.5
MEMORY_SHARES: Final = (0.8, 0.9, 1.0)  # shares of `limits.memory` that ask for steps 1 to 3
CONNECTIONS_SHARE: Final = 0.9  # share of `limits.connections` for step 1; at the limit each new one is shed

_STEP_TEXTS: Final = (
    "responses close their connections",
    "requests that would have to wait are rejected",
    "new connections are rejected",
)

log = logging.getLogger("activator.data")


class OverloadLadder:
    """The step that one cause has asked for."""

    def __init__(self) -> None:
        self.step: int = NORMAL
        self._required_s: float = 0.0  # when the current step was required last

    def follow(self, required: int, now_s: float) -> None:
        """Raise the step to the one required, or lower it by one after CALM_S with a lower requirement."""
        if required >= self.step:
            self.step = required
        elif now_s - self._required_s >= CALM_S:
            self.step -= 1
        else:
            return
        self._required_s = now_s


class Overload:
    """The overload checks of one worker, and the steps that are taken."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        now: Now,
        registry: ConnectionRegistry,
        waiting_budget: HeldBudget,
        resident_bytes: Callable[[], int],
        limits: Limits,
    ) -> None:
        self._loop = loop
        self._now = now
        self._registry = registry
        self._waiting_budget = waiting_budget
        self._resident_bytes = resident_bytes
        self.limits = limits
        self._scarce = OverloadLadder()  # memory and connections
        self._late = OverloadLadder()  # the delay of the event loop
        self._delays: deque[float] = deque([0.0] * DELAY_SAMPLES, DELAY_SAMPLES)  # the last delays of the loop
        self._due_s: float = 0.0  # when the next check is due
        self._resident: int = 0  # bytes at the last check
        self._timer: asyncio.TimerHandle | None = None

    def taken(self) -> tuple[bool, bool, bool]:
        """Return which steps are taken, in the order of OVERLOAD_STEPS."""
        scarce, late = self._scarce.step, self._late.step
        return scarce >= CLOSES_KEPT, max(scarce, late) >= NO_QUEUEING, max(scarce, late) >= NO_CONNECTIONS

    def configure(self, limits: Limits) -> None:
        self.limits = limits

    def start(self) -> None:
        """Check now and every CHECK_INTERVAL_S."""
        self._arm()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        now_s = self._now()
        delay_s = until_next(CHECK_INTERVAL_S, now_s)
        self._due_s = now_s + delay_s
        self._timer = self._loop.call_later(delay_s, self._check)

    def _check(self) -> None:
        """Take the steps that are required now, and set the next check."""
        now_s = self._now()
        self._delays.append(now_s - self._due_s)
        self._arm()  # first, so that an exception does not end the watch
        before = self.taken()
        scarce, scarce_cause = max(self._by_memory(), self._by_connections())
        late, late_cause = self._by_delay()
        self._scarce.follow(scarce, now_s)
        self._late.follow(late, now_s)
        taken = self.taken()
        if taken != before:
            self._registry.closes_kept, self._waiting_budget.refuses, self._registry.refuses_new = taken
            _log_change(before, taken, "; ".join([cause for cause in (scarce_cause, late_cause) if cause]))

    def _by_delay(self) -> tuple[int, str]:
        """Return the step that the delay of the event loop requires, and the cause for the log."""
        delay_s = min(self._delays)
        delay_max_s = float(self.limits.loop_delay)
        if delay_max_s <= 0.0 or delay_s < delay_max_s:
            return NORMAL, ""
        step = NO_CONNECTIONS if delay_s >= 2 * delay_max_s else NO_QUEUEING
        return step, f"the event loop is late by {delay_s:.1f} s"

    def _by_memory(self) -> tuple[int, str]:
        """Return the step that the memory requires, and the cause for the log."""
        memory_max = self.limits.memory
        if memory_max <= 0:
            return NORMAL, ""
        resident = self._resident = self._resident_bytes() or self._resident  # 0: no descriptor is left to read it
        step = sum(resident >= share * memory_max for share in MEMORY_SHARES)
        return step, f"{resident // MIB} of {memory_max // MIB} MiB of memory are used" if step else ""

    def _by_connections(self) -> tuple[int, str]:
        """Return the step that the client connections require, and the cause for the log."""
        registry = self._registry
        count, connections_max = registry.count(), registry.connections_max
        if count < CONNECTIONS_SHARE * connections_max:
            return NORMAL, ""
        return CLOSES_KEPT, f"{count} of {connections_max} client connections are open"


def _log_change(before: tuple[bool, ...], taken: tuple[bool, ...], cause: str) -> None:
    """Log the steps that are new, or those that are left."""
    new = [text for text, was, is_taken in zip(_STEP_TEXTS, before, taken, strict=True) if is_taken and not was]
    if new:
        log.warning("overloaded: %s; %s", cause, ", and ".join(new))
    elif any(taken):
        still = [text for text, is_taken in zip(_STEP_TEXTS, taken, strict=True) if is_taken]
        log.info("overload reduced; still in effect: %s", ", and ".join(still))
    else:
        log.info("no longer overloaded")
