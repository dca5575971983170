"""The statistics of one data plane as messages, of each revision and of the plane as a whole.

Rules
  1. They are read from plain counters on request; the request path does not use this module.
  2. One revision is read in one turn, so that its figures are consistent.
  3. A removed revision is read until its last request has ended; then `RevisionEnded` is sent once.
"""

from __future__ import annotations

from collections.abc import Iterator

from activator.data_plane.tables.apply import RevisionTables
from activator.data_plane.throttle.counters import TokenTraffic, Traffic
from activator.data_plane.throttle.revision import RevisionThrottler
from activator.data_plane.upstream.pool import PodPool
from activator.messages import RevisionStatistics, TableStatistics, TokenStatistics, TrafficStatistics
from activator.runtime.distribution import Distribution
from lb.table import TrackerTable
from lb.tracker import DRAINING, STATE_NAMES, PodTracker


def revisions(tables: RevisionTables, pods_max: int) -> Iterator[RevisionStatistics]:
    """Yield the statistics of all revisions that exist at the first call, each read when it is requested."""
    for throttler in [*tables.throttlers.values(), *tables.dropped.values()]:
        yield revision(throttler, pods_max)


def revision(throttler: RevisionThrottler, pods_max: int = 0) -> RevisionStatistics:
    """Return the statistics of one revision, by pod as well if it has at most `pods_max` pods."""
    spec = throttler.spec
    counters = throttler.counters
    return RevisionStatistics(
        key=throttler.key,
        incarnation=throttler.incarnation,
        dropped=throttler.queue.removed,
        knative=spec.knative,
        policy=spec.balancing.policy,
        requests_total=counters.requests_total,
        responses=dict(counters.codes),
        grpc_statuses=dict(counters.grpc_statuses),
        failures={reason.value: count for reason, count in counters.failed_totals.items()},
        retries={reason.value: count for reason, count in counters.retries.items()},
        fallbacks=dict(counters.fallbacks),
        client_gone_total=counters.client_gone_total,
        queued=throttler.queue.waiting(),
        queue_limit=spec.queue.depth,
        gathering=throttler.gathering,
        delivering=throttler.delivering,
        held_bytes=throttler.held.held_bytes,
        granted_total=counters.granted_total,
        exempted_total=counters.exempted_total,
        errors_total=counters.errors_total,
        cold_starts_total=counters.cold_starts_total,
        cannot_start=throttler.queue.failure is not None,
        traffic=_traffic(counters.traffic) if counters.has_traffic() else None,
        table=_table(throttler.table, throttler.in_flight()),
        by_pod=_by_pod(throttler.table, pods_max) if pods_max > 0 else {},
    )


def _traffic(traffic: Traffic) -> TrafficStatistics:
    return TrafficStatistics(
        duration=Distribution.of(traffic.duration),
        first_byte=Distribution.of(traffic.first_byte),
        wait=Distribution.of(traffic.wait),
        cold={phase: Distribution.of(histogram) for phase, histogram in traffic.cold.items()},
        request_bytes=traffic.request_bytes,
        response_bytes=traffic.response_bytes,
        tunnels=traffic.tunnels,
        tunnels_total=traffic.tunnels_total,
        tokens=None if traffic.tokens is None else _tokens(traffic.tokens),
    )


def _tokens(tokens: TokenTraffic) -> TokenStatistics:
    return TokenStatistics(
        prompt=tokens.prompt,
        completion=tokens.completion,
        cached=tokens.cached,
        first_token=Distribution.of(tokens.first_token),
        output_token=Distribution.of(tokens.output_token),
        by_user=dict(tokens.by_user),
    )


def _by_pod(table: TrackerTable, pods_max: int) -> dict[str, tuple[int, int, float]]:
    """Return the figures of each pod by address, if at most `pods_max` pods do not drain.

    A pod that drains is left out if another one has its address, or if there are too many of them.
    """
    by_pod: dict[str, tuple[int, int, float]] = {}
    draining: list[PodTracker] = []
    for tracker in table.slots[: table.length]:
        if tracker.state == DRAINING:
            draining.append(tracker)
        else:
            _add_figures(by_pod, tracker)
            if len(by_pod) > pods_max:
                return {}
    for tracker in draining[:pods_max]:
        _add_figures(by_pod, tracker)
    return by_pod


def _add_figures(by_pod: dict[str, tuple[int, int, float]], tracker: PodTracker) -> None:
    """Add the figures of a pod under its address, unless another pod has that address."""
    pool = tracker.attachment
    if isinstance(pool, PodPool) and tracker.address not in by_pod:
        figures = pool.in_use().figures
        by_pod[tracker.address] = figures.responses, figures.errors, figures.first_byte_total_s


def _table(table: TrackerTable, in_flight: int) -> TableStatistics:
    states = [0] * len(STATE_NAMES)
    connections = [0, 0, 0, 0]
    for tracker in table.slots[: table.length]:
        states[tracker.state] += 1
        pool = tracker.attachment
        if isinstance(pool, PodPool):
            pool.in_use().count_into(connections)
    return TableStatistics(
        in_flight=in_flight,
        capacity=table.capacity,
        pods=tuple(states),
        connections=(connections[0], connections[1], connections[2], connections[3]),
        length=table.length,
        slots=table.capacity_slots,
        holes=table.holes,
        trailing=table.trailing,
        fragmentation=table.fragmentation,
        trims=table.trims,
        growths=table.grown,
        full_total=table.times_full,
        late_releases=table.late_releases,
        bad_picks=table.bad_picks,
    )
