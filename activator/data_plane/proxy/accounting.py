"""Counters and histograms of the requests of one worker, and the observers that are called at each end.

Rules
  1. A request is counted when it is routed, and again when it ends, under the phase in which it ended.
  2. Its bytes and durations are added to the traffic of its revision once, at its end.
  3. Observers are called last, after the request has released everything. They are not called for probes.
"""

from __future__ import annotations

from mypy_extensions import i64, mypyc_attr

from activator.data_plane.exchange import Exchange
from activator.data_plane.phases import ARRIVED, TUNNEL
from activator.data_plane.streams import ClientStream
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
        self.observer: ExchangeObserver | None = None  # called with all requests but probes
        self.tracer: ExchangeObserver | None = None  # called with sampled requests only
        self.measurer: ExchangeObserver | None = None  # adds labels that the metrics of this program do not have
        self.histograms: bool = True  # record durations
        self.active: int = 0  # exchanges that have begun and not ended
        self.tunnels: int = 0  # the part of `active` that are tunnels
        self.unrouted_total: int = 0
        self.https_redirects_total: int = 0
        self.refused_requests: dict[Reason, int] = {}  # refused before they were routed

    def count_refused(self, reason: Reason) -> None:
        """Count a request that is refused before it has a revision."""
        self.refused_requests[reason] = self.refused_requests.get(reason, 0) + 1

    def count_https_redirect(self) -> None:
        """Count a request that is redirected to https."""
        self.https_redirects_total += 1

    def count_failed(self, throttler: RevisionThrottler, reason: Reason) -> None:
        """Count a request that ends without a complete response of its pod."""
        failed_totals = throttler.counters.failed_totals
        failed_totals[reason] = failed_totals.get(reason, 0) + 1

    def count_routed(self, request: Exchange, throttler: RevisionThrottler) -> None:
        """Count a request that has been routed to a revision."""
        counters = throttler.counters
        counters.requests_total += 1
        if not request.counts_as_activity():
            counters.quiet += 1
            counters.quiet_total += 1
        else:
            counters.traffic.begun(request.arrived_s)

    def count_fallback(self, request: Exchange, throttler: RevisionThrottler, to: str, now_s: float) -> None:
        """Count a request that falls back to the revision `to`, which counts it from now on."""
        counters = throttler.counters
        traffic = counters.traffic
        traffic.fallbacks[to] = traffic.fallbacks.get(to, 0) + 1
        if not request.counts_as_activity():
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

    def add_to_traffic(self, request: Exchange, throttler: RevisionThrottler) -> None:
        """Add the bytes and durations of an ended request to the traffic of its revision."""
        counters = throttler.counters
        traffic = counters.traffic
        if not request.counts_as_activity():
            counters.quiet -= 1
        else:
            traffic.ended(request.done_s)
        traffic.request_bytes += request.request_bytes
        traffic.response_bytes += request.response_bytes
        if request.grpc_status >= 0:
            statuses = counters.grpc_statuses
            statuses[request.grpc_status] = statuses.get(request.grpc_status, 0) + 1
        tunnel = request.was_tunnel()
        if tunnel:
            traffic.tunnels -= 1
        if not self.histograms or _reports_sleep_or_start(request):
            return
        if not tunnel:  # the duration of a tunnel is not a latency
            traffic.duration.observe(request.done_s - request.arrived_s)
        first_byte_s = request.first_byte_s
        if first_byte_s > 0.0:
            traffic.first_byte.observe(first_byte_s - request.arrived_s)
        if request.queued_s > 0.0:
            traffic.wait.observe(_waited_s(request))
            if request.start is not None and first_byte_s > 0.0:
                traffic.cold_request(
                    request.start.phases(request.asked_for_slot_s, request.granted_s, request.connected_s, first_byte_s)
                )

    def notify_observers(self, request: Exchange, client: ClientStream) -> None:
        """Call the observers of an ended request, after it has been counted."""
        if self.observer is not None:
            self.observer.ended(request, client)
        if request.trace is not None and self.tracer is not None:
            self.tracer.ended(request, client)
        if self.measurer is not None:
            self.measurer.ended(request, client)

    def leave_exemplars(self, request: Exchange, trace_id: str, time_s: float) -> None:
        """Attach `trace_id` to the histograms that the ended request was added to. `time_s`: Unix time."""
        throttler = request.throttler
        if throttler is None or not self.histograms or _reports_sleep_or_start(request):
            return
        traffic = throttler.counters.traffic
        if not request.was_tunnel():
            traffic.duration.exemplify(request.done_s - request.arrived_s, trace_id, time_s)
        if request.first_byte_s > 0.0:
            traffic.first_byte.exemplify(request.first_byte_s - request.arrived_s, trace_id, time_s)
        if request.queued_s > 0.0:
            traffic.wait.exemplify(_waited_s(request), trace_id, time_s)


def _reports_sleep_or_start(request: Exchange) -> bool:
    """Return True if the response reports a sleeping or starting revision: its microseconds are not a latency."""
    return request.reason is not None and (request.reason is Reason.ASLEEP or request.reason is Reason.STARTING)


def _waited_s(request: Exchange) -> float:
    """Return how long a request waited in the queue."""
    return (request.granted_s if request.granted_s > 0.0 else request.done_s) - request.queued_s
