"""The metrics of the processes that serve, where there are several; what they count is in the sums of all others."""

from __future__ import annotations

from typing import Final, NamedTuple

from activator.telemetry.metrics.families import Family, Kind, counter, gauge

WORKER_STATES: Final = ("serving", "starting", "waiting")


class WorkerFigures(NamedTuple):
    """Of all workers; totals count since the start of the program, and what workers had used that have ended."""

    states: dict[str, int]
    restarts_total: int
    cpu_s: float
    resident_bytes: int


WORKER_FAMILIES: tuple[Family[WorkerFigures], ...] = (
    Family(
        "activator_workers",
        Kind.GAUGE,
        "Worker processes by state; waiting: one that ended again and again is started later.",
        lambda it: [((state,), float(it.states.get(state, 0))) for state in WORKER_STATES],
        ("state",),
        (WORKER_STATES,),
    ),
    counter("activator_worker_restarts", "Workers that were replaced.", lambda it: it.restarts_total),
    counter("activator_worker_cpu_seconds", "Processor time of all workers, user and system.", lambda it: it.cpu_s),
    gauge(
        "activator_worker_resident_bytes",
        "Resident memory of all workers; what they share is counted for each.",
        lambda it: float(it.resident_bytes),
    ),
)
