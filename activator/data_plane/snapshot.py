"""The snapshot of one data plane's revisions: plain data from one turn, so that its figures are consistent."""

from __future__ import annotations

from typing import Any, Final

from activator.data_plane.ownership.borrowing import Borrowing
from activator.data_plane.ownership.lending import NOTHING_YET
from activator.data_plane.tables.apply import RevisionTables
from activator.data_plane.throttle.revision import RevisionThrottler
from activator.data_plane.upstream.pool import PodPool
from activator.runtime.masking import masked_target
from lb.tracker import EMPTY, STATE_NAMES, PodTracker

WAITING_SHOWN_MAX: Final = 20  # requests of one revision
TARGET_CHARACTERS_MAX: Final = 256  # longer targets are truncated


def revisions(tables: RevisionTables, now_s: float, only: str = "") -> dict[str, dict[str, Any]]:
    """Return all revisions, or the one with the key `only`, by key: totals, queue, waiting requests, table, slots."""
    if only:
        throttler = tables.throttlers.get(only)
        return {} if throttler is None else {only: revision(throttler, now_s)}
    return {key: revision(throttler, now_s) for key, throttler in tables.throttlers.items()}


def revision(throttler: RevisionThrottler, now_s: float) -> dict[str, Any]:
    """Return one revision."""
    table = throttler.table
    counters = throttler.counters
    sharing = throttler.sharing
    trackers = [tracker for tracker in table.slots[: table.length] if tracker.state != EMPTY]
    lent = {} if sharing.lending is None else sharing.lending.lent_by_pod()
    namespace, _, name = throttler.key.partition("/")
    return {
        "namespace": namespace,
        "name": name,
        "hosts": list(throttler.routing.hosts),
        "policy": throttler.spec.balancing.policy,
        "protocol": throttler.spec.connection.protocol,
        "owner": sharing.lending is not None or sharing.source is None,
        "container_concurrency": throttler.spec.container_concurrency,
        "requests": counters.requests_total,
        "in_flight": throttler.in_flight(),
        "queued": throttler.queue.waiting(),
        "gathering": throttler.gathering,
        "delivering": throttler.delivering,
        "queue_depth": throttler.spec.queue.depth,
        "queue": queue(throttler),
        "capacity": table.capacity,
        "failure": throttler.queue.failure,
        "failed": {reason.value: count for reason, count in counters.failed_totals.items()},
        "client_gone": counters.client_gone_total,
        "retries": {reason.value: count for reason, count in counters.retries.items()},
        "waits_for": waits_for(throttler),
        "waiting_requests": waiting_requests(throttler, now_s),
        "table": {
            "length": table.length,
            "capacity": table.capacity_slots,
            "holes": table.holes,
            "fragmentation": table.fragmentation,
            "trims": table.trims,
            "late_releases": table.late_releases,
            "bad_picks": table.bad_picks,
        },
        "slots": [slot(tracker, lent.get(tracker, 0)) for tracker in trackers],
    }


def queue(throttler: RevisionThrottler) -> dict[str, Any]:
    """Return the figures of the queue and its discipline."""
    return {
        "discipline": throttler.spec.queue.discipline.name,
        "waiting": throttler.queue.waiting(),
        **throttler.queue.waiters.shares(),
        "held_bytes": throttler.held.held_bytes,
        "granted": throttler.counters.granted_total,
        "queued": throttler.counters.queued_total,
        "exempted": throttler.counters.exempted_total,
        "errors": throttler.counters.errors_total,
        "retry_after_s": throttler.queue.retry_after_s(),
        **({} if throttler.adaptive is None else {"adaptive_limit": int(throttler.adaptive.limit)}),
    }


def waiting_requests(throttler: RevisionThrottler, now_s: float) -> list[dict[str, Any]]:
    """Return the requests of this data plane that have waited longest, in order of arrival.

    `expected_s`: the likely rest of the wait, as a client of the waiting page gets it. With priorities or fair shares,
    later requests may be served first.
    """
    requests: list[dict[str, Any]] = []
    for position, waiter in enumerate(throttler.queue.waiters.by_arrival(), 1):
        head = waiter.request()
        if head is None or waiter.is_remote:  # a start request, or another member's
            continue
        target = head.target[:TARGET_CHARACTERS_MAX].decode("ascii", "replace")
        requests.append(
            {
                "asked_s": waiter.asked_s,  # monotonic, for the order over several workers
                "waited_s": round(now_s - waiter.asked_s, 3),
                "expected_s": throttler.queue.expected_s(position),
                "method": head.method.decode("ascii", "replace"),
                "target": masked_target(target),
                "user": "" if waiter.user is None else waiter.user.name,
                "level": waiter.level,
            }
        )
        if len(requests) == WAITING_SHOWN_MAX:
            break
    return requests


def slot(tracker: PodTracker, lent: int) -> dict[str, Any]:
    """Return one pod, of which other data planes have `lent` slots."""
    fields: dict[str, Any] = {
        "slot": tracker.slot,
        "pod": tracker.identity,
        "address": tracker.address,
        "state": STATE_NAMES[tracker.state],
        "in_flight": tracker.in_flight - lent,
        "elsewhere": tracker.elsewhere,
        "limit": tracker.limit,
        "weight": tracker.weight,
        "warming": tracker.warming,
        "far": tracker.is_far,
        "generation": tracker.generation,
    }
    if isinstance(tracker.attachment, PodPool):
        pool = tracker.attachment.in_use()
        fields["connections"] = pool.statistics()
        figures = pool.figures
        fields["responses"] = figures.responses
        fields["errors"] = figures.errors
        fields["first_byte_total_s"] = round(figures.first_byte_total_s, 6)
    return fields


def waits_for(throttler: RevisionThrottler) -> str:
    """Return why requests wait, in a few words; "" if none does."""
    if throttler.queue.waiters.length == 0:
        return ""
    if throttler.table.capacity == 0:
        return "a pod to become ready"
    source = throttler.sharing.source
    if source is NOTHING_YET or (isinstance(source, Borrowing) and source.epoch == 0):
        return "the other members of the group"
    return "a slot to come free"
