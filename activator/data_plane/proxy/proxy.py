"""The life of one request: read this file first.

    arrived ──► routing ──► connecting ──► sent ──► answering ──► over
                   │         ▲      │        │
         (no room) ▼  (room) │      ▼        ▼  (no connection, or closed untouched: another pod, same place in line)
                  waiting ───┘◄──── waiting ◄┘
                   │
                   ▼
                  over: refused with a reason, from whichever phase it happens in

Rules
  1. Everything is a plain method that the client side, the throttler, the pool or the timing wheel calls; there is no
     task per request and nothing to cancel, so a grant cannot fall between two turns of the loop.
  2. With room in a pod and an idle connection, `begin` has the request on its way when it returns.
  3. A request is in one phase, and goes from phase to phase by `_enter`, along the table in phases.py.
  4. An exchange ends exactly once, in `_end`: there its lease is released, its deadline disarmed, its place left.
  5. Once a byte of the answer has gone to the client, a failure can only cut the answer short; text is never appended.
  6. A request goes to a second pod only when the first provably did nothing with it: no connection was made; or a kept
     connection closed without a byte of an answer, and the request may be repeated and is here whole.
  7. After a 101 the exchange is a tunnel (tunnel.py): the same lease, the same ends, other time limits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mypy_extensions import i64

from activator.codec.http1.fields import take_internal_out
from activator.codec.message import Headers, RequestHead, ResponseHead
from activator.data_plane.exchange import ClientStream, PodStream
from activator.data_plane.headers.knative import KnativeDialect
from activator.data_plane.headers.trace_context import Sampler
from activator.data_plane.proxy.accounting import Accounting
from activator.data_plane.proxy.own_answers import send_refusal, send_whole
from activator.data_plane.proxy.phases import (
    ANSWERING,
    CONNECTING,
    OVER,
    POD_ENDED,
    ROUTING,
    SENT,
    TUNNEL,
    WAITING,
    illegal,
    is_legal,
)
from activator.data_plane.proxy.record import RequestRecord
from activator.data_plane.proxy.routing import Router
from activator.data_plane.proxy.time_limits import limit_reached, next_limit_s, pod_had_its_time, trial_takes_long
from activator.data_plane.proxy.tunnel import after_end_of_client, after_end_of_pod, leave_taken_upgrades, tunnel_phase
from activator.data_plane.throttle.budget import HeldBudget
from activator.data_plane.throttle.held_body import HeldBody
from activator.data_plane.throttle.lease import Lease
from activator.data_plane.throttle.revision import RevisionThrottler
from activator.data_plane.throttle.starting import server_timing
from activator.data_plane.upstream.pool import PodPool
from activator.runtime.clock import NEVER, Now, TimingWheel
from activator.runtime.errors import Reason, status_of

RISKY_IDLE_S: Final = 1.0  # what is not idempotent goes out on connections that were idle for less

_NO_BODY: Final[list[bytes]] = []
_NOBODY: Final = ClientStream()  # stands in for the client of an exchange that is over
# RFC 9110 section 9.2.2: these may be sent again when the connection closed before an answer.
_IDEMPOTENT: Final = frozenset({b"GET", b"HEAD", b"OPTIONS", b"PUT", b"DELETE", b"TRACE"})


class Proxy(Accounting):
    """What all exchanges of one worker share."""

    def __init__(
        self,
        router: Router,
        wheel: TimingWheel,
        now: Now,
        held: HeldBudget,
        held_body_bytes: int,
        attempts_max: int,
        on_error: Callable[[Exception], None],
    ) -> None:
        super().__init__()
        self.router = router
        self.wheel = wheel
        self.now = now
        self.held = held
        self.held_body_bytes = held_body_bytes
        self.attempts_max = attempts_max
        self.on_error = on_error
        self.sampler: Sampler | None = None  # decides which requests are traced, if any are
        self.dialect: KnativeDialect | None = None  # where Knative's parts are the peers

    def open(self, head: RequestHead, client: ClientStream) -> ProxiedExchange:
        """A request has arrived; `begin` it when its turn comes."""
        exchange = ProxiedExchange(self, head, client)
        if self.sampler is not None:
            exchange.trace = self.sampler.begin(head)
        return exchange


class ProxiedExchange(RequestRecord):
    """One request, between its client and a pod."""

    def __init__(self, proxy: Proxy, head: RequestHead, client: ClientStream) -> None:
        super().__init__(head, proxy.now())
        self._proxy = proxy
        self._client = client
        self._for_pods: bytes = b""  # of a dialect: the fields for any pod
        # the request's body, on its way to the pod
        self._held: HeldBody | None = None  # what came before the pod was there, or may have to be sent again
        self._request_trailers: Headers = []
        self._request_paused: bool = False
        self._pod_full: bool = False  # it reads more slowly than is written to it

    def _enter(self, phase: i64) -> bool:
        """Go on to `phase`. False: there is no such step from here, an error for which the request has ended."""
        if is_legal(self.phase, phase):
            self.phase = phase
            return True
        self._proxy.on_error(illegal(self.phase, phase))
        self._fail(Reason.INTERNAL, "")
        return False

    # --- to a pod ---

    def begin(self) -> None:
        if self.over:
            return
        self.read_s = self.arrived_s
        try:
            self._route()
        except Exception as error:  # of a third-party policy, say: it ends this request and no other
            self._proxy.on_error(error)
            self._fail(Reason.INTERNAL, "")
        self.read_s = 0.0

    def _route(self) -> None:
        if not self._enter(ROUTING):
            return
        proxy = self._proxy
        proxy.active += 1
        dialect = proxy.dialect
        if dialect is not None:
            seen = dialect.look(self.head)
            answer = seen.answer
            if answer is not None:
                client = self._client
                self._end(False, False)
                send_whole(client, self.head, answer.head(), answer.body)
                return
            self._for_pods = seen.for_pods
            key = seen.key()
            throttler = proxy.router.named(key) if key else proxy.router.by_host(self.head.authority)
        else:
            throttler = proxy.router.resolve(self.head)
            if self.head.has_internal:  # a client's: no pod is to take them for ours, or for Knative's
                take_internal_out(self.head)
        if throttler is None:
            proxy.unrouted_total += 1
            self._fail(Reason.NO_ROUTE, self.head.authority.decode("latin-1"))
            return
        self.throttler = throttler
        proxy.count_routed(throttler, self.arrived_s)
        self._ask_for_slot(throttler)

    def _ask_for_slot(self, throttler: RevisionThrottler) -> None:
        if self.head.upgrade and not leave_taken_upgrades(self.head, throttler.spec):
            self._fail(Reason.UPGRADE_NOT_SUPPORTED, "")
            return
        held = self._held
        if held is not None and not held.assign(throttler.held):
            self._fail(Reason.HELD_BYTES_FULL, held.refused_for)
            return
        affinity = throttler.affinity
        if affinity is not None:
            self.pick_key = affinity.key_of(self.head, self._client.client_ip() if affinity.on_client_ip else "")
        lease = throttler.try_acquire(self, self.arrived_s)
        if lease is not None:
            self.granted(lease)
            return
        refusal = throttler.enqueue(self)
        if refusal is not None:
            self._fail(refusal, throttler.refusal_detail())
        elif self._enter(WAITING):
            self._wait(throttler)

    def _wait(self, throttler: RevisionThrottler) -> None:
        if self.queued_s == 0.0:
            self.queued_s = self._time()
        if self.start is None:
            self.start = throttler.start
        self._proxy.wheel.arm(self, self.arrived_s + throttler.wait_limit_s(self))

    def granted(self, lease: Lease) -> None:
        throttler = self.throttler
        assert throttler is not None
        if not self._enter(CONNECTING):
            throttler.release(lease, 0.0, False)
            return
        pool = lease.attachment
        assert isinstance(pool, PodPool)
        self.lease = self.last_lease = lease
        self.granted_s = lease.granted_s
        if pool.is_closed():  # the pod has left since
            self.connect_failed(Reason.CONNECT_FAILED)
            return
        idle_max_s = NEVER
        if self.attempts > 0:
            idle_max_s = 0.0  # this time without the risk
        elif self.head.method not in _IDEMPOTENT:
            idle_max_s = RISKY_IDLE_S
        pod = pool.checkout(self, idle_max_s, self.granted_s)
        if pod is not None:
            self.connected(pod)
        else:
            self._arm(throttler)

    def is_served(self, lease: Lease) -> bool:
        return lease is self.lease and CONNECTING <= self.phase < OVER

    def connected(self, pod: PodStream) -> None:
        if not self._enter(SENT):
            pod.abort()
            return
        self.pod = pod
        self._pod_full = False
        self.connected_s = self._time()
        throttler = self.throttler
        assert throttler is not None
        self.progress_s = self.arrived_s if throttler.spec.times_from_arrival else self.connected_s
        head = self.head
        dialect = self._proxy.dialect
        lease = self.lease
        if dialect is not None and lease is not None:
            head.headers.block = dialect.addressed(self._for_pods, lease.address, throttler.key)
        if not head.has_body:
            pod.send_request(head, _NO_BODY)
        else:
            self._send_held(pod)
        self._arm(throttler)

    def _send_held(self, pod: PodStream) -> None:
        held = self._held
        pod.send_request(self.head, _NO_BODY if held is None else held.pieces)
        if not pod.reused or self.head.method not in _IDEMPOTENT:
            self._drop_held()
        elif held is None:
            self._held = HeldBody(self._proxy.held)
        if self.request_done:
            pod.send_end(self._request_trailers)
        elif self._request_paused and not self._pod_full:
            self._resume_request()

    def connect_failed(self, reason: Reason) -> None:
        """Nothing was sent: the request may go to any other pod, keeping its place."""
        if self.over:
            return
        throttler = self.throttler
        lease = self.lease
        assert throttler is not None and lease is not None
        throttler.pod_failed(lease, reason)
        if self.attempts + 1 < self._proxy.attempts_max:
            self._try_again(throttler, lease, reason)
        else:
            self._fail(reason, lease.address)

    def _try_again(self, throttler: RevisionThrottler, lease: Lease, reason: Reason) -> None:
        if not self._enter(WAITING):
            return
        self.attempts += 1
        self.lease = None
        self.granted_s = 0.0
        refusal = throttler.requeue(self, lease, reason)
        if refusal is None and self.in_line:
            self._wait(throttler)
        throttler.release(lease, 0.0, False)
        if refusal is not None:
            self._fail(refusal, throttler.refusal_detail() or lease.address)

    def _time(self) -> float:
        return self.read_s if self.read_s > 0.0 else self._proxy.now()

    # --- the request's body ---

    def request_body(self, data: bytes) -> None:
        if self.over:
            return
        self.request_bytes += len(data)
        held = self._held
        pod = self.pod
        if pod is not None:
            if self.phase >= TUNNEL:
                self.progress_s = self._time()
            elif held is not None and (held.size + len(data) > self._proxy.held_body_bytes or not held.append(data)):
                self._drop_held()  # too much to be sent again
            pod.send_body(data)
            return
        if held is None:
            held = self._held = HeldBody(self._proxy.held)
            if self.throttler is not None:
                held.assign(self.throttler.held)  # nothing yet: it has room for that
        if not held.append(data):
            self._fail(Reason.HELD_BYTES_FULL, held.refused_for)
            return
        if held.size >= self._proxy.held_body_bytes and not self._request_paused:
            self._request_paused = True
            self._client.pause_request()

    def request_end(self, trailers: Headers) -> None:
        if self.over:
            return
        self.request_done = True
        self._request_trailers = trailers
        pod = self.pod
        if pod is None:
            return
        if self.phase >= TUNNEL:
            if self._tunnel_goes_on(after_end_of_client(self.phase), pod):
                pod.send_end(trailers)
        elif self.head.has_body:
            pod.send_end(trailers)

    def request_failed(self, reason: Reason, detail: str) -> None:
        self._fail(reason, detail)

    def pod_blocked(self) -> None:
        if self.over:
            return
        self._pod_full = True
        if not self._request_paused and not self.request_done:
            self._request_paused = True
            self._client.pause_request()

    def pod_drained(self) -> None:
        if self.over:
            return
        self._pod_full = False
        if self._request_paused:
            self._resume_request()

    def _resume_request(self) -> None:
        self._request_paused = False
        self._client.resume_request()

    def _drop_held(self) -> None:
        held = self._held
        if held is not None:
            self._held = None
            held.drop()

    # --- the answer ---

    def response_interim(self, head: ResponseHead) -> None:
        if not self.over:
            self._client.send_interim(head)

    def response_head(self, head: ResponseHead) -> None:
        if self.over:
            return
        phase: i64 = ANSWERING
        if head.status == 101:
            pod = self.pod
            assert pod is not None
            phase = tunnel_phase(self._client, pod)
        if not self._enter(phase):
            return
        self.status = head.status
        self.first_byte_s = self.progress_s = self._time()
        if self._held is not None:
            self._drop_held()  # whatever happens now, the request is not sent again
        throttler = self.throttler
        assert throttler is not None
        lease = self.lease
        if lease is not None and lease.trial:
            throttler.trial_answered(lease)
        self._proxy.count_answer(throttler, head.status)
        if throttler.spec.server_timing:
            value = server_timing(self.start, self.arrived_s, self.granted_s, self.connected_s, self.first_byte_s)
            head.headers.append(b"Server-Timing", value)
        if phase >= TUNNEL:
            self.request_done = False  # the client's stream begins now
            self._proxy.count_tunnel(throttler)
            self._arm(throttler)
        self._client.send_head(head)

    def response_body(self, data: bytes) -> None:
        if not self.over:
            self.response_bytes += len(data)
            self._client.send_body(data)

    def response_flush(self) -> None:
        if self.over:
            return
        self.progress_s = self._time()
        self.read_s = 0.0
        self._client.flush()

    def response_end(self, trailers: Headers) -> None:
        if self.over:
            return
        client = self._client
        pod = self.pod
        if self.phase >= TUNNEL and pod is not None:
            self._tunnel_goes_on(after_end_of_pod(self.phase), pod)
        else:
            self.pod = None  # from here on the connection may serve another exchange
            if not self.request_done and pod is not None:
                pod.abort()  # an early answer: the rest of the request has no reader
            self._end(True, True)
        client.send_end(trailers)

    def client_blocked(self) -> None:
        if not self.over and self.pod is not None:
            self.is_client_slow = True
            self.pod.pause_response()

    def client_drained(self) -> None:
        if not self.over and self.pod is not None:
            if self.is_client_slow and self.phase < TUNNEL and self.throttler is not None:
                self.is_client_slow = False
                self.progress_s = self._proxy.now()
                self._arm(self.throttler)
            self.pod.resume_response()

    def _tunnel_goes_on(self, phase: i64, pod: PodStream) -> bool:
        """One direction of a tunnel has ended, which takes it to `phase`; False: that was the end of both."""
        if phase == OVER:
            self.pod = None
            pod.finish()
            self._end(True, True)
            return False
        return phase == self.phase or self._enter(phase)

    # --- ends ---

    def pod_failed(self, reason: Reason, detail: str, untouched: bool) -> None:
        if self.over:
            return
        self.pod = None
        if self.phase == POD_ENDED:
            client = self._client  # the pod had sent everything: the client is to get it
            self._end(True, True)
            client.send_end([])
            return
        throttler = self.throttler
        lease = self.lease
        if untouched and throttler is not None and lease is not None and self._is_repeatable(throttler):
            self._try_again(throttler, lease, reason)
        else:
            self._fail(reason, detail)

    def _is_repeatable(self, throttler: RevisionThrottler) -> bool:
        """The request may be sent twice, is here whole, and the revision's budget allows it."""
        if self.head.method not in _IDEMPOTENT or self.attempts + 1 >= self._proxy.attempts_max:
            return False
        if self.head.has_body and self._held is None:
            return False
        return throttler.retry_budget.spend(throttler.requests_total)

    def client_gone(self) -> None:
        if self.over:
            return
        if self.throttler is not None:
            self.throttler.client_gone_total += 1
        self.reason = Reason.CLIENT_GONE
        self._end(False, True)

    def refused(self, reason: Reason, detail: str) -> None:
        self._fail(reason, detail)

    def revoked(self, reason: Reason, detail: str) -> None:
        self._fail(reason, detail)

    def expired(self, now_s: float) -> None:
        if self.over:
            return
        throttler = self.throttler
        assert throttler is not None
        if self.in_line:
            throttler.overdue(self)
            return
        lease = self.lease
        if lease is not None and trial_takes_long(lease, now_s):
            throttler.trial_takes_long(lease)
        reason = limit_reached(self, throttler.spec, now_s)
        if reason is None:
            self._arm(throttler)
        else:
            self._fail(reason, "")

    def _arm(self, throttler: RevisionThrottler) -> None:
        """Let the wheel look at the exchange when the next of its time limits could be reached."""
        self._proxy.wheel.arm(self, next_limit_s(self, throttler.spec))

    def _fail(self, reason: Reason, detail: str) -> None:
        """End the request for `reason`: its client is sent the reason, or where an answer has begun, cut off."""
        if self.over:
            return
        proxy = self._proxy
        throttler = self.throttler
        answered = self.phase >= ANSWERING
        retry_after_s = 0
        if throttler is None:
            proxy.count_refused(reason)
        else:
            proxy.count_failed(throttler, reason)
            lease = self.lease
            if lease is not None and pod_had_its_time(self, reason, throttler.spec, self._time()):
                throttler.pod_failed(lease, reason)
            if status_of(reason) == 503:
                retry_after_s = throttler.retry_after_s()
        client = self._client
        self.reason = reason
        if not answered:
            self.status = status_of(reason)
        self._end(False, True)
        if answered:
            client.abort()
        else:
            send_refusal(client, self.head, reason, detail, retry_after_s, proxy.dialect)

    def _end(self, succeeded: bool, is_request: bool) -> None:
        """Give back all that the exchange holds. `is_request` False: a probe, which no log or statistic shows."""
        phase = self.phase
        if not self._enter(OVER):
            return
        self.over = True
        client = self._client
        self._client = _NOBODY  # the stream refers to the exchange: no cycle is left for the collector
        proxy = self._proxy
        proxy.count_end(phase)
        self.done_s = self._time()
        proxy.wheel.cancel(self)
        if self._held is not None:
            self._drop_held()
        pod = self.pod
        if pod is not None:
            self.pod = None
            pod.abort()
        throttler = self.throttler
        if throttler is not None:
            if self.in_line:
                throttler.cancel(self)
            lease = self.lease
            if lease is not None:
                self.lease = None
                if phase == CONNECTING:
                    _forget(lease, self)
                # The duration of a tunnel says nothing about the speed of its pod.
                throttler.release(lease, 0.0 if phase >= TUNNEL else self.done_s - self.granted_s, succeeded)
            proxy.add_to_traffic(self, throttler)
        if is_request:
            proxy.notify_observers(self, client)

    def leave_exemplars(self, trace_id: str, time_s: float) -> None:
        """For the sender of its trace: in each histogram that it was added to. `time_s`: since 1970."""
        self._proxy.leave_exemplars(self, trace_id, time_s)


def _forget(lease: Lease, exchange: ProxiedExchange) -> None:
    """The exchange waits no longer for a connection to the pod of `lease`."""
    pool = lease.attachment
    assert isinstance(pool, PodPool)
    pool.forget(exchange)
