"""The life of one request. Start here to read the data plane.

    arrived ──► routing ──► connecting ──► sent ──► answering ──► delivering ──► over
                 │   │         ▲      │        │
       (its body │   │ (no     │      ▼        ▼  (no connection, or closed untouched: another pod, same position)
        is slow) ▼   ▼  slot)  │    waiting ◄──┘
            gathering ──► waiting     │    (If the body selects the revision: `scanning`, after routing.)
                                      ▼
                                     over: refused with a reason, in any phase

Rules
  1. The client side, the throttler, the pool and the timing wheel call plain methods. A request has no task that
     could be cancelled, so a grant cannot be lost between two turns of the loop.
  2. If a pod has a free slot and an idle connection, `begin` sends the request before it returns.
  3. A request is in one phase. `enter` moves it to the next one, along the table in phases.py.
  4. An exchange ends exactly once, in `end`: this releases its lease, disarms its timer and leaves the queue.
  5. Once a byte of the response has been sent to the client, a failure can only cut it short; no text is appended.
  6. A request is sent to a second pod only if the first one provably did nothing with it (retry_policy.py).
  7. A slow client holds no slot while buffers have room: the body of a request is gathered before a slot is requested,
     and the rest of a response is buffered after the pod has finished (buffering.py).
  8. After a 101 the exchange is a tunnel (tunnel.py): same lease and same ends, other time limits.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from activator.codec.message import Headers, RequestHead, ResponseHead
from activator.data_plane.body_watcher import BodyWatcher
from activator.data_plane.exchange import NO_PLACE, Exchange
from activator.data_plane.headers.prefer import IF_AVAILABLE, prefers
from activator.data_plane.phases import (
    ANSWERING,
    CONNECTING,
    DELIVERING,
    GATHERING,
    HELD,
    OVER,
    ROUTING,
    SCANNING,
    TUNNEL,
    WAITING,
    illegal,
    is_legal,
)
from activator.data_plane.proxy.attempt import Attempt, blame_pod
from activator.data_plane.proxy.context import ProxyContext
from activator.data_plane.proxy.delivery import Delivery, keeps_response, send_buffered
from activator.data_plane.proxy.entering import gather_if_needed, resume_routing, route
from activator.data_plane.proxy.filter_run import FilterRun
from activator.data_plane.proxy.leaving import fall_back, hand_over, refuse, release_place_or_slot
from activator.data_plane.proxy.own_answers import send_whole
from activator.data_plane.proxy.request_body import RequestBody
from activator.data_plane.proxy.retry_policy import (
    AGAIN,
    FALL_BACK,
    NOT_SENT,
    TOUCHED,
    decide,
)
from activator.data_plane.proxy.selection import Selection
from activator.data_plane.proxy.time_limits import limit_reached, trial_takes_long
from activator.data_plane.proxy.tunnel import after_end_of_client
from activator.data_plane.streams import ClientStream, ClientWrapper
from activator.data_plane.throttle.leases import Lease
from activator.data_plane.throttle.revision import RevisionThrottler
from activator.runtime.reasons import Reason

_NO_CLIENT: Final = ClientStream()  # the client of an ended exchange


class ProxiedExchange(Exchange):
    """One request between its client and its pods: routing, queue, attempts, end.

    `attempt` is the pod's side; `upload` is the request body or, in a tunnel, the client's stream.
    """

    def __init__(self, context: ProxyContext, head: RequestHead, client: ClientStream) -> None:
        super().__init__(head, client, context.now())
        self.context = context
        self.upload: RequestBody | None = RequestBody(context.bodies, client) if head.has_body else None
        self.filters: FilterRun | None = None
        self.attempt: Attempt | None = None
        self.response_head: ResponseHead | None = None
        self.delivery: Delivery | None = None  # the rest of the response, for a slow client
        self.is_gathering: bool = False  # the throttler counts it as gathering
        self.gathered_max: int = 0  # bytes of the body for which the request has waited
        self.has_client_ended: bool = False  # the client has ended its direction of a tunnel
        self.selection: Selection | None = None  # set while the body is scanned
        self._is_continuing: bool = False  # `_continue` is scheduled

    # --- routing ---

    def begin(self) -> None:
        if self.over:
            return
        context = self.context
        self.read_s = 0.0 if self.is_detached else self.arrived_s
        try:
            if self.enter(ROUTING):
                context.active += 1
                throttler = self.throttler
                if throttler is None:
                    route(self)
                else:  # continues the request of another exchange
                    self.asked_for_slot_s = context.now()
                    self.call_filters(throttler)
        except Exception as error:  # a policy may raise; only this request ends
            self.end_with_error(error)
        self.read_s = 0.0

    # --- filters and queue ---

    def call_filters(self, throttler: RevisionThrottler) -> None:
        """Call the filters of a routed request; then ask for a slot."""
        filters = self.filters
        if filters is not None and not filters.call_on_request():
            return
        if throttler.table.capacity == 0 and prefers(self.head, IF_AVAILABLE):
            refusal = throttler.queue.refusal()
            self.fail(refusal or Reason.NOT_AVAILABLE, throttler.queue.refusal_detail() if refusal else "")
            return
        if self.upload is not None and gather_if_needed(self, throttler, self.upload):
            return
        lease = throttler.try_acquire(self.place, self.asked_for_slot_s)
        if lease is not None:
            self.granted(lease)
            return
        self.place.never_waits = prefers(self.head, IF_AVAILABLE)
        refusal = throttler.queue.enqueue(self.place)
        if refusal is not None:
            self.fail(refusal, throttler.queue.refusal_detail())
        elif self.phase == WAITING or self.enter(WAITING):  # it may wait already, for another revision
            self._begin_wait(throttler)

    def gather_body(self, throttler: RevisionThrottler, body: RequestBody, bytes_max: int) -> bool:
        """Gather up to `bytes_max` of the body first; return True if the request waits for it."""
        body.gather(bytes_max, throttler.buffers.file_bytes)
        self.gathered_max = bytes_max
        if body.is_gathered() or not (self.phase == GATHERING or self.enter(GATHERING)):
            return False
        self.is_gathering = True
        throttler.body_expected()
        self.context.arm(self, throttler)
        return True

    def _resume_filters(self, throttler: RevisionThrottler) -> None:
        """Continue with the filters and the queue after the body was gathered or a filter has released the request."""
        if self.is_gathering:
            self.is_gathering = False
            throttler.gathering -= 1
        self.asked_for_slot_s = self.context.now()
        try:
            self.call_filters(throttler)
        except Exception as error:  # as in `begin`
            self.end_with_error(error)

    def _begin_wait(self, throttler: RevisionThrottler) -> None:
        """Record that the request is queued, and set its timer to the limit of the wait."""
        if self.queued_s == 0.0:
            self.queued_s = self.time()
        if self.start is None:
            self.start = throttler.queue.start
        self.context.wheel.arm(self, self.asked_for_slot_s + self.paused_s + throttler.queue.wait_limit_s(self.place))

    def granted(self, lease: Lease) -> None:
        throttler = self.throttler
        assert throttler is not None
        if self.enter(CONNECTING):
            self.attempt = Attempt(self)
            self.attempt.begin(throttler, lease)
        else:
            throttler.release(lease, 0.0, False)

    def _retry(self, throttler: RevisionThrottler, lease: Lease, reason: Reason) -> None:
        """Ask for a slot of another pod, at the same position of the queue."""
        if not self.enter(WAITING):
            return
        self.attempts += 1
        self.attempt = None
        self.lease = None
        self.granted_s = 0.0
        if self.upload is not None:
            self.upload.pod_failed()
        self.place.never_waits = prefers(self.head, IF_AVAILABLE)
        refusal = throttler.requeue(self.place, lease, reason)
        if refusal is None and self.place.is_queued:
            self._begin_wait(throttler)
        throttler.release(lease, 0.0, False)
        if refusal is not None:
            self.fail(refusal, throttler.queue.refusal_detail() or lease.address)
        elif self.place.never_waits and self.place.is_queued and throttler.sharing.source is None:
            self.fail(Reason.NOT_AVAILABLE, "")

    # --- from the client ---

    def request_body(self, data: bytes) -> None:
        if self.over:
            return
        self.request_bytes += len(data)
        body = self.upload
        if body is not None:
            data = body.edited(data)
        if self.capture is not None and self.phase < TUNNEL:  # in a tunnel it gets the data as a watcher
            self.capture.client_sent(data)
        pod = self.pod
        is_early = bool(self.upgrade) and self.phase < ANSWERING  # the tunnel is not established yet
        if body is None and is_early:
            body = self.upload = RequestBody(self.context.bodies, self._client)
            if self.throttler is not None:
                body.assign(self.throttler.held)  # nothing is held yet, so the budget allows it
        if body is None or self.phase == DELIVERING:  # the pod reads no more after an early response
            return
        if self.phase >= TUNNEL:
            assert pod is not None
            self.progress_s = self.time()
            if self.filters is not None:
                self.filters.notify_watchers(data, False)
            pod.send_body(data)
        elif pod is not None and not is_early:
            body.send(pod, data)
        elif not body.buffer(data):
            self._send_now_or_refuse(data, body)
        elif self.phase == SCANNING:
            if self.selection is not None and self.selection.scan_until_decided(data):
                self.continue_soon()
        elif self.phase == GATHERING and body.is_gathered():
            self.continue_soon()

    def _send_now_or_refuse(self, data: bytes, body: RequestBody) -> None:
        """Send `data`, for which no budget has room, to a pod that is free now; otherwise refuse the request."""
        throttler, capture = self.throttler, self.capture
        if self.phase == GATHERING and throttler is not None:
            self._resume_filters(throttler)  # a pod with a free slot may take the data at once
            if capture is None and self.capture is not None:  # a filter has begun the capture just now
                self.capture.client_sent(data)
            pod = self.pod
            if pod is not None:
                body.send(pod, data)
                return
        self.fail(Reason.HELD_BYTES_FULL, body.refused_for)

    def request_end(self, trailers: Headers) -> None:
        if self.over:
            return
        self.request_done = True
        body, pod = self.upload, self.pod
        if self.phase >= TUNNEL:
            attempt = self.attempt
            assert pod is not None and attempt is not None
            self.has_client_ended = True
            if attempt.enter_tunnel_phase(after_end_of_client(self.phase), pod):
                pod.send_end([])  # RFC 9113 8.5: a tunnel has none
        elif body is not None and self.phase != DELIVERING and not self.upgrade:
            if not body.end(trailers):
                self.fail(Reason.HELD_BYTES_FULL, body.refused_for)
                return
            if self.selection is not None:
                self.selection.finish()
            if self.phase == GATHERING or self.phase == SCANNING:
                self.continue_soon()

    def client_blocked(self) -> None:
        if self.over:
            return
        throttler, attempt = self.throttler, self.attempt
        self._client_full = True  # perhaps by earlier responses: `response_head` handles that
        now_s = self.context.now()
        if self.phase >= ANSWERING and not self.context.bodies.stalled.begin(self, self._client.unsent_bytes(), now_s):
            return
        if self.phase >= TUNNEL:
            if attempt is not None:
                attempt.pause_pod()
            return
        self.blocked_s = now_s
        self._taken_bytes = self._client.taken_bytes()
        if throttler is None:  # not routed yet: another time limit applies
            return
        if attempt is not None and self.pod is not None and not keeps_response(self, throttler):
            attempt.pause_pod()
        if self.phase >= CONNECTING or self.phase == GATHERING:  # in the queue another time limit applies
            self.context.arm(self, throttler)

    def client_drained(self) -> None:
        if self.over:
            return
        self._client_full = False
        self.blocked_s = 0.0
        if self.stalled_bytes > 0:
            self.context.bodies.stalled.end(self)
        if self.delivery is not None:
            send_buffered(self, False)
        elif self.is_client_slow and self.attempt is not None:
            self.attempt.resume_pod()

    def client_gone(self) -> None:
        if self.over:
            return
        if self.throttler is not None:
            self.throttler.counters.client_gone_total += 1
        self.note_reason(Reason.CLIENT_GONE)
        self.end(False, True)

    # --- continued in another turn ---

    def continue_soon(self) -> None:
        """Schedule `_continue`, which sends buffered data or acts on a filter that has called `proceed` or failed."""
        if not self._is_continuing:
            self._is_continuing = True
            self.context.bodies.later(self._continue)

    def _continue(self) -> None:
        """Do what `continue_soon` has scheduled, depending on the phase by now."""
        self._is_continuing = False
        if self.over:
            return
        filters, selection, throttler = self.filters, self.selection, self.throttler
        if filters is not None and filters.is_broken:
            filters.is_broken = False
            self.fail(Reason.INTERNAL, "")
        elif self.phase == SCANNING and selection is not None:
            resume_routing(self, selection)
        elif self.phase == GATHERING:
            assert throttler is not None
            self._resume_filters(throttler)  # even if a budget has room by now: the client is paused
        elif self.phase == HELD:
            assert throttler is not None
            if filters is None or not filters.is_held:
                self._resume_filters(throttler)
        else:
            send_buffered(self, True)

    # --- calls of filters ---

    def respond(self, head: ResponseHead, body: bytes, is_success: bool = True, is_logged: bool = True) -> None:
        if self.filters is not None:
            self.filters.require_end_allowed("respond")
        if self.over or self.phase >= ANSWERING:
            return
        client = self._client
        self.status = head.status
        self.end(is_success, is_logged)
        send_whole(client, self.head, head, body)

    def hold(self, timeout_s: float) -> int:
        return 0 if self.over else self._filter_run().hold(timeout_s)

    def proceed(self, hold_number: int) -> None:
        if self.filters is not None:
            self.filters.proceed(hold_number)

    def gather(self, bytes_max: int) -> bool:
        if self.over:
            return True
        self._filter_run().require_gather_allowed()
        body, throttler = self.upload, self.throttler
        if body is None or throttler is None or self.request_done or bytes_max <= self.gathered_max:
            return True
        return not self.gather_body(throttler, body, bytes_max)

    def body(self) -> bytes | None:
        body = self.upload
        return b"" if body is None else body.in_memory()

    def wrap_client(self, wrapper: ClientWrapper) -> None:
        if not self.over:
            self._client = self._filter_run().guard(wrapper)

    def watch(self, watcher: BodyWatcher) -> None:
        if not self.over:
            self._filter_run().watch(watcher)

    def _filter_run(self) -> FilterRun:
        """Return the state of the request in its filters, which is created if there is none."""
        filters = self.filters
        if filters is None:
            filters = self.filters = FilterRun(self, None)
        return filters

    def detach(self, client: ClientStream) -> Exchange:
        successor = ProxiedExchange(self.context, self.head, client)
        hand_over(self, successor, client)
        return successor

    def fall_back(self, key: str, reason: Reason, any_method: bool = False) -> bool:
        if self.filters is not None:
            self.filters.require_end_allowed("fall_back")
        return fall_back(self, key, reason, any_method)

    # --- time ---

    def time(self) -> float:
        """Return the time of the read that is being handled, or the current time; monotonic seconds."""
        if self.read_s > 0.0:
            return self.read_s
        attempt = self.attempt
        return attempt.read_s if attempt is not None and attempt.read_s > 0.0 else self.context.now()

    def expired(self, now_s: float) -> None:
        if self.over:
            return
        throttler = self.throttler
        if self.phase == SCANNING or self.phase == HELD:
            self.fail(Reason.REQUEST_TIMEOUT if self.phase == SCANNING else Reason.FILTER_TIMEOUT, "")
            return
        assert throttler is not None
        if self.place.is_queued:
            throttler.queue.overdue(self.place)
            return
        if self.blocked_s > 0.0 and self.has_client_taken():
            self.blocked_s = now_s
        lease = self.lease
        if lease is not None and trial_takes_long(lease, now_s):
            throttler.allow_other_trials(lease)
        reason = limit_reached(self, throttler.timeouts, self.context.send_timeout_s, now_s)
        if reason is None:
            self.context.arm(self, throttler)
        else:
            self.fail(reason, "")

    # --- ends ---

    def enter(self, phase: i64) -> bool:
        """Move to `phase`; end the request with an error and return False if the table has no such step."""
        if is_legal(self.phase, phase):
            self.phase = phase
            return True
        self.end_with_error(illegal(self.phase, phase))
        return False

    def end_with_error(self, error: Exception) -> None:
        """End this request only, because of an error of a filter, of a policy or of this program."""
        self.context.on_error(error)
        self.fail(Reason.INTERNAL, "")

    def refuse_unsent(self) -> bool:
        if self.phase not in (SCANNING, GATHERING, HELD):
            return False
        self.fail(Reason.DRAINING, "")
        return True

    def fail(self, reason: Reason, detail: str, evidence: i64 = TOUCHED) -> None:
        """Retry, fall back or refuse a failed request, as the retry policy decides."""
        if self.over:
            return
        context = self.context
        throttler, lease, attempt = self.throttler, self.lease, self.attempt
        decision = decide(self, self.upload, reason, evidence, context.attempts_max)
        if throttler is None:
            context.count_refused(reason)
        elif decision == AGAIN and lease is not None:
            if evidence == NOT_SENT:
                blame_pod(throttler, lease, reason, self.status)
            self._retry(throttler, lease, reason)
            return
        else:
            context.count_failed(throttler, reason)
            if lease is not None and attempt is not None and attempt.is_about_pod(reason, throttler):
                blame_pod(throttler, lease, reason, self.status)
        refuse(self, reason, detail, decision == FALL_BACK)

    def end(self, succeeded: bool, is_request: bool) -> None:
        """Release all that the exchange holds. `is_request` is False for a probe, which is not logged or counted."""
        phase = self.phase
        if not self.enter(OVER):
            return
        self.over = True
        context = self.context
        client, filters = self._client, self.filters
        self._client = _NO_CLIENT  # the stream refers to the exchange: avoid a reference cycle
        if filters is not None:
            filters.stop()
        context.count_end(phase)
        self.done_s = self.time()
        context.wheel.cancel(self)
        self.selection = None
        if self.stalled_bytes > 0:
            context.bodies.stalled.end(self)
        if self.upload is not None:
            self.upload.stop()
        if self.delivery is not None:
            self.delivery.drop()
        if self.throttler is not None:
            release_place_or_slot(self, self.throttler, phase, self.done_s, succeeded)
            if not self.is_handed_over:
                context.add_to_traffic(self, self.throttler)
        if is_request:
            context.notify_observers(self, client)
            if filters is not None:
                filters.end()
        if self.capture is not None:
            self.capture.release()
        self.filters = None
        self.place = NO_PLACE  # the former place refers to the exchange

    def leave_exemplars(self, trace_id: str, time_s: float) -> None:
        self.context.leave_exemplars(self, trace_id, time_s)
