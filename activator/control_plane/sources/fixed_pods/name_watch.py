"""One DNS name that is resolved repeatedly: its addresses, and why it has none.

Rules
  1. The next query follows when the TTL is over. After a failure it comes sooner, with a growing backoff, and at once
     when requests wait for the revision and it has no pods.
  2. A failing resolver changes nothing: the last answer stays valid. A name that no longer exists keeps its addresses
     for NAME_GONE_HOLD_S, because a record that is being replaced may be missing for a moment; then it has none.
  3. One log line when a name begins to fail, when the cause changes, and when it resolves again.
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
NAMES_AT_ONCE_MAX: Final = 32  # concurrent queries of all names
NAME_EXPEDITE_GAP_S: Final = 0.5  # between two queries of one name, also when requests wait

Wait = Callable[[asyncio.Event, float], Coroutine[None, None, bool]]

log = logging.getLogger("activator.state")


class NameWatch:
    """The watch of one name. `resolve` queries once; `changed` is called when an answer or failure alters it."""

    def __init__(
        self,
        label: str,
        resolve: Callable[[], Awaitable[Resolved]],
        changed: Callable[[], None],
        permits: asyncio.Semaphore,
        now: Now,
        wait: Wait,
    ) -> None:
        self.label = label
        self.targets: tuple[Target, ...] = ()
        self.problem = ""  # why the last query failed
        self.failing_since_s = 0.0
        self._resolve = resolve
        self._changed = changed
        self._permits = permits
        self._now = now
        self._wait = wait
        self._expedited = asyncio.Event()
        self._retry = Backoff(NAME_RETRY_INITIAL_S, NAME_RETRY_MAX_S)

    async def step(self) -> None:
        """Query once, and wait until the next query is due."""
        self._expedited.clear()
        begun_s = self._now()
        pause_s = await self._query(begun_s)
        if await self._wait(self._expedited, pause_s):
            gap_s = begun_s + NAME_EXPEDITE_GAP_S - self._now()
            if gap_s > 0.0:
                await self._wait(asyncio.Event(), gap_s)

    def expedite(self) -> None:
        """Query again soon if the name fails: requests wait, and the revision has no pods."""
        if self.problem:
            self._expedited.set()

    def restore(self, targets: tuple[Target, ...]) -> None:
        """Use an answer that a former process had, unless this one has got one itself."""
        if targets and not self.targets:
            self.targets = targets
            self._changed()

    async def _query(self, begun_s: float) -> float:
        """Query once; return how long to wait until the next query."""
        try:
            async with self._permits:
                answer = await self._resolve()
        except (ResolveError, NameGoneError) as error:
            self._record_failure(begun_s, str(error), isinstance(error, NameGoneError))
            return self._retry.next_s()
        self._retry.reset()
        if self.problem:
            log.info("%s resolves again", self.label)
        if answer.cut:
            log.warning("%s has too many addresses: only the first %d are used", self.label, len(answer.targets))
        if self.problem or answer.targets != self.targets:
            self.problem = ""
            self.targets = answer.targets
            self._changed()
        return answer.ttl_s

    def _record_failure(self, begun_s: float, problem: str, is_gone: bool) -> None:
        if not self.problem:
            self.failing_since_s = begun_s
        failing_s = self._now() - self.failing_since_s
        if is_gone and self.targets and failing_s >= NAME_GONE_HOLD_S:
            log.warning("%s: %s, for %.0f s: its pods are withdrawn", self.label, problem, failing_s)
            self.targets = ()
        elif problem != self.problem:
            kept = f"; its {len(self.targets)} addresses stay" if self.targets else ""
            log.warning("%s cannot be resolved: %s%s", self.label, problem, kept)
        self.problem = problem
        self._changed()
