"""The effects of throttlers and tables: messages to the control plane, and calls of other parts of the data plane."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from activator.config.specs import RevisionSpec
from activator.data_plane import statistics
from activator.data_plane.filters.catalogue import FilterCatalogue
from activator.data_plane.loads.shared_loads import SharedLoads
from activator.data_plane.ownership.member import Member
from activator.data_plane.proxy.routing import Router, entry_of
from activator.data_plane.server.registry import ConnectionRegistry
from activator.data_plane.stored_responses.store import ResponseStore
from activator.data_plane.tables.apply import RevisionTables, load_of
from activator.data_plane.tables.hooks import TableHooks
from activator.data_plane.throttle.interfaces import SlotEvents
from activator.data_plane.throttle.revision import RevisionThrottler
from activator.data_plane.upstream.pool import PodPool
from activator.data_plane.upstream.pool_factory import PoolFactory
from activator.messages import (
    FromData,
    PodDrained,
    PodRefused,
    PodServed,
    PodTaken,
    PodUnplaced,
    RevisionBroken,
    RevisionEnded,
    SlotDrained,
    TrialEnded,
)
from activator.runtime.clock import Now
from lb.policy import Policy
from lb.registry import create
from lb.rng import Rng
from lb.slots import Trim
from lb.tracker import PodTracker

log = logging.getLogger("activator.data")


class Parts(Protocol):
    """The parts of a data plane that its tables and throttlers have effects on."""

    answers: ResponseStore
    errors_total: int
    filters: FilterCatalogue
    loads: SharedLoads | None
    member: Member | None
    registry: ConnectionRegistry
    router: Router
    tables: RevisionTables

    def failed(self, error: Exception) -> None: ...


class PlaneEvents(SlotEvents):
    """The adapter that sends events of throttlers as messages."""

    def __init__(self, data: Parts, send: Callable[[FromData], None], now: Now) -> None:
        self._data = data
        self._send = send
        self._now = now

    def activated(self, key: str) -> None:
        self._data.tables.activated(key)
        throttler = self._data.tables.throttlers.get(key)
        if self._data.loads is not None and throttler is not None:
            self._data.loads.activated(throttler)
        self.queue_formed(key)  # the autoscaler is sent the first request at once, whether it waits or not

    def queue_formed(self, key: str) -> None:
        throttler = self._data.tables.throttlers.get(key)
        if throttler is not None:
            self._send(load_of(throttler, self._now()))

    def drained(self, key: str, slot: int, generation: int) -> None:
        self._send(SlotDrained(key, slot, generation))

    def departed(self, key: str, identity: str) -> None:
        self._send(PodDrained(key, identity))

    def trial_ended(self, key: str, identity: str, epoch: int, succeeded: bool) -> None:
        self._send(TrialEnded(key, identity, epoch, succeeded))

    def refused(self, key: str, identity: str, epoch: int, dead: bool, reason: str) -> None:
        self._data.tables.suspected(key, identity)
        self._send(PodRefused(key, identity, epoch, dead, reason))

    def taken(self, key: str, identity: str, is_over: bool, failure: str) -> None:
        self._send(PodTaken(key, identity, is_over, failure))

    def suspected(self, key: str, identity: str) -> None:
        self._data.tables.suspected(key, identity)

    def served(self, key: str, identity: str, epoch: int) -> None:
        self._send(PodServed(key, identity, epoch))

    def failed(self, key: str, error: Exception) -> None:
        self._data.failed(error)


class PlaneHooks(TableHooks):
    """The hooks of the tables into router, pools, members and loads."""

    def __init__(self, data: Parts, pools: PoolFactory, rng: Rng, send: Callable[[FromData], None]) -> None:
        self._data = data
        self._pools = pools
        self._rng = rng
        self._send = send

    def make_policy(self, name: str) -> Policy:
        return create(name, Rng(self._rng.below(1 << 30)))

    def revision_set(self, throttler: RevisionThrottler) -> None:
        throttler.filters = self._data.filters.chain_of(throttler.key, throttler.spec.filters)
        throttler.queue.weigh_users(self._data.filters.user_weights)
        self._data.router.set(throttler)
        self._data.answers.revision_set(throttler.key, throttler.spec.filters.respond_async is not None)
        entries = {entry_of(port) for port in throttler.routing.ports}
        if entries:
            leaving = self._data.registry.leaving
            if throttler.routing.is_left:
                leaving.update(entries)
            else:
                leaving.difference_update(entries)
        member = self._data.member
        if member is not None:
            if throttler.spec.container_concurrency > 0:
                member.revision_set(throttler)
            else:
                member.limit_removed(throttler.common_name)
        if self._data.loads is not None:
            self._data.loads.revision_set(throttler)
        self._pools.revision_set(throttler)

    def revision_dropped(self, throttler: RevisionThrottler) -> None:
        key = throttler.key
        self._data.router.drop(key)
        self._data.filters.revision_dropped(key)
        self._data.answers.revision_set(key, False)
        self._data.registry.leaving.difference_update(entry_of(port) for port in throttler.routing.ports)
        if self._data.member is not None:
            self._data.member.revision_dropped(throttler.common_name)
        if self._data.loads is not None:
            self._data.loads.revision_dropped(throttler)
        self._pools.revision_dropped(key)

    def revision_ended(self, throttler: RevisionThrottler) -> None:
        self._send(RevisionEnded(statistics.revision(throttler)))

    def pod_placed(self, tracker: PodTracker, spec: RevisionSpec) -> None:
        tracker.attachment = self._pools.pool_of(tracker, spec)
        throttler = self._data.tables.throttlers.get(spec.key)
        if self._data.loads is not None and throttler is not None:
            self._data.loads.pod_placed(throttler, tracker)

    def pod_withdrawn(self, attachment: object) -> None:
        assert isinstance(attachment, PodPool)
        attachment.in_use().close()

    def address_taken(self, attachment: object) -> None:
        assert isinstance(attachment, PodPool)
        attachment.in_use().watch()

    def pod_drained(self, key: str, identity: str) -> None:
        self._send(PodDrained(key, identity))

    def pod_unplaced(self, key: str, identity: str) -> None:
        self._send(PodUnplaced(key, identity))

    def drain_expired(self, key: str, slot: int, generation: int) -> None:
        self._send(SlotDrained(key, slot, generation, forced=True))

    def trimmed(self, key: str, trim: Trim) -> None:
        log.debug(
            "trimmed the table of %s: length %d -> %d (%.0f %% was empty, threshold %.0f %%), slots %d -> %d",
            key,
            trim.length_before,
            trim.length_after,
            100.0 * trim.fragmentation_before,
            100.0 * trim.threshold,
            trim.slots_before,
            trim.slots_after,
        )

    def failed(self, effect: object, error: Exception) -> None:
        self._data.errors_total += 1
        log.error("could not apply %r", effect, exc_info=error)

    def broken(self, key: str, cause: str, kind: str) -> None:
        self._send(RevisionBroken(key, cause, kind))
