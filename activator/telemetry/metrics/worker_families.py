"""The metrics of worker processes; the counts of requests by workers are in the sums of all other metrics."""

from __future__ import annotations

from typing import Final, NamedTuple

from activator.telemetry.metrics.families import Family, Kind, counter, gauge

WORKER_STATES: Final = ("serving", "starting", "waiting")


class WorkerFigures(NamedTuple):
    """The figures of all workers; totals count since the program's start and include workers that have ended."""

    states: dict[str, int]
    restarts_total: int
    cpu_s: float
    resident_bytes: int


WORKER_FAMILIES: tuple[Family[WorkerFigures], ...] = (
    Family(
        "activator_workers",
        Kind.GAUGE,
        "Worker processes by state; waiting: the restart of one that ended repeatedly is delayed.",
        lambda figures: [((state,), float(figures.states.get(state, 0))) for state in WORKER_STATES],
        ("state",),
        (WORKER_STATES,),
    ),
    counter("activator_worker_restarts", "Workers that were replaced.", lambda figures: figures.restarts_total),
    counter(
        "activator_worker_cpu_seconds", "Processor time of all workers, user and system.", lambda figures: figures.cpu_s
    ),
    gauge(
        "activator_worker_resident_bytes",
        "Resident memory of all workers; shared memory is counted for each worker.",
        lambda figures: float(figures.resident_bytes),
    ),
)
