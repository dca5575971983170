"""The claim of an index, round by round: the part that all ways of claiming share.

Rules
  1. A round is one read of the API and at most one attempt to take an index. If the answer to an attempt is lost, only
     the next read shows its outcome; so a failed call begins a new round.
  2. A holder that has an index when the claim begins (its container was restarted) keeps it, even if a lower one is
     free.
  3. The lowest free index is tried first, so a member that starts alone needs one read and one attempt. A conflict
     means that many are starting at once: with Choice.RANDOM, one of the lowest free indexes is tried from then on.
  4. A lower index may become free after that. Before it returns, a member with a hole below it moves down, or waits
     until others have filled it: no claim returns while a lower index is free or about to be freed. So other claims
     never leave a hole below a member whose claim has returned, and it never moves. Only the end of a member leaves a
     hole, which the next member that starts fills.
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

CLAIM_ROUNDS_MAX: Final = 500  # rounds of one claim; a hundred members that start at once need some ten
CLAIM_FAILURES_MAX: Final = 10  # calls that fail in a row before a claim gives up: pauses of some 70 s in all
CLAIM_PAUSE_INITIAL_S: Final = 0.005  # pause after the first round without a result; jitter takes off up to half of it
CLAIM_PAUSE_MAX_S: Final = 0.1  # bound of that pause, which doubles with each such round
CLAIM_SPREAD: Final = 16  # Choice.RANDOM: number of the lowest free indexes that it chooses from
SETTLE_ROUNDS_MAX: Final = (
    5  # rounds that a member waits for others to fill the holes below it; then it fills one itself
)
RELEASE_ATTEMPTS_MAX: Final = 4  # calls that fail in a row before a release gives up: pauses of some 1.5 s in all

log = logging.getLogger("activator.members")


class Starter(ABC):
    """Claims an index for one holder. One claim or release at a time.

    `rounds` and `conflicts` (attempts that another member has won) count all claims; `duplicates` counts the indexes
    that two members had at once, which only one of the ways allows.
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
        self._attempted = False  # this claim has tried to take an index
        self._has_lost = False  # another member has won such an attempt
        self._waited_rounds = 0  # rounds in a row, for others to fill the holes below

    @property
    def calls(self) -> Counter[str]:
        """The numbers of calls, by verb."""
        return self._calls.by_verb

    async def claim(self) -> int:
        """Return the index of this holder: the one that it has, or a new one. Raises MembershipError."""
        failures = kube_backoff(self._rng)
        round_backoff = Backoff(CLAIM_PAUSE_INITIAL_S, CLAIM_PAUSE_MAX_S, self._rng)
        self._attempted = False
        self._has_lost = False
        self._waited_rounds = 0
        for _ in range(CLAIM_ROUNDS_MAX):
            self.rounds += 1
            try:
                index = await self._round()
            except KubeError as error:
                await self._pause_after_failure(error, failures, CLAIM_FAILURES_MAX)
                continue
            failures.reset()
            if index is not None:
                return index
            await self._pause(round_backoff.next_s())
        raise ClaimFailedError(f"no index of {self.names.group} within {CLAIM_ROUNDS_MAX} rounds")

    async def release(self) -> None:
        """Give up the index of this holder. Raises MembershipError; then it stays until another member evicts it."""
        failures = kube_backoff(self._rng)
        while True:
            try:
                await self._give_up_all()
                return
            except KubeError as error:
                await self._pause_after_failure(error, failures, RELEASE_ATTEMPTS_MAX)

    async def _pause_after_failure(self, error: KubeError, failures: Backoff, attempts_max: int) -> None:
        """Pause after a failed call. Raises ClaimFailedError if `attempts_max` calls in a row have failed."""
        if failures.failures + 1 >= attempts_max:
            raise ClaimFailedError(
                f"{self.names.group}: {attempts_max} calls in a row failed, the last: {error}"
            ) from error
        pause_s = failures.next_s(error.retry_after_s)
        log.warning("%s: %s; again in %.2f s", self.names.group, error, pause_s)
        await self._pause(pause_s)

    # --- one round --------------------------------------------------------------------------------------------------

    async def _round(self) -> int | None:
        """Return the index, or None if the claim needs another round."""
        table = await self._read_table()
        own = table.of(self.holder.uid)
        if own is not None and not table.is_shared(own):
            return await self._stay_or_move(table, own)
        spread = self._spread if self._has_lost and self.choice is Choice.RANDOM else 1
        candidate = table.candidate(spread, self._rng)
        if not await self._attempt(candidate, own):
            return None
        table.add(candidate, self.holder.uid)
        return candidate if table.is_dense_below(candidate) else None

    async def _stay_or_move(self, table: Table, own: int) -> int | None:
        """Return `own` if it can stay; None if this member moves, or others are about to."""
        if not self._attempted or table.is_dense_below(own):
            return own
        hole = table.hole_for(own)
        if hole is None and self._waited_rounds >= SETTLE_ROUNDS_MAX:
            (hole,) = table.free(1) or [own]
        if hole is None or hole >= own:
            self._waited_rounds += 1
        else:
            self._waited_rounds = 0
            await self._attempt(hole, own)
        return None

    async def _attempt(self, index: int, leaving: int | None) -> bool:
        """Try to take an index, and give up `leaving`. Return True if no other member has won."""
        self._attempted = True
        won = await self._claim_index(index, leaving)
        if not won:
            self.conflicts += 1
            self._has_lost = True
        return won

    @abstractmethod
    async def _read_table(self) -> Table:
        """Return the indexes with their holders, by a consistent read. Raises KubeError, MembershipError."""

    @abstractmethod
    async def _claim_index(self, index: int, leaving: int | None) -> bool:
        """Claim `index`, and give up `leaving`; return False if another member has `index` by now.

        Raises KubeError, MembershipError.
        """

    @abstractmethod
    async def _give_up_all(self) -> None:
        """Give up all indexes of this holder. Raises KubeError, MembershipError."""
