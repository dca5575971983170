"""What `GET /debug/revisions` shows: plain data, taken in one turn, so that its figures belong together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from activator.admin.state_page import state_worker
from activator.control_plane.state.records import PodRecord
from activator.control_plane.state.worker import StateWorker
from activator.data_plane.apply import RevisionTables
from activator.data_plane.throttle.revision import RevisionThrottler
from activator.data_plane.upstream.pool import PodPool
from lb.tracker import DRAINING, EMPTY, QUARANTINED, RECOVERING, STATE_NAMES, PodTracker

NO_SLOT: Final = "every slot of the table is held"


def revisions(
    tables: RevisionTables, worker: StateWorker, processes: dict[str, dict[str, int]], now_s: float
) -> dict[str, Any]:
    """Everything about all revisions."""
    shown = []
    for key, throttler in tables.throttlers.items():
        record = worker.model.revisions.get(key)
        shown.append(revision(throttler, processes.get(key), {} if record is None else record.pods))
    return {"revisions": shown, "state_worker": state_worker(worker, now_s)}


def revision(
    throttler: RevisionThrottler, processes: dict[str, int] | None, pods: Mapping[str, PodRecord]
) -> dict[str, Any]:
    """One revision: totals, queue, table, slots; `pods`: what is believed of them."""
    table = throttler.table
    namespace, _, name = throttler.key.partition("/")
    shown: dict[str, Any] = {
        "namespace": namespace,
        "name": name,
        "hosts": list(throttler.spec.hosts),
        "policy": throttler.spec.policy,
        "container_concurrency": throttler.spec.container_concurrency,
        "requests": throttler.requests_total,
        "in_flight": table.in_flight,
        "queued": throttler.line.length,
        "queue_depth": throttler.spec.queue_depth,
        "queue": queue(throttler),
        "capacity": table.capacity,
        "failure": throttler.failure,
        "failed": {reason.value: count for reason, count in throttler.failed_totals.items()},
        "client_gone": throttler.client_gone_total,
        "retries": {reason.value: count for reason, count in throttler.retries.items()},
        "waits_for": waits_for(throttler),
        "table": {
            "length": table.length,
            "capacity": table.capacity_slots,
            "holes": table.holes,
            "fragmentation": table.fragmentation,
            "trims": table.trims,
            "late_releases": table.late_releases,
        },
        "slots": [
            slot(tracker, pods.get(tracker.identity))
            for tracker in table.slots[: table.length]
            if tracker.state != EMPTY
        ],
        "without_slot": [without_slot(pod) for pod in pods.values() if pod.unplaced and pod.state() != DRAINING],
    }
    if processes is not None:
        shown["processes"] = processes
    return shown


def queue(throttler: RevisionThrottler) -> dict[str, Any]:
    """Who waits, and how the line is kept."""
    return {
        "discipline": throttler.spec.discipline.name,
        "waiting": throttler.line.length,
        **throttler.line.shares(),
        "held_bytes": throttler.held.held_bytes,
        "granted": throttler.granted_total,
        "queued": throttler.queued_total,
        "exempted": throttler.exempted_total,
        "errors": throttler.errors_total,
        "retry_after_s": throttler.retry_after_s(),
    }


def slot(tracker: PodTracker, pod: PodRecord | None) -> dict[str, Any]:
    """One pod."""
    shown: dict[str, Any] = {
        "slot": tracker.slot,
        "pod": tracker.identity,
        "address": tracker.address,
        "state": STATE_NAMES[tracker.state],
        "reason": reason(tracker, pod),
        "in_flight": tracker.in_flight,
        "limit": tracker.limit,
        "weight": tracker.weight,
        "warming": tracker.warming,
        "generation": tracker.generation,
    }
    if isinstance(tracker.attachment, PodPool):
        shown["connections"] = tracker.attachment.statistics()
    return shown


def reason(tracker: PodTracker, pod: PodRecord | None) -> str:
    """Why the pod is in quarantine, or on trial; empty for every other."""
    if pod is None or pod.address != tracker.address or tracker.state not in (QUARANTINED, RECOVERING):
        return ""
    return pod.cause


def without_slot(pod: PodRecord) -> dict[str, Any]:
    """A pod that waits for a slot."""
    return {"pod": pod.identity, "address": pod.address, "state": STATE_NAMES[pod.state()], "reason": NO_SLOT}


def waits_for(throttler: RevisionThrottler) -> str:
    """Why requests wait, in a few words; empty when none does."""
    if throttler.line.length == 0:
        return ""
    if throttler.table.capacity == 0:
        return "a pod to become ready"
    return "a slot to come free"
