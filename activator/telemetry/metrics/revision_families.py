"""The metrics of one revision, read from the statistics that a data plane reports."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from activator.data_plane.headers.grpc import STATUS_NAMES
from activator.data_plane.throttle.counters import (
    COLD_BOUNDS_S,
    FIRST_TOKEN_BOUNDS_S,
    OUTPUT_TOKEN_BOUNDS_S,
    REQUEST_BOUNDS_S,
    USERS_MAX,
    WAIT_BOUNDS_S,
)
from activator.data_plane.throttle.starting import PHASES
from activator.messages import RevisionStatistics, TokenStatistics, TrafficStatistics
from activator.runtime.distribution import Distribution
from activator.runtime.reasons import Reason
from activator.telemetry.metrics.families import Aggregation, Family, Kind, Row, counter, gauge
from lb.tracker import EMPTY, STATE_NAMES, UNLIMITED

Statistics = RevisionStatistics

CODE_CLASSES = ("1xx", "2xx", "3xx", "4xx", "5xx", "other")
REASONS = tuple(reason.value for reason in Reason)
POD_STATES = tuple(name for state, name in enumerate(STATE_NAMES) if state != EMPTY)
TOKEN_KINDS = ("prompt", "completion", "cached")
USER_TOKEN_KINDS = ("prompt", "completion")
CONNECTION_STATES = ("open", "idle", "dialling", "waiting")  # as `TableStatistics.connections` has them


def _traffic(read: Callable[[TrafficStatistics], float]) -> Callable[[Statistics], float]:
    """Return a function that reads a figure of a revision's traffic: 0 before its first request."""
    return lambda revision: 0.0 if revision.traffic is None else read(revision.traffic)


def _histogram(
    name: str, text: str, read: Callable[[TrafficStatistics], Distribution], bounds: tuple[float, ...]
) -> Family[Statistics]:
    empty = Distribution.empty(bounds)

    def rows(revision: Statistics) -> list[Row]:
        return [((), empty if revision.traffic is None else read(revision.traffic))]

    return Family(name, Kind.HISTOGRAM, text, rows, bounds=bounds)


_NO_START: Final = Distribution.empty(COLD_BOUNDS_S)


def _cold_phases(revision: Statistics) -> Iterable[Row]:
    """Return all phases from the first request on, because `rate` needs a zero before the first, rare start."""
    cold = {} if revision.traffic is None else revision.traffic.cold
    return [((phase,), cold.get(phase, _NO_START)) for phase in PHASES]


def _responses(revision: Statistics) -> Iterable[Row]:
    classes: dict[str, int] = {}
    for code, count in revision.responses.items():
        name = f"{code // 100}xx" if 100 <= code < 600 else "other"
        classes[name] = classes.get(name, 0) + count
    return [((name,), float(count)) for name, count in sorted(classes.items())]


def _grpc_calls(revision: Statistics) -> Iterable[Row]:
    return [((STATUS_NAMES[status],), float(count)) for status, count in sorted(revision.grpc_statuses.items())]


def _by_reason(name: str, text: str, read: Callable[[Statistics], dict[str, int]]) -> Family[Statistics]:
    def rows(revision: Statistics) -> list[Row]:
        return [((reason,), float(count)) for reason, count in read(revision).items()]

    return Family(name, Kind.COUNTER, text, rows, ("reason",), (REASONS,))


def _tokens(revision: Statistics) -> Iterable[Row]:
    traffic = revision.traffic
    tokens = None if traffic is None else traffic.tokens
    if tokens is None:
        return []
    counts = (tokens.prompt, tokens.completion, tokens.cached)
    return [((kind,), float(count)) for kind, count in zip(TOKEN_KINDS, counts, strict=True)]


def _user_tokens(revision: Statistics) -> Iterable[Row]:
    traffic = revision.traffic
    if traffic is None or traffic.tokens is None:
        return []
    by_user = traffic.tokens.by_user.items()
    return [
        ((user, kind), float(count))
        for user, counts in by_user
        for kind, count in zip(USER_TOKEN_KINDS, counts, strict=True)
    ]


def _token_times(
    name: str, text: str, read: Callable[[TokenStatistics], Distribution], bounds: tuple[float, ...]
) -> Family[Statistics]:
    def rows(revision: Statistics) -> list[Row]:
        traffic = revision.traffic
        return [] if traffic is None or traffic.tokens is None else [((), read(traffic.tokens))]

    return Family(name, Kind.HISTOGRAM, text, rows, bounds=bounds)


def _pods(revision: Statistics) -> Iterable[Row]:
    counts = revision.table.pods
    return [((name,), float(counts[state])) for state, name in enumerate(STATE_NAMES) if state != EMPTY]


def _pod_connections(revision: Statistics) -> Iterable[Row]:
    counts = revision.table.connections
    return [((state,), float(count)) for state, count in zip(CONNECTION_STATES, counts, strict=True)]


def _capacity(revision: Statistics) -> float:
    capacity = revision.table.capacity
    return float("inf") if capacity >= UNLIMITED else float(capacity)


TRAFFIC: tuple[Family[Statistics], ...] = (
    counter("activator_requests", "Requests routed to the revision.", lambda revision: revision.requests_total),
    Family(
        "activator_responses",
        Kind.COUNTER,
        "Responses of pods, by class of status code.",
        _responses,
        ("code_class",),
        (CODE_CLASSES,),
    ),
    Family(
        "activator_grpc_calls",
        Kind.COUNTER,
        "gRPC calls that have ended, by grpc-status, whether of the pod or of a refusal.",
        _grpc_calls,
        ("grpc_status",),
        (STATUS_NAMES,),
    ),
    _by_reason(
        "activator_failures",
        "Requests that did not end with a pod's complete response, by reason.",
        lambda revision: revision.failures,
    ),
    _by_reason(
        "activator_retries",
        "Retries of requests, by the reason of the failure.",
        lambda revision: revision.retries,
    ),
    Family(
        "activator_fallbacks",
        Kind.COUNTER,
        "Requests passed to another revision (`fallback.revision`), by its namespace and name.",
        lambda revision: [((to,), float(count)) for to, count in sorted(revision.fallbacks.items())],
        ("to",),
        ((),),
    ),
    counter(
        "activator_client_gone",
        "Requests whose clients disconnected before the response was complete.",
        lambda revision: revision.client_gone_total,
    ),
    _histogram(
        "activator_request_duration_seconds",
        "Time from the arrival of a request to its end, whatever its result; without tunnels.",
        lambda traffic: traffic.duration,
        REQUEST_BOUNDS_S,
    ),
    _histogram(
        "activator_first_byte_seconds",
        "Time from the arrival of a request to the head of its pod's response.",
        lambda traffic: traffic.first_byte,
        REQUEST_BOUNDS_S,
    ),
    counter(
        "activator_request_body_bytes",
        "Bytes of request bodies, including bytes from clients in tunnels, of requests that have ended.",
        _traffic(lambda traffic: float(traffic.request_bytes)),
    ),
    counter(
        "activator_response_body_bytes",
        "Bytes of pods' response bodies, including bytes from pods in tunnels, of requests that have ended.",
        _traffic(lambda traffic: float(traffic.response_bytes)),
    ),
    counter(
        "activator_upgrades",
        "Connections upgraded to another protocol.",
        _traffic(lambda traffic: float(traffic.tunnels_total)),
    ),
    gauge(
        "activator_upgrade_tunnels",
        "Open upgraded connections.",
        _traffic(lambda traffic: float(traffic.tunnels)),
    ),
    gauge("activator_in_flight", "Requests in flight at pods.", lambda revision: float(revision.table.in_flight)),
)

TOKENS: tuple[Family[Statistics], ...] = (
    Family(
        "activator_tokens",
        Kind.COUNTER,
        "Tokens that the pods have reported, by kind, of revisions that count them (`record.tokens`); cached: the part "
        "of the prompts that was not processed again.",
        _tokens,
        ("kind",),
        (TOKEN_KINDS,),
    ),
    Family(
        "activator_revision_user_tokens",
        Kind.COUNTER,
        f"The same tokens by the name of the user; _other: those of all users after the first {USERS_MAX}.",
        _user_tokens,
        ("user", "kind"),
        ((), USER_TOKEN_KINDS),
        is_named_only=True,
    ),
    _token_times(
        "activator_first_token_seconds",
        "Time from the arrival of a request to the first event of the event stream that answers it.",
        lambda tokens: tokens.first_token,
        FIRST_TOKEN_BOUNDS_S,
    ),
    _token_times(
        "activator_output_token_seconds",
        "Mean time from one token to the next in each event stream that reports its tokens.",
        lambda tokens: tokens.output_token,
        OUTPUT_TOKEN_BOUNDS_S,
    ),
)

QUEUEING: tuple[Family[Statistics], ...] = (
    gauge("activator_queued", "Requests that wait for a slot.", lambda revision: revision.queued),
    gauge(
        "activator_queue_limit", "The largest number of requests that may wait.", lambda revision: revision.queue_limit
    ),
    gauge(
        "activator_gathering",
        "Requests whose bodies are being buffered before they request a slot.",
        lambda revision: revision.gathering,
    ),
    gauge(
        "activator_delivering",
        "Requests whose pods have sent the complete response and whose clients have not read all of it.",
        lambda revision: revision.delivering,
    ),
    gauge(
        "activator_queue_held_bytes", "Bytes of bodies held for waiting requests.", lambda revision: revision.held_bytes
    ),
    _histogram(
        "activator_queue_wait_seconds",
        "Waiting time of requests that got no slot at arrival, whether they got one later or not.",
        lambda traffic: traffic.wait,
        WAIT_BOUNDS_S,
    ),
    counter("activator_grants", "Slots granted, with or without a wait.", lambda revision: revision.granted_total),
    counter(
        "activator_exempted", "Requests that a rule exempted from the limits.", lambda revision: revision.exempted_total
    ),
    counter(
        "activator_waiter_errors",
        "Waiting requests that raised an exception when their wait ended (a defect).",
        lambda revision: revision.errors_total,
    ),
)

STARTING: tuple[Family[Statistics], ...] = (
    counter(
        "activator_cold_starts",
        "Starts from zero that requests waited for and that led to a ready pod.",
        lambda revision: revision.cold_starts_total,
    ),
    Family(
        "activator_cold_start_phase_seconds",
        Kind.HISTOGRAM,
        "Time to the first byte of each request that waited for a start from zero, by phase: start (until there is a "
        "pod), ready (until it is ready), queue (until a slot was granted), connect, first_byte. The phases add up.",
        _cold_phases,
        ("phase",),
        (PHASES,),
        COLD_BOUNDS_S,
    ),
    gauge(
        "activator_revision_failed",
        "1 while the revision cannot start; the cause is in /debug/revisions.",
        lambda revision: revision.cannot_start,
    ),
)

PODS: tuple[Family[Statistics], ...] = (
    gauge(
        "activator_capacity",
        "The largest number of requests that the pods in service may have in flight together; +Inf: no limit.",
        _capacity,
    ),
    Family("activator_pods", Kind.GAUGE, "Pods by state.", _pods, ("state",), (POD_STATES,)),
    Family(
        "activator_pod_connections",
        Kind.GAUGE,
        "Connections to pods: open (including idle ones), idle, dialling; waiting: requests waiting for a connection.",
        _pod_connections,
        ("state",),
        (CONNECTION_STATES,),
    ),
    counter(
        "activator_policy_bad_picks",
        "Invalid picks of the policy, of a pod without room or of none although one had room, which were replaced.",
        lambda revision: float(revision.table.bad_picks),
    ),
    Family(
        "activator_policy",
        Kind.GAUGE,
        "1 for the balancing policy in use.",
        lambda revision: [((revision.policy,), 1.0)],
        ("policy",),
    ),
)

SPARSE_ARRAY: tuple[Family[Statistics], ...] = (
    gauge(
        "activator_sparse_array_length",
        "One past the highest slot used since the last trim.",
        lambda revision: revision.table.length,
    ),
    gauge("activator_sparse_array_slots", "Allocated slots.", lambda revision: revision.table.slots),
    gauge(
        "activator_sparse_array_holes",
        "Empty slots below the highest that holds a pod.",
        lambda revision: revision.table.holes,
    ),
    gauge(
        "activator_sparse_array_trailing",
        "Empty slots between the highest slot that holds a pod and the length.",
        lambda revision: revision.table.trailing,
    ),
    gauge(
        "activator_sparse_array_fragmentation_ratio",
        "The share of empty slots below the table's length; 0 at length 0.",
        lambda revision: revision.table.fragmentation,
        Aggregation.MAX,
    ),
    counter("activator_sparse_array_trims", "Trims of trailing empty slots.", lambda revision: revision.table.trims),
    counter(
        "activator_sparse_array_growths",
        "Times that the table grew because it was full.",
        lambda revision: revision.table.growths,
    ),
    counter(
        "activator_sparse_array_full",
        "Pods that found no free slot and stayed pending.",
        lambda revision: float(revision.table.full_total),
    ),
    counter(
        "activator_late_releases",
        "Requests that ended after their slot was freed or given to another pod; their releases were ignored.",
        lambda revision: float(revision.table.late_releases),
    ),
)


def _of_pods(name: str, text: str, index: int) -> Family[Statistics]:
    def rows(revision: Statistics) -> list[Row]:
        return [((pod,), float(figures[index])) for pod, figures in revision.by_pod.items()]

    return Family(name, Kind.COUNTER, text, rows, ("pod",), is_named_only=True)


def _pod_changes(revision: Statistics) -> Iterable[Row]:
    return [((pod, state), changed_s) for pod, (state, changed_s) in revision.pod_states.items()]


EACH_POD: tuple[Family[Statistics], ...] = (
    _of_pods("activator_pod_responses", "Responses of the pod.", 0),
    _of_pods("activator_pod_errors", "Its responses with 5xx, and requests that it failed.", 1),
    _of_pods("activator_pod_first_byte_seconds", "The sum of the times to the first byte of its responses.", 2),
    Family(
        "activator_pod_state_changed_timestamp_seconds",
        Kind.GAUGE,
        "When the pod came into its present state, in seconds since 1970.",
        _pod_changes,
        ("pod", "state"),
        ((), POD_STATES),
        is_named_only=True,
    ),
)

REVISION_FAMILIES: tuple[Family[Statistics], ...] = (
    *TRAFFIC,
    *TOKENS,
    *QUEUEING,
    *STARTING,
    *PODS,
    *EACH_POD,
    *SPARSE_ARRAY,
)
