"""Counters and histograms of the requests of one worker, and the observers that are called at each end.

Rules
  1. A request is counted when it is routed, and again when it ends, under the phase in which it ended.
  2. Its bytes and durations are added to the traffic of its revision once, at its end.
  3. Observers are called last, after the request has released everything. They are not called for probes.
"""

from __future__ import annotations

from mypy_extensions import i64, mypyc_attr

from activator.data_plane.exchange import ClientStream, Exchange
from activator.data_plane.phases import ARRIVED, TUNNEL
from activator.data_plane.request import RequestRecord
from activator.data_plane.throttle.revision import RevisionThrottler
from activator.runtime.reasons import Reason


@mypyc_attr(allow_interpreted_subclasses=True)
class ExchangeObserver:
    """The interface of access logs, traces and other observers, called with every exchange when it has ended.

    `client` is the stream that received the response; an observer must not keep a reference to it.
    """

    def ended(self, exchange: Exchange, client: ClientStream) -> None:
        raise NotImplementedError


class Accounting:
    """The request counters of one worker."""

    def __init__(self) -> None:
        self.observer: ExchangeObserver | None = None
        self.tracer: ExchangeObserver | None = None  # called with sampled requests only
        self.measurer: ExchangeObserver | None = None  # adds labels that the metrics of this program do not have
        self.histograms: bool = True  # record durations
        self.active: int = 0  # exchanges that have begun and not ended
        self.tunnels: int = 0  # the part of `active` that are tunnels
        self.unrouted_total: int = 0
        self.refused_requests: dict[Reason, int] = {}  # refused before they were routed

    def count_refused(self, reason: Reason) -> None:
        """Count a request that is refused before it has a revision."""
        self.refused_requests[reason] = self.refused_requests.get(reason, 0) + 1

    def count_failed(self, throttler: RevisionThrottler, reason: Reason) -> None:
        """Count a request that ends without a complete response of its pod."""
        failed_totals = throttler.counters.failed_totals
        failed_totals[reason] = failed_totals.get(reason, 0) + 1

    def count_routed(self, it: RequestRecord, throttler: RevisionThrottler) -> None:
        """Count a request that has been routed to a revision."""
        counters = throttler.counters
        counters.requests_total += 1
        if it.is_quiet:
            counters.quiet += 1
            counters.quiet_total += 1
        else:
            counters.traffic.begun(it.arrived_s)

    def count_left(self, it: RequestRecord, throttler: RevisionThrottler, to: str, now_s: float) -> None:
        """Count a request that falls back to the revision `to`, which counts it from now on."""
        counters = throttler.counters
        traffic = counters.traffic
        traffic.fallbacks[to] = traffic.fallbacks.get(to, 0) + 1
        if it.is_quiet:
            counters.quiet -= 1
        else:
            traffic.ended(now_s)

    def count_answer(self, throttler: RevisionThrottler, status: int) -> None:
        """Count the response head of a pod."""
        codes = throttler.counters.codes
        codes[status] = codes.get(status, 0) + 1

    def count_tunnel(self, throttler: RevisionThrottler) -> None:
        """Count the beginning of a tunnel."""
        self.tunnels += 1
        traffic = throttler.counters.traffic
        traffic.tunnels += 1
        traffic.tunnels_total += 1

    def count_end(self, phase: i64) -> None:
        """Count the end of a request that was in `phase`."""
        if phase != ARRIVED:
            self.active -= 1
        if phase >= TUNNEL:
            self.tunnels -= 1

    def add_to_traffic(self, it: RequestRecord, throttler: RevisionThrottler) -> None:
        """Add the bytes and durations of an ended request to the traffic of its revision."""
        counters = throttler.counters
        traffic = counters.traffic
        if it.is_quiet:
            counters.quiet -= 1
        else:
            traffic.ended(it.done_s)
        traffic.request_bytes += it.request_bytes
        traffic.response_bytes += it.response_bytes
        if it.grpc_status >= 0:
            statuses = counters.grpc_statuses
            statuses[it.grpc_status] = statuses.get(it.grpc_status, 0) + 1
        tunnel = it.was_tunnel()
        if tunnel:
            traffic.tunnels -= 1
        if not self.histograms or _is_own_answer(it):
            return
        if not tunnel:  # the duration of a tunnel is not a latency
            traffic.duration.observe(it.done_s - it.arrived_s)
        first_byte_s = it.first_byte_s
        if first_byte_s > 0.0:
            traffic.first_byte.observe(first_byte_s - it.arrived_s)
        if it.queued_s > 0.0:
            traffic.wait.observe(_waited_s(it))
            if it.start is not None and first_byte_s > 0.0:
                traffic.cold_request(it.start.phases(it.asked_for_slot_s, it.granted_s, it.connected_s, first_byte_s))

    def notify_observers(self, it: RequestRecord, client: ClientStream) -> None:
        """Call the observers of an ended request, after it has been counted."""
        if self.observer is not None:
            self.observer.ended(it, client)
        if it.trace is not None and self.tracer is not None:
            self.tracer.ended(it, client)
        if self.measurer is not None:
            self.measurer.ended(it, client)

    def leave_exemplars(self, it: RequestRecord, trace_id: str, time_s: float) -> None:
        """Attach `trace_id` to the histograms that the ended request was added to. `time_s`: Unix time."""
        throttler = it.throttler
        if throttler is None or not self.histograms or _is_own_answer(it):
            return
        traffic = throttler.counters.traffic
        if not it.was_tunnel():
            traffic.duration.exemplify(it.done_s - it.arrived_s, trace_id, time_s)
        if it.first_byte_s > 0.0:
            traffic.first_byte.exemplify(it.first_byte_s - it.arrived_s, trace_id, time_s)
        if it.queued_s > 0.0:
            traffic.wait.exemplify(_waited_s(it), trace_id, time_s)


def _is_own_answer(it: RequestRecord) -> bool:
    """True if the response says that the revision is asleep or starting: it takes microseconds and is not a latency."""
    return it.reason is not None and (it.reason is Reason.ASLEEP or it.reason is Reason.STARTING)


def _waited_s(it: RequestRecord) -> float:
    """Return how long a request waited in the queue."""
    return (it.granted_s if it.granted_s > 0.0 else it.done_s) - it.queued_s
