"""What `GET /debug/revisions` shows of the state worker."""

from __future__ import annotations

from typing import Any

from activator.control_plane.state.worker import StateWorker


def state_worker(worker: StateWorker, now_s: float) -> dict[str, Any]:
    """How it fares, and what it set aside; ages and waits in seconds."""
    supervision = worker.supervision
    since_s = supervision.since_last_s(now_s)
    return {
        "last_turn_s": round(now_s - worker.turned_s, 3),
        "changes": worker.changes_total,
        "folded": worker.queue.folded_total,
        "refused": worker.refused_total,
        "dropped": worker.dropped_total,
        "batches": worker.batches_total,
        "panics": supervision.panics_total,
        "last_panic_s": None if since_s is None else round(since_s, 3),
        "panics_in_a_row": supervision.worst_in_a_row(now_s),
        "next_backoff_s": supervision.next_backoff_s(now_s),
        "rebuilds": worker.rebuilds_total,
        "mismatches": worker.mismatch_totals,
        "parked": {key: round(parked.until_s - now_s, 3) for key, parked in sorted(worker.parked.items())},
        "dead_letters": list(supervision.dead_letters),
    }
