"""A way of claiming an index: what all ways share, round by round.

Rules
  1. A round is one look at the API and at most one attempt to take an index. What an attempt did is known only from the
     next look where its answer was lost; so a failed call begins a new round.
  2. Who has an index already when the claim begins (its container was restarted) keeps it, whatever is free below.
  3. The lowest free index is tried first, so a member that starts alone takes one look and one attempt. After a
     conflict many are starting at once: with Choice.RANDOM one of the lowest free ones is tried from then on.
  4. A lower index may be free where that one was taken. Before it returns, a member that has a hole below it moves
     down, or waits until others have filled it: nobody returns while a lower index is free or about to be left. So
     nobody who has returned is left above a hole by others that claim, and nobody moves afterwards. Only the end of a
     member leaves a hole, which the next one that starts fills.
  5. Rounds, failures in a row and pauses are bounded; pauses are jittered. 403 ends the claim at once.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import Counter
from typing import Final

from activator.kubernetes.backoff import kube_backoff
from activator.kubernetes.client import KubeClient
from activator.kubernetes.errors import KubeError
from activator.kubernetes.listing import Pause
from activator.members.claims.calls import CountedCalls
from activator.members.claims.errors import ClaimFailedError
from activator.members.claims.names import GroupNames
from activator.members.claims.seats import Holder
from activator.members.claims.table import Choice, Table
from activator.runtime.backoff import Backoff
from activator.runtime.tasks import pause
from lb.rng import Rng

CLAIM_ROUNDS_MAX: Final = 500  # of one claim; a hundred members that start at once take some ten
CLAIM_FAILURES_MAX: Final = 10  # calls that fail in a row before a claim gives up: pauses of some 70 s in all
CLAIM_PAUSE_INITIAL_S: Final = 0.005  # after a round that others have won: between half of it and all of it …
CLAIM_PAUSE_MAX_S: Final = 0.1  # … doubling up to this
CLAIM_SPREAD: Final = 16  # Choice.RANDOM: after a conflict, among how many of the lowest free indexes
SETTLE_ROUNDS_MAX: Final = 5  # a member waits so long for others to fill the holes below it, then does it itself
RELEASE_ATTEMPTS_MAX: Final = 4  # calls that fail in a row before a release gives up: pauses of some 1.5 s in all

log = logging.getLogger("activator.members")


class Starter(ABC):
    """Claims an index for one holder. One claim or release at a time.

    `rounds` and `conflicts` (attempts that another member has won) are of all claims so far; `duplicates` counts the
    indexes that two members had at once, which only one of the ways allows.
    """

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        group: str,
        holder: Holder,
        rng: Rng,
        choice: Choice = Choice.RANDOM,
        pause: Pause = pause,
        spread: int = CLAIM_SPREAD,
    ) -> None:
        self.holder = holder
        self.names = GroupNames(group)
        self.namespace = namespace
        self.choice = choice
        self.rounds = 0
        self.conflicts = 0
        self.duplicates = 0
        self._spread = spread
        self._rng = rng
        self._pause = pause
        self._calls = CountedCalls(client)
        self._attempted = False  # whether this claim has tried to take an index
        self._has_lost = False  # … and another member has won
        self._waited_rounds = 0  # in a row, for others to fill the holes below

    @property
    def calls(self) -> Counter[str]:
        """How many calls were made, by verb."""
        return self._calls.by_verb

    async def claim(self) -> int:
        """The index of this holder: the one that it has, or a new one. Raises MembershipError."""
        failures = kube_backoff(self._rng)
        lost = Backoff(CLAIM_PAUSE_INITIAL_S, CLAIM_PAUSE_MAX_S, self._rng)
        self._attempted = False
        self._has_lost = False
        self._waited_rounds = 0
        for _ in range(CLAIM_ROUNDS_MAX):
            self.rounds += 1
            try:
                index = await self._round()
            except KubeError as error:
                await self._after_failure(error, failures, CLAIM_FAILURES_MAX)
                continue
            failures.reset()
            if index is not None:
                return index
            await self._pause(lost.next_s())
        raise ClaimFailedError(f"no index of {self.names.group} within {CLAIM_ROUNDS_MAX} rounds")

    async def release(self) -> None:
        """Give up what this holder has. Raises MembershipError; then it stays until somebody evicts it."""
        failures = kube_backoff(self._rng)
        while True:
            try:
                await self._leave()
                return
            except KubeError as error:
                await self._after_failure(error, failures, RELEASE_ATTEMPTS_MAX)

    async def _after_failure(self, error: KubeError, failures: Backoff, maximum: int) -> None:
        if failures.failures + 1 >= maximum:
            raise ClaimFailedError(f"{self.names.group}: {maximum} calls in a row failed, the last: {error}") from error
        pause_s = failures.next_s(error.retry_after_s)
        log.warning("%s: %s; again in %.2f s", self.names.group, error, pause_s)
        await self._pause(pause_s)

    # --- one round --------------------------------------------------------------------------------------------------

    async def _round(self) -> int | None:
        """The index, or None: the next round decides."""
        table = await self._look()
        mine = table.of(self.holder.uid)
        if mine is not None and not table.is_shared(mine):
            return await self._settled(table, mine)
        spread = self._spread if self._has_lost and self.choice is Choice.RANDOM else 1
        candidate = table.candidate(spread, self._rng)
        if not await self._attempt(candidate, mine):
            return None
        table.add(candidate, self.holder.uid)
        return candidate if table.is_dense_below(candidate) else None

    async def _settled(self, table: Table, mine: int) -> int | None:
        """`mine` if it can stay, or None: it moves, or others are about to."""
        if not self._attempted or table.is_dense_below(mine):
            return mine
        hole = table.hole_for(mine)
        if hole is None and self._waited_rounds >= SETTLE_ROUNDS_MAX:
            (hole,) = table.free(1) or [mine]
        if hole is None or hole >= mine:
            self._waited_rounds += 1
        else:
            self._waited_rounds = 0
            await self._attempt(hole, mine)
        return None

    async def _attempt(self, index: int, leaving: int | None) -> bool:
        self._attempted = True
        won = await self._take(index, leaving)
        if not won:
            self.conflicts += 1
            self._has_lost = True
        return won

    @abstractmethod
    async def _look(self) -> Table:
        """Who has what, by a consistent read. Raises KubeError, MembershipError."""

    @abstractmethod
    async def _take(self, index: int, leaving: int | None) -> bool:
        """Claim `index`, and leave `leaving`; False: another member has won. Raises KubeError, MembershipError."""

    @abstractmethod
    async def _leave(self) -> None:
        """Give up all that this holder has. Raises KubeError, MembershipError."""
