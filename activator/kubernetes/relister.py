"""Independent reconciliation: lists at intervals, and repairs what the watch has missed.

A watch can be wrong without breaking: because of events dropped on the way, a server that lags behind another, or a
bug. Therefore the whole selection is listed and compared with the store every `interval_s`, and the parts that requests
wait for (a revision without a pod, whose requests are queued) every `expedite_s`.

Rules
  1. The watch remains the primary source: a comparison never stops it, and reverts nothing that it delivered during the
     comparison.
  2. A whole round lists the metadata of all objects, and then reads the objects whose version differs from the store's:
     individually or, if there are many, by a list.
  3. The event of a difference may still arrive. The difference is repaired at once and counted; the event is then
     stale.
  4. While the store has no whole list, there is nothing to repair, and no round runs.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Final, Generic

from activator.kubernetes.backoff import KUBE_WOKEN_S, kube_backoff
from activator.kubernetes.client import ONLY_METADATA, KubeClient
from activator.kubernetes.decoding import Decoding
from activator.kubernetes.errors import KubeError
from activator.kubernetes.listing import KUBE_PAGE_OBJECTS, Pause, list_all
from activator.kubernetes.object_store import version_number
from activator.kubernetes.objects import Object, VersionOnly
from activator.kubernetes.reflector import Reflector
from activator.kubernetes.resources import Scope
from activator.runtime.backoff import fraction
from activator.runtime.clock import NEVER, Now
from activator.runtime.tasks import pause
from lb.rng import Rng

KUBE_RECONCILE_INTERVAL_S: Final = 600.0  # between two comparisons of a whole list with the store
KUBE_RECONCILE_EXPEDITE_S: Final = 1.0  # between two comparisons of a part that requests wait for
KUBE_COMPARED_SINGLY_MAX: Final = 10  # up to so many objects are read individually
EXPEDITE_SLACK: Final = 0.9  # share of `expedite_s`, because checks may be slightly less than a second apart
KUBE_EXPEDITED_MAX: Final = 100  # scopes that are expedited at the same time
KUBE_EXPEDITED_PER_ROUND_MAX: Final = 10  # expedited scopes that are compared in one round

log = logging.getLogger("activator.kubernetes")


class Relister(Generic[Object]):
    """The reconciliation of one reflector. Start `run` as a task, and call `wake_if_due` about once a second.

    `repairs_total` counts by kind: missed_add, missed_change, missed_delete, missed_recreate, and version_only (an
    update of irrelevant fields). `rounds_total`, `failed_rounds_total` and `spent_s` measure the cost.
    """

    def __init__(
        self,
        client: KubeClient,
        reflector: Reflector[Object],
        now: Now,
        rng: Rng,
        pause: Pause = pause,
        interval_s: float = KUBE_RECONCILE_INTERVAL_S,
        expedite_s: float = KUBE_RECONCILE_EXPEDITE_S,
        page_objects: int = KUBE_PAGE_OBJECTS,
    ) -> None:
        self._client = client
        self._reflector = reflector
        self._now = now
        self._pause = pause
        self._backoff = kube_backoff(rng)
        self._rng = rng
        self._page_objects = page_objects
        self._versions = Decoding(VersionOnly)
        self.interval_s = interval_s  # may change live
        self.expedite_s = expedite_s
        self._next_s = -NEVER  # the next whole round is due
        self._expedited: dict[Scope, int] = {}  # how many callers wait for each scope
        self._expedited_next_s = -NEVER
        self._is_due = asyncio.Event()
        self.repairs_total: Counter[str] = Counter()
        self.rounds_total: Counter[str] = Counter()  # "whole" and "expedited"
        self.failed_rounds_total = 0
        self.spent_s = 0.0  # in all rounds, from the request to the end of the comparison
        self.compared_s = -NEVER  # when the last whole round succeeded

    def expedite(self, scope: Scope) -> bool:
        """Compare `scope` often, because a caller waits for it, until `relax`. False: too many scopes are expedited."""
        if scope not in self._expedited and len(self._expedited) >= KUBE_EXPEDITED_MAX:
            return False
        self._expedited[scope] = self._expedited.get(scope, 0) + 1
        return True

    def relax(self, scope: Scope) -> None:
        """Undo one `expedite` of this scope: its caller no longer waits."""
        waiting = self._expedited.get(scope, 0)
        if waiting > 1:
            self._expedited[scope] = waiting - 1
        else:
            self._expedited.pop(scope, None)

    async def run(self) -> None:
        """Run rounds until cancelled."""
        self._next_s = self._now() + self.interval_s * (0.5 + 0.5 * fraction(self._rng))
        while True:
            await self._is_due.wait()
            self._is_due.clear()
            await self.run_due_rounds()

    def wake_if_due(self) -> None:
        """Wake `run` if a round is due.

        One caller checks all relisters: four tasks that woke up each second by themselves were more than half of the
        cost of a steady state.
        """
        now_s = self._now()
        if now_s >= self._next_s or (self._expedited and now_s >= self._expedited_next_s):
            self._is_due.set()

    def wake(self) -> None:
        """Make a failed round due now, because the API answers again, unless the server has asked for a pause."""
        if self._backoff.failures and not self._backoff.is_asked_for:
            self._backoff.lower(KUBE_WOKEN_S)
            self._next_s = self._expedited_next_s = self._now()
            self._is_due.set()

    async def run_due_rounds(self) -> None:
        """Run the rounds that are due."""
        now_s = self._now()
        if not self._reflector.synced or not self._reflector.version:
            return
        try:
            if now_s >= self._next_s:
                self._next_s = now_s + self.interval_s
                await self.reconcile()
            elif now_s >= self._expedited_next_s:
                self._expedited_next_s = now_s + EXPEDITE_SLACK * self.expedite_s
                await self._reconcile_expedited()
            self._backoff.reset()
        except KubeError as error:
            self._record_failed_round(now_s, error)
        except Exception as error:
            self._record_failed_round(now_s, error)
            log.exception("%s: the comparison failed", self._reflector.name)

    async def _reconcile_expedited(self) -> None:
        """Compare the scopes that are due, the longest waiting first."""
        for scope in list(self._expedited)[:KUBE_EXPEDITED_PER_ROUND_MAX]:
            waiting = self._expedited.pop(scope, 0)  # 0: relaxed during the comparison of another scope
            if waiting:
                self._expedited[scope] = waiting  # at the end
                await self.reconcile(scope)

    async def reconcile(self, scope: Scope | None = None) -> int:
        """Run one round, of all objects or of a part; return the number of repairs. Raise KubeError on failure."""
        reflector = self._reflector
        async with reflector.list_lock:
            began_s = self._now()
            repairs = await self._compare_all() if scope is None else await self._compare_and_repair(scope)
            if repairs is None:
                return 0
            ended_s = self._now()
            self.rounds_total["whole" if scope is None else "expedited"] += 1
            self.spent_s += ended_s - began_s
            if scope is None:
                self.compared_s = ended_s
        missed = repairs.total() - repairs["version_only"]
        if missed:
            log.info("%s: %d differences repaired: %s", reflector.name, missed, dict(repairs))
        return missed

    async def _compare_all(self) -> Counter[str] | None:
        """Compare by versions, and repair; return the repairs, or None if the list was older than the store."""
        reflector = self._reflector
        version_before = reflector.version
        reflector.contents.begin_comparison()
        try:
            versions, version = await list_all(
                self._client, reflector.selection, self._versions, self._pause, self._page_objects, ONLY_METADATA
            )
            if not self._is_current_or_relist(version_before, version):
                return None
            differing = reflector.contents.differing(versions, version)
        finally:
            reflector.contents.end_comparison()
        if len(differing) > KUBE_COMPARED_SINGLY_MAX:
            return await self._compare_and_repair(None)
        repairs: Counter[str] = Counter()
        for namespace, name in differing:
            repaired = await self._compare_and_repair(Scope(namespace, name=name))
            if repaired is None:
                return None
            repairs += repaired
        return repairs

    async def _compare_and_repair(self, scope: Scope | None) -> Counter[str] | None:
        """Compare whole objects, all or those in `scope`, and repair; return the repairs, or None as `_compare_all`."""
        reflector = self._reflector
        selection = reflector.selection if scope is None else scope.narrowed(reflector.selection)
        version_before = reflector.version
        reflector.contents.begin_comparison()
        try:
            items, version = await list_all(
                self._client, selection, reflector.decoding, self._pause, self._page_objects
            )
            if not self._is_current_or_relist(version_before, version):
                return None
            repairs = reflector.contents.repair(items, version, scope)
        finally:
            reflector.contents.end_comparison()
        self.repairs_total += repairs
        return repairs

    def _is_current_or_relist(self, version_before: str, version: str) -> bool:
        """Return True if the list is not older than the store; otherwise have the reflector list again."""
        self._reflector.answered()
        if not _went_back(version_before, version):
            return True
        self._reflector.relist(f"the API is at version {version}, the watch was at {version_before} before")
        return False

    def _record_failed_round(self, now_s: float, error: Exception) -> None:
        """Count and log a failed round; postpone all rounds by the backoff."""
        self.failed_rounds_total += 1
        wait_s = self._backoff.next_s(error.retry_after_s if isinstance(error, KubeError) else None)
        self._next_s = max(self._next_s, now_s + wait_s)
        self._expedited_next_s = max(self._expedited_next_s, now_s + wait_s)
        log.debug("%s: the comparison failed: %s", self._reflector.name, error)


def _went_back(before: str, now: str) -> bool:
    """Return True if the server's version has gone back, as after a restored backup."""
    number_before, number_now = version_number(before), version_number(now)
    return number_before is not None and number_now is not None and number_now < number_before
