"""`GET /debug/overview`: one row per revision, for the table of the live page.

Rules
  1. A row shows whether a revision needs attention, and why. `/debug/revisions?revision=…` has the details.
  2. Rows are made one by one from statistics and the control plane's data, so that thousands of revisions do not block
     the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import msgspec

from activator.control_plane.snapshot import Known
from activator.messages import DataPlaneStatistics, RevisionStatistics
from activator.telemetry.history import distribution_figures
from lb.tracker import DRAINING, NOT_READY, PENDING, QUARANTINED, READY, RECOVERING

ROWS_IN_A_SLICE: Final = 50

# States of a revision, the worst first; the page sorts by them.
FAILED: Final = "failed"  # it cannot start
DEGRADED: Final = "degraded"  # some pods do not answer, or a part of its declaration cannot be applied
WAITING: Final = "waiting"  # requests wait
SERVING: Final = "serving"
READY_STATE: Final = "ready"
STARTING: Final = "starting"
ASLEEP: Final = "asleep"
STATES: Final = (FAILED, DEGRADED, WAITING, STARTING, SERVING, READY_STATE, ASLEEP)


def totals(counts: DataPlaneStatistics, workers: list[dict[str, Any]], draining: bool) -> dict[str, Any]:
    """Return the figures of the whole program."""
    return {
        "clients": counts.client_connections,
        "http2_connections": counts.http2.connections,
        "streams": counts.http2.streams,
        "held_bytes": counts.held_bytes,
        "workers": len(workers) or 1,
        "draining": draining,
    }


def slices(
    statistics: Iterable[RevisionStatistics],
    known: Callable[[str], Known | None],
    age_s: Callable[[str, str], float],
    recent_failures: Callable[[RevisionStatistics], int],
    head: dict[str, Any],
) -> Iterator[bytes]:
    """Yield the response in slices: an object with the items of `head`, and `revisions`.

    `age_s(key, state)` returns for how long a revision has had its state, `recent_failures` how many of its requests
    failed in the last minutes.
    """
    yield msgspec.json.encode(head)[:-1] + b',"revisions":['
    rows: list[bytes] = []
    separator = b""
    for revision in statistics:
        control_data = known(revision.key)
        if revision.dropped or control_data is None:
            continue
        rows.append(separator + msgspec.json.encode(row(revision, control_data, age_s, recent_failures(revision))))
        separator = b","
        if len(rows) == ROWS_IN_A_SLICE:
            yield b"".join(rows)
            rows.clear()
    yield b"".join(rows) + b"]}"


def row(
    revision: RevisionStatistics, known: Known, age_s: Callable[[str, str], float], recent_failures: int
) -> dict[str, Any]:
    """Return the row of one revision as plain data."""
    spec = known.record.spec
    pods = revision.table.pods
    attention = _attention(revision, known)
    state = _state(revision, known, attention)
    record = spec.filters.record
    server_errors = sum(count for code, count in revision.responses.items() if code >= 500)
    return {
        "key": revision.key,
        "hosts": list(spec.routing.hosts),
        "state": state,
        "state_age_s": round(age_s(revision.key, state), 1),
        "attention": attention,
        "requests": revision.requests_total,
        "failed": sum(revision.failures.values()) + server_errors,
        "recent_failures": recent_failures,
        "in_flight": revision.table.in_flight,
        "queued": revision.queued,
        "ready": pods[READY] + pods[RECOVERING],
        "pods": sum(pods[pod_state] for pod_state in (PENDING, READY, NOT_READY, RECOVERING, QUARANTINED, DRAINING)),
        "container_concurrency": spec.container_concurrency,
        "policy": revision.policy,
        "program": known.has_program,
        "recorded": 0 if record is None else record.requests,
        "cold": {}
        if revision.traffic is None
        else {phase: distribution_figures(d) for phase, d in revision.traffic.cold.items()},
    }


def state_of(revision: RevisionStatistics, known: Known | None) -> str:
    """Return the state of a revision; empty if the control plane does not know it any more."""
    return "" if known is None else _state(revision, known, _attention(revision, known))


def _attention(revision: RevisionStatistics, known: Known) -> list[str]:
    """Return the problems of a revision as sentences."""
    pods = revision.table.pods
    problems = []
    if known.record.failure:
        problems.append(f"cannot start: {known.record.failure}")
    if pods[QUARANTINED]:
        problems.append(f"{pods[QUARANTINED]} of {sum(pods[1:])} pods are in quarantine")
    if pods[NOT_READY]:
        problems.append(f"{pods[NOT_READY]} pods are not ready")
    unanswered = sorted({pod.cause for pod in known.failing.values() if pod.cause})
    if unanswered:
        more = f", and {len(unanswered) - 1} more causes" if len(unanswered) > 1 else ""
        problems.append(f"pods that do not answer: {len(known.failing)} ({unanswered[0]}{more})")
    return [*problems, *known.problems]


def _state(revision: RevisionStatistics, known: Known, attention: list[str]) -> str:
    """Return the worst state that applies."""
    pods = revision.table.pods
    if known.record.failure:
        return FAILED
    if attention:
        return DEGRADED
    if revision.queued:
        return WAITING
    if revision.table.in_flight:
        return SERVING
    if pods[READY] or pods[RECOVERING]:
        return READY_STATE
    return STARTING if pods[PENDING] else ASLEEP
