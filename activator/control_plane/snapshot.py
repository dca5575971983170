"""The view of the control plane for `/debug/revisions`: plain data, taken in one turn of the loop."""

from __future__ import annotations

from collections.abc import Callable
from math import isinf
from typing import Any, Final, NamedTuple

from activator.control_plane.probes.probed_pod import Failing
from activator.control_plane.scaling.autoscaler import LastDecision
from activator.control_plane.scaling.decision import Decision
from activator.control_plane.state.records import RevisionRecord
from activator.control_plane.state.worker import StateWorker
from lb.tracker import DRAINING, STATE_NAMES

UNANSWERED_S: Final = 10.0  # a pod without an answer for this time needs attention; before, it may be starting
SET_ASIDE: Final = "taken out of service by `drain-pod`"
NO_SLOT: Final = "every slot of the table is held"


class Known(NamedTuple):
    """The state of one revision in the control plane."""

    record: RevisionRecord
    problems: list[str]  # failures of names and files of pods, and of programs
    failing: dict[str, Failing]  # pods that have not answered for `UNANSWERED_S`, by identity
    has_program: bool


def revisions(
    known: dict[str, RevisionRecord],
    processes: dict[str, dict[str, int]],
    scaling: Callable[[str], LastDecision | None],
    failing: Callable[[str], dict[str, Failing]],
    now_s: float,
) -> dict[str, dict[str, Any]]:
    """Return the view of each revision, by key.

    It has the reasons why pods are, or were, in quarantine, why others do not answer (`failing`, by identity), for how
    long pods have had their state, their zones, pods without a slot, its local processes, and the last scaling
    decision.
    """
    return {
        key: {
            **_pods(record, failing(key), now_s),
            "processes": processes.get(key),
            "scaling": _scaling(scaling(key), now_s),
        }
        for key, record in known.items()
    }


def _scaling(shown: LastDecision | None, now_s: float) -> dict[str, Any] | None:
    """Return the last decision, and the last one that changed the number; ages in seconds."""
    if shown is None:
        return None
    decision, changed = shown.decision, shown.changed
    seen = decision.seen
    return {
        "wanted": decision.wanted,
        "reason": decision.reason.value,
        "explanation": decision.explanation,
        "panicking": decision.panicking,
        "age_s": round(now_s - seen.now_s, 3),
        "asleep": not shown.is_awake,
        "metric": decision.rule.metric,
        "target": decision.rule.effective_target,
        "stable_average": round(seen.stable, 3),
        "panic_average": round(seen.panic, 3),
        "ready": seen.ready,
        "in_flight": seen.in_flight,
        "queued": seen.queued,
        "idle_s": round(seen.idle_s, 3),
        "unloads_in_s": unloads_in_s(decision, now_s),
        "min": max(decision.rule.min, seen.scheduled),
        "max": decision.rule.max,
        "changed": None if changed is None else _change(changed, now_s),
    }


def unloads_in_s(decision: Decision, now_s: float) -> float | None:
    """Return in how many seconds the last pod is stopped if no other request comes; None: it is not."""
    at_s = decision.unloads_at_s()
    return None if at_s is None or isinf(at_s) else round(max(at_s - now_s, 0.0), 1)


def _change(changed: Decision, now_s: float) -> dict[str, Any]:
    return {
        "from": changed.before,
        "to": changed.wanted,
        "reason": changed.reason.value,
        "explanation": changed.explanation,
        "age_s": round(now_s - changed.seen.now_s, 3),
    }


def _pods(record: RevisionRecord, failing: dict[str, Failing], now_s: float) -> dict[str, Any]:
    """Return the view of the pods: causes, ages of their states in seconds, zones, and pods without a slot."""
    reasons, ages_s, zones = {}, {}, {}
    without_slot = []
    for pod in record.pods.values():
        state = pod.state()
        ages_s[pod.identity] = round(now_s - pod.since_s, 1)
        if pod.zone:
            zones[pod.identity] = pod.zone
        unanswered = failing[pod.identity].cause if pod.identity in failing else ""
        cause = f"{pod.cause}; now: {unanswered}" if pod.cause and unanswered else pod.cause or unanswered
        if pod.is_aside:
            cause = SET_ASIDE
        if cause:
            reasons[pod.identity] = {"address": pod.address, "reason": cause}
        reason = ""
        if pod.is_aside:
            reason = SET_ASIDE
        elif pod.ousted_by:
            reason = f"{pod.ousted_by} has its address"
        elif pod.unplaced and state != DRAINING:
            reason = NO_SLOT
        if reason:
            row = {"pod": pod.identity, "address": pod.address, "state": STATE_NAMES[state], "reason": reason}
            without_slot.append({**row, "state_age_s": ages_s[pod.identity]})
    return {"reasons": reasons, "ages_s": ages_s, "zones": zones, "without_slot": without_slot}


def state_worker(worker: StateWorker, now_s: float) -> dict[str, Any]:
    """Return the counters and failures of the state worker; ages and waits in seconds."""
    supervision = worker.supervision
    since_s = supervision.since_last_s(now_s)
    return {
        "last_turn_s": round(now_s - worker.turned_s, 3),
        "changes": worker.changes_total,
        "folded": worker.queue.folded_total,
        "refused": worker.refused_total,
        "stale": worker.stale_total,
        "dropped": worker.dropped_total,
        "batches": worker.batches_total,
        "panics": supervision.panics_total,
        "last_panic_s": None if since_s is None else round(since_s, 3),
        "panics_in_a_row": supervision.worst_in_a_row(now_s),
        "next_backoff_s": supervision.next_backoff_s(now_s),
        "rebuilds": worker.rebuilds_total,
        "mismatches": worker.mismatch_totals,
        "parked": {key: round(max(parked.until_s - now_s, 0.0), 3) for key, parked in sorted(worker.parked.items())},
        "dead_letters": list(supervision.dead_letters),
    }
