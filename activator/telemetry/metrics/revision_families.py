"""The metrics of one revision, read from the statistics that a data plane sends of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from activator.data_plane.headers.grpc import STATUS_NAMES
from activator.data_plane.throttle.counters import COLD_BOUNDS_S, REQUEST_BOUNDS_S, WAIT_BOUNDS_S
from activator.data_plane.throttle.starting import PHASES
from activator.messages import RevisionStatistics, TrafficStatistics
from activator.runtime.distribution import Distribution
from activator.runtime.reasons import Reason
from activator.telemetry.metrics.families import Family, Fold, Kind, Row, counter, gauge
from lb.tracker import EMPTY, STATE_NAMES, UNLIMITED

Of = RevisionStatistics

CODE_CLASSES = ("1xx", "2xx", "3xx", "4xx", "5xx", "other")
REASONS = tuple(reason.value for reason in Reason)
POD_STATES = tuple(name for state, name in enumerate(STATE_NAMES) if state != EMPTY)
CONNECTION_STATES = ("open", "idle", "dialling", "waiting")  # as `TableStatistics.connections` has them


def _traffic(read: Callable[[TrafficStatistics], float]) -> Callable[[Of], float]:
    return lambda it: 0.0 if it.traffic is None else read(it.traffic)


def _histogram(
    name: str, text: str, read: Callable[[TrafficStatistics], Distribution], bounds: tuple[float, ...]
) -> Family[Of]:
    empty = Distribution.empty(bounds)

    def rows(it: Of) -> list[Row]:
        return [((), empty if it.traffic is None else read(it.traffic))]

    return Family(name, Kind.HISTOGRAM, text, rows, bounds=bounds)


_NO_START: Final = Distribution.empty(COLD_BOUNDS_S)


def _cold_phases(it: Of) -> Iterable[Row]:
    """Every phase from the first request on: a start is rare, and a rate needs the zero before it."""
    cold = {} if it.traffic is None else it.traffic.cold
    return [((phase,), cold.get(phase, _NO_START)) for phase in PHASES]


def _responses(it: Of) -> Iterable[Row]:
    classes: dict[str, int] = {}
    for code, count in it.responses.items():
        name = f"{code // 100}xx" if 100 <= code < 600 else "other"
        classes[name] = classes.get(name, 0) + count
    return [((name,), float(count)) for name, count in sorted(classes.items())]


def _grpc_calls(it: Of) -> Iterable[Row]:
    return [((STATUS_NAMES[status],), float(count)) for status, count in sorted(it.grpc_statuses.items())]


def _by_reason(name: str, text: str, read: Callable[[Of], dict[str, int]]) -> Family[Of]:
    def rows(it: Of) -> list[Row]:
        return [((reason,), float(count)) for reason, count in read(it).items()]

    return Family(name, Kind.COUNTER, text, rows, ("reason",), (REASONS,))


def _pods(it: Of) -> Iterable[Row]:
    counts = it.table.pods
    return [((name,), float(counts[state])) for state, name in enumerate(STATE_NAMES) if state != EMPTY]


def _pod_connections(it: Of) -> Iterable[Row]:
    counts = it.table.connections
    return [((state,), float(count)) for state, count in zip(CONNECTION_STATES, counts, strict=True)]


def _capacity(it: Of) -> float:
    capacity = it.table.capacity
    return float("inf") if capacity >= UNLIMITED else float(capacity)


TRAFFIC: tuple[Family[Of], ...] = (
    counter("activator_requests", "Requests routed here.", lambda it: it.requests_total),
    Family(
        "activator_responses",
        Kind.COUNTER,
        "Answers of pods, by class of status code.",
        _responses,
        ("code_class",),
        (CODE_CLASSES,),
    ),
    Family(
        "activator_grpc_calls",
        Kind.COUNTER,
        "gRPC calls that have ended, by grpc-status: the pod's, or that of a refusal.",
        _grpc_calls,
        ("grpc_status",),
        (STATUS_NAMES,),
    ),
    _by_reason(
        "activator_failures",
        "Requests that did not end with a pod's answer: refused, given up or cut short, by reason.",
        lambda it: it.failures,
    ),
    _by_reason(
        "activator_retries",
        "Requests tried again, by what failed.",
        lambda it: it.retries,
    ),
    Family(
        "activator_fallbacks",
        Kind.COUNTER,
        "Requests that another revision took (`fallback.revision`), by its namespace and name.",
        lambda it: [((to,), float(count)) for to, count in sorted(it.fallbacks.items())],
        ("to",),
        ((),),
    ),
    counter(
        "activator_client_gone", "Clients that left before their answer was complete.", lambda it: it.client_gone_total
    ),
    _histogram(
        "activator_request_duration_seconds",
        "From the arrival of a request to its end, however it ended; tunnels are not among them.",
        lambda it: it.duration,
        REQUEST_BOUNDS_S,
    ),
    _histogram(
        "activator_first_byte_seconds",
        "From the arrival of a request to the head of its pod's answer.",
        lambda it: it.first_byte,
        REQUEST_BOUNDS_S,
    ),
    counter(
        "activator_request_body_bytes",
        "Bytes of request bodies, and of clients in tunnels; of requests that have ended.",
        _traffic(lambda it: float(it.request_bytes)),
    ),
    counter(
        "activator_response_body_bytes",
        "Bytes of response bodies of pods, and of pods in tunnels; of requests that have ended.",
        _traffic(lambda it: float(it.response_bytes)),
    ),
    counter(
        "activator_upgrades",
        "Connections upgraded to another protocol.",
        _traffic(lambda it: float(it.tunnels_total)),
    ),
    gauge(
        "activator_upgrade_tunnels",
        "Upgraded connections that are open.",
        _traffic(lambda it: float(it.tunnels)),
    ),
    gauge("activator_in_flight", "Requests at pods.", lambda it: float(it.table.in_flight)),
)

QUEUEING: tuple[Family[Of], ...] = (
    gauge("activator_queued", "Requests that wait for a slot.", lambda it: it.queued),
    gauge("activator_queue_limit", "How many may wait.", lambda it: it.queue_limit),
    gauge(
        "activator_gathering", "Requests whose bodies are received before they ask for a slot.", lambda it: it.gathering
    ),
    gauge(
        "activator_delivering",
        "Requests that pods have answered, and whose clients have yet to take the rest.",
        lambda it: it.delivering,
    ),
    gauge("activator_queue_held_bytes", "Bodies held for requests that wait.", lambda it: it.held_bytes),
    _histogram(
        "activator_queue_wait_seconds",
        "Waiting time of requests without a slot at arrival, whether they got one in the end or not.",
        lambda it: it.wait,
        WAIT_BOUNDS_S,
    ),
    counter("activator_grants", "Slots granted, with a wait or without.", lambda it: it.granted_total),
    counter("activator_exempted", "Requests that a rule exempted from the limits.", lambda it: it.exempted_total),
    counter(
        "activator_waiter_errors", "Waiters that raised when their wait ended: defects.", lambda it: it.errors_total
    ),
)

STARTING: tuple[Family[Of], ...] = (
    counter(
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
    gauge(
        "activator_revision_failed",
        "1 while the revision cannot start; the cause is in /debug/revisions.",
        lambda it: it.cannot_start,
    ),
)

PODS: tuple[Family[Of], ...] = (
    gauge(
        "activator_capacity",
        "Requests that the pods in service may have in flight together; +Inf: no limit.",
        _capacity,
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
    counter(
        "activator_policy_bad_picks",
        "Picks of the policy that named a pod which may not be picked, or none though one had room; another was taken.",
        lambda it: float(it.table.bad_picks),
    ),
    Family(
        "activator_policy",
        Kind.GAUGE,
        "1 for the balancing policy in use.",
        lambda it: [((it.policy,), 1.0)],
        ("policy",),
    ),
)

SPARSE_ARRAY: tuple[Family[Of], ...] = (
    gauge(
        "activator_sparse_array_length",
        "One past the highest slot used since the last trim.",
        lambda it: it.table.length,
    ),
    gauge("activator_sparse_array_slots", "Slots made.", lambda it: it.table.slots),
    gauge("activator_sparse_array_holes", "Empty slots below the highest that holds a pod.", lambda it: it.table.holes),
    gauge(
        "activator_sparse_array_trailing", "Empty slots above it and below the length.", lambda it: it.table.trailing
    ),
    gauge(
        "activator_sparse_array_fragmentation_ratio",
        "Empty slots below the table's length, as a share of it; 0 at length 0.",
        lambda it: it.table.fragmentation,
        Fold.MAX,
    ),
    counter("activator_sparse_array_trims", "Trims of trailing empty slots.", lambda it: it.table.trims),
    counter(
        "activator_sparse_array_growths", "Times that the table was too small and grew.", lambda it: it.table.growths
    ),
    counter(
        "activator_sparse_array_full",
        "Pods without a free slot, which stay pending.",
        lambda it: float(it.table.full_total),
    ),
    counter(
        "activator_late_releases",
        "Requests that ended after their slot was given to another pod: recognised and ignored.",
        lambda it: float(it.table.late_releases),
    ),
)

REVISION_FAMILIES: tuple[Family[Of], ...] = (*TRAFFIC, *QUEUEING, *STARTING, *PODS, *SPARSE_ARRAY)
