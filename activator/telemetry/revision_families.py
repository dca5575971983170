"""The metrics of one revision, read from its throttler, its table and its pods' pools."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from activator.errors import Reason
from activator.histogram import Histogram
from activator.telemetry.families import Distribution, Family, Fold, Kind, Row, one
from activator.throttle.revision import RevisionThrottler
from activator.throttle.starting import PHASES
from activator.throttle.traffic import COLD_BOUNDS_S, REQUEST_BOUNDS_S, WAIT_BOUNDS_S, Traffic
from activator.upstream.pool import PodPool
from lb.tracker import EMPTY, STATE_NAMES, UNLIMITED

Of = RevisionThrottler

CODE_CLASSES = ("1xx", "2xx", "3xx", "4xx", "5xx", "other")
REASONS = tuple(reason.value for reason in Reason)
POD_STATES = tuple(name for state, name in enumerate(STATE_NAMES) if state != EMPTY)
CONNECTION_STATES = ("open", "idle", "dialling", "waiting")


def _traffic(read: Callable[[Traffic], float]) -> Callable[[Of], list[Row]]:
    return one(lambda throttler: read(throttler.traffic) if throttler.has_traffic() else 0.0)


def _histogram(read: Callable[[Traffic], Histogram], bounds: tuple[float, ...]) -> Callable[[Of], list[Row]]:
    empty = Distribution.empty(bounds)

    def rows(throttler: Of) -> list[Row]:
        return [((), Distribution.of(read(throttler.traffic)) if throttler.has_traffic() else empty)]

    return rows


def _cold_phases(throttler: Of) -> Iterable[Row]:
    """Every phase from the first request on: a start is rare, and a rate needs the zero before it."""
    empty = Distribution.empty(COLD_BOUNDS_S)
    cold = throttler.traffic.cold if throttler.has_traffic() else {}
    for phase in PHASES:
        histogram = cold.get(phase)
        yield (phase,), empty if histogram is None else Distribution.of(histogram)


def _responses(throttler: Of) -> Iterable[Row]:
    classes: dict[str, int] = {}
    for code, count in throttler.codes.items():
        name = f"{code // 100}xx" if 100 <= code < 600 else "other"
        classes[name] = classes.get(name, 0) + count
    return [((name,), float(count)) for name, count in sorted(classes.items())]


def _by_reason(read: Callable[[Of], dict[Reason, int]]) -> Callable[[Of], list[Row]]:
    return lambda throttler: [((reason.value,), float(count)) for reason, count in read(throttler).items()]


def _pods(throttler: Of) -> Iterable[Row]:
    counts = [0] * len(STATE_NAMES)
    for tracker in throttler.table.slots[: throttler.table.length]:
        counts[tracker.state] += 1
    return [((name,), float(counts[state])) for state, name in enumerate(STATE_NAMES) if state != EMPTY]


def _pod_connections(throttler: Of) -> Iterable[Row]:
    counts = dict.fromkeys(CONNECTION_STATES, 0)
    for tracker in throttler.table.slots[: throttler.table.length]:
        if isinstance(tracker.attachment, PodPool):
            statistics = tracker.attachment.statistics()
            for state in CONNECTION_STATES:
                counts[state] += statistics[state]
    return [((state,), float(count)) for state, count in counts.items()]


def _capacity(throttler: Of) -> float:
    capacity = throttler.table.capacity
    return float("inf") if capacity >= UNLIMITED else float(capacity)


def _counter(name: str, text: str, read: Callable[[Of], float]) -> Family[Of]:
    return Family(name, Kind.COUNTER, text, one(read))


def _gauge(name: str, text: str, read: Callable[[Of], float], fold: Fold = Fold.SUM) -> Family[Of]:
    return Family(name, Kind.GAUGE, text, one(read), fold=fold)


TRAFFIC: tuple[Family[Of], ...] = (
    _counter("activator_requests", "Requests routed here.", lambda it: it.requests_total),
    Family(
        "activator_responses",
        Kind.COUNTER,
        "Answers of pods, by class of status code.",
        _responses,
        ("code_class",),
        (CODE_CLASSES,),
    ),
    Family(
        "activator_failures",
        Kind.COUNTER,
        "Requests that did not end with a pod's answer: refused, given up or cut short, by reason.",
        _by_reason(lambda it: it.failed_totals),
        ("reason",),
        (REASONS,),
    ),
    Family(
        "activator_retries",
        Kind.COUNTER,
        "Requests tried again, by what failed.",
        _by_reason(lambda it: it.retries),
        ("reason",),
        (REASONS,),
    ),
    _counter(
        "activator_client_gone", "Clients that left before their answer was complete.", lambda it: it.client_gone_total
    ),
    Family(
        "activator_request_duration_seconds",
        Kind.HISTOGRAM,
        "From the arrival of a request to its end, however it ended; tunnels are not among them.",
        _histogram(lambda it: it.duration, REQUEST_BOUNDS_S),
        bounds=REQUEST_BOUNDS_S,
    ),
    Family(
        "activator_first_byte_seconds",
        Kind.HISTOGRAM,
        "From the arrival of a request to the head of its pod's answer.",
        _histogram(lambda it: it.first_byte, REQUEST_BOUNDS_S),
        bounds=REQUEST_BOUNDS_S,
    ),
    Family(
        "activator_request_body_bytes",
        Kind.COUNTER,
        "Bytes of request bodies that came, and what clients said in tunnels; of requests that have ended.",
        _traffic(lambda it: float(it.request_bytes)),
    ),
    Family(
        "activator_response_body_bytes",
        Kind.COUNTER,
        "Bytes of pods' response bodies, and what pods said in tunnels; of requests that have ended.",
        _traffic(lambda it: float(it.response_bytes)),
    ),
    Family(
        "activator_upgrades",
        Kind.COUNTER,
        "Connections upgraded to another protocol.",
        _traffic(lambda it: float(it.tunnels_total)),
    ),
    Family(
        "activator_upgrade_tunnels",
        Kind.GAUGE,
        "Upgraded connections that are open.",
        _traffic(lambda it: float(it.tunnels)),
    ),
    _gauge("activator_in_flight", "Requests at pods.", lambda it: float(it.table.in_flight)),
)

QUEUEING: tuple[Family[Of], ...] = (
    _gauge("activator_queued", "Requests that wait for a slot.", lambda it: it.line.length),
    _gauge("activator_queue_limit", "How many may wait.", lambda it: it.spec.queue_depth),
    _gauge("activator_queue_held_bytes", "Bodies held for requests that wait.", lambda it: it.held.held_bytes),
    Family(
        "activator_queue_wait_seconds",
        Kind.HISTOGRAM,
        "How long those requests waited that could not have a slot at once, whether they got one in the end or not.",
        _histogram(lambda it: it.wait, WAIT_BOUNDS_S),
        bounds=WAIT_BOUNDS_S,
    ),
    _counter("activator_grants", "Slots granted, with a wait or without.", lambda it: it.granted_total),
    _counter("activator_exempted", "Requests that a rule let pass beyond the limits.", lambda it: it.exempted_total),
    _counter("activator_waiter_errors", "Waiters that raised when told: defects.", lambda it: it.errors_total),
)

STARTING: tuple[Family[Of], ...] = (
    _counter(
        "activator_cold_starts",
        "Starts from zero that requests waited for and that came to a ready pod.",
        lambda it: it.cold_starts_total,
    ),
    Family(
        "activator_cold_start_phase_seconds",
        Kind.HISTOGRAM,
        "Where the time went, to the first byte, of each request that waited for a start from zero: start (until there "
        "is a pod), ready (until it is ready), queue (until its turn), connect, first_byte. The sums add up.",
        _cold_phases,
        ("phase",),
        (PHASES,),
        COLD_BOUNDS_S,
    ),
    _gauge(
        "activator_revision_failed",
        "1 while the revision cannot start; the cause stands in /debug/revisions.",
        lambda it: it.failure is not None,
    ),
)

PODS: tuple[Family[Of], ...] = (
    _gauge(
        "activator_capacity", "Requests that pods which may be picked can carry at a time; +Inf: no limit.", _capacity
    ),
    Family("activator_pods", Kind.GAUGE, "Pods by state.", _pods, ("state",), (POD_STATES,)),
    Family(
        "activator_pod_connections",
        Kind.GAUGE,
        "Connections to pods: open (idle ones among them), idle, being dialled; and requests waiting for one.",
        _pod_connections,
        ("state",),
        (CONNECTION_STATES,),
    ),
    Family(
        "activator_policy",
        Kind.GAUGE,
        "1 for the balancing policy in use.",
        lambda it: [((it.spec.policy,), 1.0)],
        ("policy",),
    ),
)

SPARSE_ARRAY: tuple[Family[Of], ...] = (
    _gauge(
        "activator_sparse_array_length",
        "One past the highest slot used since the last trim.",
        lambda it: it.table.length,
    ),
    _gauge("activator_sparse_array_slots", "Slots made.", lambda it: it.table.capacity_slots),
    _gauge(
        "activator_sparse_array_holes", "Empty slots below the highest that holds a pod.", lambda it: it.table.holes
    ),
    _gauge(
        "activator_sparse_array_trailing", "Empty slots above it and below the length.", lambda it: it.table.trailing
    ),
    _gauge(
        "activator_sparse_array_fragmentation_ratio",
        "Empty slots below the table's length, as a share of it; 0 at length 0.",
        lambda it: it.table.fragmentation,
        Fold.MAX,
    ),
    _counter("activator_sparse_array_trims", "Trims of trailing empty slots.", lambda it: it.table.trims),
    _counter(
        "activator_sparse_array_growths", "Times that the table was too small and grew.", lambda it: it.table.grown
    ),
    _counter(
        "activator_sparse_array_full",
        "Pods that found every slot held, and stay pending.",
        lambda it: float(it.table.tables_full),
    ),
    _counter(
        "activator_late_releases",
        "Requests that ended after their slot had gone to another pod: recognised and ignored.",
        lambda it: float(it.table.late_releases),
    ),
)

REVISION_FAMILIES: tuple[Family[Of], ...] = (*TRAFFIC, *QUEUEING, *STARTING, *PODS, *SPARSE_ARRAY)
