"""One name, asked again and again: what it stands for, and why it stands for nothing.

Rules
  1. The next question comes when the TTL is over. After a failure it comes sooner, less and less often, and at once
     when requests wait for the revision and it has no pods.
  2. A resolver that fails changes nothing: the last answer holds. A name that is gone keeps its addresses for
     NAME_GONE_HOLD_S, since a record that is replaced may be missing for a moment; then it stands for none.
  3. One line in the log when a name begins to fail, when the cause changes, and when it is back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Final

from activator.control_plane.sources.fixed_pods.resolver import NameGoneError, Resolved, ResolveError, Target
from activator.runtime.backoff import Backoff
from activator.runtime.clock import Now

NAME_GONE_HOLD_S: Final = 30.0
NAME_RETRY_INITIAL_S: Final = 0.5
NAME_RETRY_MAX_S: Final = 10.0
NAMES_AT_ONCE_MAX: Final = 32  # questions of all names under way
NAME_HURRY_GAP_S: Final = 0.5  # between two questions about one name, also when requests wait

Wait = Callable[[asyncio.Event, float], Coroutine[None, None, bool]]

log = logging.getLogger("activator.state")


class NameWatch:
    """`resolve` asks once; `changed` is called with each answer or failure that alters anything."""

    def __init__(
        self,
        label: str,
        resolve: Callable[[], Awaitable[Resolved]],
        changed: Callable[[], None],
        places: asyncio.Semaphore,
        now: Now,
        wait: Wait,
    ) -> None:
        self.label = label
        self.targets: tuple[Target, ...] = ()
        self.problem = ""  # why the last question failed
        self.failing_since_s = 0.0
        self._resolve = resolve
        self._changed = changed
        self._places = places
        self._now = now
        self._wait = wait
        self._hurried = asyncio.Event()
        self._retry = Backoff(NAME_RETRY_INITIAL_S, NAME_RETRY_MAX_S)

    async def step(self) -> None:
        """Ask once, and rest until the next question."""
        self._hurried.clear()
        begun_s = self._now()
        pause_s = await self._ask(begun_s)
        if await self._wait(self._hurried, pause_s):
            gap_s = begun_s + NAME_HURRY_GAP_S - self._now()
            if gap_s > 0.0:
                await self._wait(asyncio.Event(), gap_s)

    def hurry(self) -> None:
        """Requests wait, and there is nothing that they could go to."""
        if self.problem:
            self._hurried.set()

    async def _ask(self, begun_s: float) -> float:
        """Ask once; how long to wait until the next question."""
        try:
            async with self._places:
                found = await self._resolve()
        except (ResolveError, NameGoneError) as error:
            self._failed(begun_s, str(error), isinstance(error, NameGoneError))
            return self._retry.next_s()
        self._retry.reset()
        if self.problem:
            log.info("%s is resolved again", self.label)
        if found.cut:
            log.warning("%s has more addresses than can be used: the first %d are", self.label, len(found.targets))
        if self.problem or found.targets != self.targets:
            self.problem = ""
            self.targets = found.targets
            self._changed()
        return found.ttl_s

    def _failed(self, begun_s: float, problem: str, is_gone: bool) -> None:
        if not self.problem:
            self.failing_since_s = begun_s
        held_s = self._now() - self.failing_since_s
        if is_gone and self.targets and held_s >= NAME_GONE_HOLD_S:
            log.warning("%s: %s, for %.0f s: its pods are withdrawn", self.label, problem, held_s)
            self.targets = ()
        elif problem != self.problem:
            kept = f"; its {len(self.targets)} addresses stay" if self.targets else ""
            log.warning("%s cannot be resolved: %s%s", self.label, problem, kept)
        self.problem = problem
        self._changed()
