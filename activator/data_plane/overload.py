"""The steps that one worker takes against its own overload. The admin port is never affected.

    1  responses over HTTP/1.1 close their connections
    2  a request that would have to wait is refused, unless it waits for slots that another worker grants
    3  new connections are refused

Rules
  1. The step is the highest that one of three measures asks for: the delay of the event loop, the resident memory, and
     the number of client connections. Step 3 includes step 2.
  2. The delay is the least of DELAY_SAMPLES in a row: one long turn, or a process that was stopped, is no overload. It
     asks for steps 2 and 3 without step 1: a new connection costs twice as much time as a request on an open one, so
     closing connections would prolong the overload. Step 1 is taken only while one of the other measures asks for it.
  3. The step rises at once, and falls by one each CALM_S in which the measures ask for less. Each change is logged.
  4. Admitted requests are served: none is cut, and those that wait keep their places.
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
from activator.runtime.clock import Now
from activator.runtime.units import MIB

NORMAL: Final = 0
CLOSES_KEPT: Final = 1
NO_QUEUEING: Final = 2
NO_CONNECTIONS: Final = 3

LOOK_S: Final = 0.1  # interval of the checks
DELAY_SAMPLES: Final = 3
CALM_S: Final = 0.5
MEMORY_SHARES: Final = (0.8, 0.9, 1.0)  # shares of `limits.memory` that ask for steps 1 to 3
CONNECTIONS_SHARE: Final = 0.9  # share of `limits.connections` for step 1; at the limit each new one is shed

_TAKEN: Final = (
    "",
    "responses close their connections",
    "requests that would have to wait are refused",
    "new connections are refused",
)

log = logging.getLogger("activator.data")


class OverloadLadder:
    """The current step, which follows the wanted one."""

    def __init__(self) -> None:
        self.step: int = NORMAL
        self._asked_s: float = 0.0  # when the current step was wanted last

    def follow(self, wanted: int, now_s: float) -> bool:
        """Take the step that is wanted now; return True if that is a change."""
        if wanted >= self.step:
            self._asked_s = now_s
            changed = wanted > self.step
            self.step = wanted
            return changed
        if now_s - self._asked_s < CALM_S:
            return False
        self._asked_s = now_s
        self.step -= 1
        return True


class Overload:
    """The watch over the load of one worker."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        now: Now,
        registry: ConnectionRegistry,
        waiting: HeldBudget,
        resident_bytes: Callable[[], int],
        limits: Limits,
    ) -> None:
        self._loop = loop
        self._now = now
        self._registry = registry
        self._waiting = waiting
        self._resident_bytes = resident_bytes
        self.limits = limits
        self._ladder = OverloadLadder()
        self._delays: deque[float] = deque([0.0] * DELAY_SAMPLES, DELAY_SAMPLES)
        self._due_s: float = 0.0
        self._resident: int = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def step(self) -> int:
        return self._ladder.step

    def configure(self, limits: Limits) -> None:
        self.limits = limits

    def start(self) -> None:
        """Check now and every LOOK_S."""
        self._arm()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        self._due_s = self._now() + LOOK_S
        self._timer = self._loop.call_later(LOOK_S, self._look)

    def _look(self) -> None:
        now_s = self._now()
        self._delays.append(now_s - self._due_s)
        self._arm()  # first, so that an exception does not end the watch
        scarce = max(self._by_memory(), self._by_connections())
        wanted, cause = max(self._by_delay(), scarce)
        before = self.step
        changed = self._ladder.follow(wanted, now_s)
        self._registry.closes_kept = scarce[0] >= CLOSES_KEPT
        if changed:
            self._apply(before, cause)

    def _by_delay(self) -> tuple[int, str]:
        delay_s = min(self._delays)
        most_s = float(self.limits.loop_delay)
        if most_s <= 0.0 or delay_s < most_s:
            return NORMAL, ""
        return (NO_CONNECTIONS if delay_s >= 2 * most_s else NO_QUEUEING), f"the event loop is late by {delay_s:.1f} s"

    def _by_memory(self) -> tuple[int, str]:
        most = self.limits.memory
        if most <= 0:
            return NORMAL, ""
        resident = self._resident = self._resident_bytes() or self._resident  # 0: no descriptor is left to read it
        step = sum(resident >= share * most for share in MEMORY_SHARES)
        return step, f"{resident // MIB} of {most // MIB} MiB of memory are used"

    def _by_connections(self) -> tuple[int, str]:
        registry = self._registry
        count, most = registry.count(), registry.connections_max
        if count < CONNECTIONS_SHARE * most:
            return NORMAL, ""
        return CLOSES_KEPT, f"{count} of {most} client connections are open"

    def _apply(self, before: int, cause: str) -> None:
        step = self.step
        self._waiting.refuses = step >= NO_QUEUEING
        self._registry.refuses_new = step >= NO_CONNECTIONS
        if step > before:
            first = before if self._registry.closes_kept else max(before, CLOSES_KEPT)
            log.warning("overloaded: %s; %s", cause, ", and ".join(_TAKEN[first + 1 : step + 1]))
        elif step == NORMAL:
            log.info("no longer overloaded")
        else:
            log.info("less overloaded: %s", _TAKEN[step])
