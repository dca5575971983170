"""The life of one request: read this file first.

    arrived ──► routed ──► granted a slot ──► connected ──► first byte ──► done
                  │            │  ▲               │
                  │  (no room) ▼  │ (room)        │ (refused: another pod, same place in line)
                  │          in line ◄────────────┘
                  ▼
               refused, with a reason, from wherever it happens

Rules
  1. Everything is a plain method that the client side, the throttler, the pool or the timing wheel calls; there is no
     task per request and nothing to cancel, so a grant cannot fall between two turns of the loop.
  2. With room in a pod and an idle connection, `begin` has the request on its way when it returns.
  3. An exchange ends exactly once, in `_end`: there its lease is released, its deadline disarmed, its place left.
  4. Once a byte of the answer has gone to the client, a failure can only cut the answer short; text is never appended.
  5. A request goes to a second pod only when the first provably did nothing with it: no connection was made; or a kept
     connection closed without a byte of an answer, and the request may be repeated and is here whole.
  6. After a 101 the exchange is a tunnel: the same lease, the same ends, other time limits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mypy_extensions import i64, mypyc_attr

from activator.codec.message import Headers, RequestHead, ResponseHead
from activator.config.specs import RevisionSpec
from activator.data_plane.exchange import ClientStream, Exchange, PodStream
from activator.data_plane.headers.knative import KnativeDialect, OwnAnswer
from activator.data_plane.headers.trace_context import Sampler, TraceContext
from activator.data_plane.proxy.routing import Router
from activator.data_plane.refusals import refusal_head, refusal_text
from activator.data_plane.throttle.budget import HeldBudget
from activator.data_plane.throttle.held_body import HeldBody
from activator.data_plane.throttle.lease import Lease
from activator.data_plane.throttle.revision import RevisionThrottler
from activator.data_plane.throttle.starting import Start, server_timing
from activator.data_plane.upstream.pool import PodPool
from activator.runtime.clock import NEVER, Now, TimingWheel
from activator.runtime.errors import Reason, status_of

RISKY_IDLE_S: Final = 1.0  # what is not idempotent goes out on connections that were idle for less
TRIAL_EXCLUSIVE_S: Final = 0.5  # how long one trial request keeps others from its pod; then another is tried beside it

_NO_BODY: Final[list[bytes]] = []
_NOBODY: Final = ClientStream()  # stands in for the client of an exchange that is over
# RFC 9110 section 9.2.2: these may be sent again when the connection closed before an answer.
_IDEMPOTENT: Final = frozenset({b"GET", b"HEAD", b"OPTIONS", b"PUT", b"DELETE", b"TRACE"})
# Of a revision that takes every upgrade: HTTP itself in another version (RFC 9113 has retired h2c) and in TLS.
_NEVER_TUNNELLED: Final = frozenset({b"h2c", b"h2", b"tls/1.0", b"tls/1.1", b"tls/1.2", b"http/2.0"})


@mypyc_attr(allow_interpreted_subclasses=True)
class ExchangeObserver:
    """Hears of every exchange once it is over, with all its phases: access logs, traces, the demo.

    `client` is the stream that was answered; nobody keeps it.
    """

    def ended(self, exchange: Exchange, client: ClientStream) -> None:
        raise NotImplementedError


class Proxy:
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
        self.router = router
        self.wheel = wheel
        self.now = now
        self.held = held
        self.held_body_bytes = held_body_bytes
        self.attempts_max = attempts_max
        self.on_error = on_error
        self.observer: ExchangeObserver | None = None
        self.sampler: Sampler | None = None  # decides which requests are traced, if any are
        self.tracer: ExchangeObserver | None = None  # hears of those
        self.measurer: ExchangeObserver | None = None  # tells requests apart by more than our own metrics do
        self.histograms: bool = True  # how long requests took is kept
        self.dialect: KnativeDialect | None = None  # where Knative's parts are the peers
        self.active: int = 0  # exchanges that have begun and not ended
        self.tunnels: int = 0  # of these, how many speak another protocol by now
        self.unrouted_total: int = 0
        self.refused_requests: dict[Reason, int] = {}  # refused before they had a revision

    def open(self, head: RequestHead, client: ClientStream) -> ProxiedExchange:
        """A request has arrived; `begin` it when its turn comes."""
        exchange = ProxiedExchange(self, head, client)
        if self.sampler is not None:
            exchange.trace = self.sampler.begin(head)
        return exchange

    def count_refused(self, reason: Reason) -> None:
        self.refused_requests[reason] = self.refused_requests.get(reason, 0) + 1


class ProxiedExchange(Exchange):
    """One request. Attributes ending in `_s` are its phases, in monotonic seconds; 0.0 means: not reached."""

    def __init__(self, proxy: Proxy, head: RequestHead, client: ClientStream) -> None:
        super().__init__(head)
        self.arrived_s: float = proxy.now()
        self.queued_s: float = 0.0
        self.granted_s: float = 0.0
        self.connected_s: float = 0.0
        self.first_byte_s: float = 0.0
        self.start: Start | None = None  # the start from zero that it has waited for
        self.request_bytes: i64 = 0  # of the body as far as it has come; of a tunnel, what the client said
        self.response_bytes: i64 = 0
        self.status: i64 = 0  # of the answer; 0: there was none
        self.reason: Reason | None = None  # why it ended otherwise than with its pod's answer
        self.last_lease: Lease | None = None  # names the pod that it was given to last
        self.trace: TraceContext | None = None  # it is traced
        self._proxy = proxy
        self._client = client
        self._throttler: RevisionThrottler | None = None
        self._lease: Lease | None = None
        self._pool: PodPool | None = None  # while a connection of the granted pod is awaited
        self._pod: PodStream | None = None
        self._begun: bool = False
        self._attempts: int = 0
        self._for_pods: bytes = b""  # of a dialect: the fields for any pod
        self._held: HeldBody | None = None  # what came before the pod was there, or may have to be sent again
        self._request_done: bool = not head.has_body
        self._request_trailers: Headers = []
        self._request_paused: bool = False
        self._pod_full: bool = False  # it reads more slowly than is written to it
        self._answered: bool = False  # the head of the answer has gone to the client
        self._tunnel: bool = False  # it was a 101
        self._response_done: bool = False  # of a tunnel: the pod has ended its side
        self._ends_at_once: bool = False  # of a tunnel: with one direction ends the other
        self._progress_s: float = 0.0

    # --- to a pod ---

    def begin(self) -> None:
        if self.over:
            return
        self.read_s = self.arrived_s
        try:
            self._route()
        except Exception as error:  # of a policy that somebody brought along, say: this request's end, nobody else's
            self._proxy.on_error(error)
            self._fail(Reason.INTERNAL, "")
        self.read_s = 0.0

    def _route(self) -> None:
        proxy = self._proxy
        self._begun = True
        proxy.active += 1
        dialect = proxy.dialect
        if dialect is not None:
            seen = dialect.look(self.head)
            if seen.answer is not None:
                self._answer_probe(seen.answer)
                return
            self._for_pods = seen.for_pods
            key = seen.key()
            throttler = proxy.router.named(key) if key else proxy.router.by_host(self.head.authority)
        else:
            throttler = proxy.router.resolve(self.head)
        if throttler is None:
            proxy.unrouted_total += 1
            self._fail(Reason.NO_ROUTE, self.head.authority.decode("latin-1"))
            return
        self._throttler = throttler
        throttler.requests_total += 1
        throttler.traffic.begun(self.arrived_s)
        if self.head.upgrade and not self._may_upgrade(throttler):
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
            return
        self._wait(throttler)

    def granted(self, lease: Lease) -> None:
        pool = lease.attachment
        assert isinstance(pool, PodPool)
        self._lease = self.last_lease = lease
        self._pool = pool
        self.granted_s = lease.granted_s
        idle_max_s = NEVER
        if self._attempts > 0:
            idle_max_s = 0.0  # this time without the risk
        elif self.head.method not in _IDEMPOTENT:
            idle_max_s = RISKY_IDLE_S
        pool.checkout(self, idle_max_s, self.granted_s)
        if self._is_connecting():  # else `connected` has set the deadline
            self._arm()

    def is_served(self, lease: Lease) -> bool:
        return not self.over and lease is self._lease and (self._pod is not None or self._pool is not None)

    def _is_connecting(self) -> bool:
        return self._pool is not None

    def connected(self, pod: PodStream) -> None:
        self._pool = None
        self._pod = pod
        self._pod_full = False
        self.connected_s = self._time()
        throttler = self._throttler
        assert throttler is not None
        self._progress_s = self.arrived_s if throttler.spec.times_from_arrival else self.connected_s
        head = self.head
        dialect = self._proxy.dialect
        lease = self._lease
        if dialect is not None and lease is not None:
            head.headers.block = dialect.addressed(self._for_pods, lease.address, throttler.key)
        if not head.has_body:
            pod.send_request(head, _NO_BODY)
        else:
            self._send_held(pod)
        self._arm()

    def _send_held(self, pod: PodStream) -> None:
        held = self._held
        pod.send_request(self.head, _NO_BODY if held is None else held.pieces)
        if not pod.reused or self.head.method not in _IDEMPOTENT:
            self._drop_held()
        elif held is None:
            self._held = HeldBody(self._proxy.held)
        if self._request_done:
            pod.send_end(self._request_trailers)
        elif self._request_paused and not self._pod_full:
            self._resume_request()

    def connect_failed(self, reason: Reason) -> None:
        """Nothing was sent: the request may go to any other pod, keeping its place."""
        throttler = self._throttler
        lease = self._lease
        assert throttler is not None and lease is not None
        self._pool = None
        throttler.pod_failed(lease, reason)
        if self._attempts + 1 < self._proxy.attempts_max:
            self._try_again(throttler, lease, reason)
        else:
            self._fail(reason, lease.address)

    def _try_again(self, throttler: RevisionThrottler, lease: Lease, reason: Reason) -> None:
        self._attempts += 1
        self._lease = None
        self.granted_s = 0.0
        refusal = throttler.requeue(self, lease, reason)
        if refusal is None and self.in_line:
            self._wait(throttler)
        throttler.release(lease, 0.0, False)
        if refusal is not None:
            self._fail(refusal, throttler.refusal_detail() or lease.address)

    def revision_key(self) -> str:
        """namespace/name; empty where no revision was found."""
        throttler = self._throttler
        return "" if throttler is None else throttler.key

    def spec(self) -> RevisionSpec | None:
        """What its revision is like; None: none was found."""
        throttler = self._throttler
        return None if throttler is None else throttler.spec

    def retries(self) -> int:
        """Pods that failed it before the last."""
        return self._attempts

    def _may_upgrade(self, throttler: RevisionThrottler) -> bool:
        """Leave of the offered protocols those that the revision takes; False for a WebSocket where it takes none.

        Others are declined by saying nothing of them (RFC 9110 7.8); a WebSocket client could make nothing of that.
        """
        head = self.head
        offered = head.upgrade.split(b", ")
        taken = throttler.spec.upgrades
        every = "*" in taken
        head.upgrade = b", ".join(
            [one for one in offered if one.decode("latin-1") in taken or (every and one not in _NEVER_TUNNELLED)]
        )
        return bool(head.upgrade) or b"websocket" not in offered

    def _time(self) -> float:
        return self.read_s if self.read_s > 0.0 else self._proxy.now()

    def _wait(self, throttler: RevisionThrottler) -> None:
        if self.queued_s == 0.0:
            self.queued_s = self._time()
        if self.start is None:
            self.start = throttler.start
        self._proxy.wheel.arm(self, self.arrived_s + throttler.wait_limit_s(self))

    # --- the request's body ---

    def request_body(self, data: bytes) -> None:
        if self.over:
            return
        self.request_bytes += len(data)
        held = self._held
        pod = self._pod
        if pod is not None:
            if self._tunnel:
                self._progress_s = self._time()
            elif held is not None and (held.size + len(data) > self._proxy.held_body_bytes or not held.append(data)):
                self._drop_held()  # too much to be sent again
            pod.send_body(data)
            return
        if held is None:
            held = self._held = HeldBody(self._proxy.held)
            if self._throttler is not None:
                held.assign(self._throttler.held)  # nothing yet: it has room for that
        if not held.append(data):
            self._fail(Reason.HELD_BYTES_FULL, held.refused_for)
            return
        if held.size >= self._proxy.held_body_bytes and not self._request_paused:
            self._request_paused = True
            self._client.pause_request()

    def request_end(self, trailers: Headers) -> None:
        if self.over:
            return
        self._request_done = True
        self._request_trailers = trailers
        pod = self._pod
        if pod is None:
            return
        if self._tunnel and (self._response_done or self._ends_at_once):
            self._end_tunnel(pod)
        elif self._tunnel or self.head.has_body:
            pod.send_end(trailers)

    def request_failed(self, reason: Reason, detail: str) -> None:
        self._fail(reason, detail)

    def pod_blocked(self) -> None:
        if self.over:
            return
        self._pod_full = True
        if not self._request_paused and not self._request_done:
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
        self._answered = True
        self.status = head.status
        self.first_byte_s = self._progress_s = self._time()
        if self._held is not None:
            self._drop_held()  # whatever happens now, the request is not sent again
        throttler = self._throttler
        assert throttler is not None
        lease = self._lease
        if lease is not None and lease.trial:
            throttler.trial_answered(lease)
        throttler.codes[head.status] = throttler.codes.get(head.status, 0) + 1
        if throttler.spec.server_timing:
            value = server_timing(self.start, self.arrived_s, self.granted_s, self.connected_s, self.first_byte_s)
            head.headers.append(b"Server-Timing", value)
        if head.status == 101:
            self._begin_tunnel()
        self._client.send_head(head)

    def response_body(self, data: bytes) -> None:
        if not self.over:
            self.response_bytes += len(data)
            self._client.send_body(data)

    def response_flush(self) -> None:
        if self.over:
            return
        self._progress_s = self._time()
        self.read_s = 0.0
        self._client.flush()

    def response_end(self, trailers: Headers) -> None:
        if self.over:
            return
        pod = self._pod
        if self._tunnel and pod is not None:
            self._response_done = True
            client = self._client
            if self._request_done or self._ends_at_once:
                self._end_tunnel(pod)
            client.send_end(trailers)
            return
        self._pod = None  # from here on the connection may serve another exchange
        if not self._request_done and pod is not None:
            pod.abort()  # an early answer: the rest of the request has no reader
        client = self._client
        self._end(True)
        client.send_end(trailers)

    def client_blocked(self) -> None:
        if not self.over and self._pod is not None:
            self._pod.pause_response()

    def client_drained(self) -> None:
        if not self.over and self._pod is not None:
            self._pod.resume_response()

    # --- a tunnel ---

    def _begin_tunnel(self) -> None:
        self._tunnel = True
        self._request_done = False  # the client's stream begins now
        pod = self._pod
        self._ends_at_once = not self._client.half_closes() or (pod is not None and not pod.half_closes())
        self._proxy.tunnels += 1
        throttler = self._throttler
        assert throttler is not None
        throttler.traffic.tunnels += 1
        throttler.traffic.tunnels_total += 1
        self._arm()

    def _end_tunnel(self, pod: PodStream) -> None:
        """Both sides have ended theirs, or one has and the other cannot go on alone."""
        self._pod = None
        pod.finish()
        self._end(True)

    # --- ends ---

    def pod_failed(self, reason: Reason, detail: str, untouched: bool) -> None:
        if self.over:
            return
        self._pod = None
        if self._tunnel and self._response_done:
            client = self._client  # the pod had said all it had to say: the client is to have it
            self._end(True)
            client.send_end([])
            return
        throttler = self._throttler
        lease = self._lease
        if untouched and throttler is not None and lease is not None and self._is_repeatable(throttler):
            self._try_again(throttler, lease, reason)
        else:
            self._fail(reason, detail)

    def _is_repeatable(self, throttler: RevisionThrottler) -> bool:
        """The request may be sent twice, is here whole, and the revision's budget allows it."""
        if self.head.method not in _IDEMPOTENT or self._attempts + 1 >= self._proxy.attempts_max:
            return False
        if self.head.has_body and self._held is None:
            return False
        return throttler.retry_budget.spend(throttler.requests_total)

    def client_gone(self) -> None:
        if self.over:
            return
        if self._throttler is not None:
            self._throttler.client_gone_total += 1
        self.reason = Reason.CLIENT_GONE
        self._end(False)

    def refused(self, reason: Reason, detail: str) -> None:
        self._fail(reason, detail)

    def revoked(self, reason: Reason, detail: str) -> None:
        self._fail(reason, detail)

    def expired(self, now_s: float) -> None:
        if self.over:
            return
        throttler = self._throttler
        assert throttler is not None
        if self.in_line:
            throttler.overdue(self)
            return
        spec = throttler.spec
        lease = self._lease
        if lease is not None and lease.bars_trials and now_s - lease.granted_s >= TRIAL_EXCLUSIVE_S:
            throttler.trial_takes_long(lease)
        if self._tunnel:
            if 0.0 < spec.tunnel_idle_timeout_s <= now_s - self._progress_s:
                self._fail(Reason.IDLE_TIMEOUT, "")
            else:
                self._arm()
        elif 0.0 < spec.total_timeout_s <= now_s - self._timed_from_s():
            self._fail(Reason.TOTAL_TIMEOUT, "")
        elif self._waits_for_first_byte() and 0.0 < spec.first_byte_timeout_s <= now_s - self._first_byte_from_s():
            self._fail(Reason.FIRST_BYTE_TIMEOUT, "")
        elif self._idles() and 0.0 < spec.idle_timeout_s <= now_s - self._idle_from_s():
            self._fail(Reason.IDLE_TIMEOUT, "")
        else:
            self._arm()

    def _arm(self) -> None:
        """Let the wheel look at the exchange when the next of its time limits could be reached."""
        throttler = self._throttler
        assert throttler is not None
        spec = throttler.spec
        deadline_s = NEVER
        if self._tunnel:
            if spec.tunnel_idle_timeout_s > 0.0:
                deadline_s = self._progress_s + spec.tunnel_idle_timeout_s
            self._proxy.wheel.arm(self, deadline_s)
            return
        if spec.total_timeout_s > 0.0:
            deadline_s = self._timed_from_s() + spec.total_timeout_s
        if spec.first_byte_timeout_s > 0.0 and self._waits_for_first_byte():
            deadline_s = min(deadline_s, self._first_byte_from_s() + spec.first_byte_timeout_s)
        if spec.idle_timeout_s > 0.0 and self._idles():
            deadline_s = min(deadline_s, self._idle_from_s() + spec.idle_timeout_s)
        lease = self._lease
        if lease is not None and lease.bars_trials:
            deadline_s = min(deadline_s, lease.granted_s + TRIAL_EXCLUSIVE_S)
        self._proxy.wheel.arm(self, deadline_s)

    def _timed_from_s(self) -> float:
        """Where the total timeout begins: at the pod, or at arrival as with Knative."""
        throttler = self._throttler
        return self.arrived_s if throttler is not None and throttler.spec.times_from_arrival else self.granted_s

    def _first_byte_from_s(self) -> float:
        throttler = self._throttler
        return self.arrived_s if throttler is not None and throttler.spec.times_from_arrival else self.connected_s

    def _waits_for_first_byte(self) -> bool:
        return not self._answered and self._idles()

    def _idles(self) -> bool:
        """Whether silence counts: a pod has the request; or where all time counts, a connection to one is awaited."""
        throttler = self._throttler
        return self._pod is not None or (throttler is not None and throttler.spec.times_from_arrival)

    def _idle_from_s(self) -> float:
        return self.arrived_s if self._pod is None else self._progress_s

    def _pod_had_its_time(self, reason: Reason, spec: RevisionSpec) -> bool:
        """A time limit speaks of the pod only if it had most of the time, and all of the request."""
        if reason is Reason.FIRST_BYTE_TIMEOUT:
            limit_s = spec.first_byte_timeout_s
        elif reason is Reason.TOTAL_TIMEOUT:
            limit_s = spec.total_timeout_s
        elif reason is Reason.IDLE_TIMEOUT:
            limit_s = spec.idle_timeout_s
        else:
            return True
        return self._pod is not None and self._request_done and self._time() - self.connected_s >= 0.5 * limit_s

    def _fail(self, reason: Reason, detail: str) -> None:
        if self.over:
            return
        throttler = self._throttler
        retry_after_s = 0
        if throttler is not None:
            throttler.failed_totals[reason] = throttler.failed_totals.get(reason, 0) + 1
            if self._lease is not None and self._pod_had_its_time(reason, throttler.spec):
                throttler.pod_failed(self._lease, reason)
            if status_of(reason) == 503:
                retry_after_s = throttler.retry_after_s()
        else:
            self._proxy.count_refused(reason)
        client = self._client
        self.reason = reason
        if not self._answered:
            self.status = status_of(reason)
        self._end(False)
        if self._answered:
            client.abort()
            return
        dialect = self._proxy.dialect
        body = refusal_text(reason, detail) if dialect is None else dialect.refusal_text(reason, detail, self.head)
        head = refusal_head(reason, body, retry_after_s)
        if dialect is not None:
            head.headers.append(b"X-Content-Type-Options", b"nosniff")
        self._send_answer(client, head, body)

    def _answer_probe(self, answer: OwnAnswer) -> None:
        """Not a request, as far as logs, counts and statistics go."""
        client = self._client
        self.over = True
        self.done_s = self._time()  # from here on the client's connection is idle
        self._client = _NOBODY
        self._proxy.active -= 1
        if self._held is not None:
            self._drop_held()
        self._send_answer(client, answer.head(), answer.body)

    def _send_answer(self, client: ClientStream, head: ResponseHead, body: bytes) -> None:
        if self.head.method == b"HEAD":
            head.has_body = False
        client.send_head(head)
        if head.has_body and body:
            client.send_body(body)
        client.send_end([])

    def _end(self, succeeded: bool) -> None:
        self.over = True
        client = self._client
        self._client = _NOBODY  # the stream refers to the exchange: no cycle is left for the collector
        proxy = self._proxy
        proxy.active -= 1 if self._begun else 0
        proxy.tunnels -= 1 if self._tunnel else 0
        self.done_s = self._time()
        proxy.wheel.cancel(self)
        if self._held is not None:
            self._drop_held()
        pool = self._pool
        if pool is not None:
            pool.forget(self)
            self._pool = None
        pod = self._pod
        if pod is not None:
            self._pod = None
            pod.abort()
        throttler = self._throttler
        if throttler is not None:
            if self.in_line:
                throttler.cancel(self)
            lease = self._lease
            if lease is not None:
                self._lease = None
                # How long a tunnel stood says nothing of how fast its pod is.
                throttler.release(lease, 0.0 if self._tunnel else self.done_s - self.granted_s, succeeded)
            self._account(throttler)
        if proxy.observer is not None:
            proxy.observer.ended(self, client)
        if self.trace is not None and proxy.tracer is not None:
            proxy.tracer.ended(self, client)
        if proxy.measurer is not None:
            proxy.measurer.ended(self, client)

    def _account(self, throttler: RevisionThrottler) -> None:
        """Add the request to what its revision has carried."""
        traffic = throttler.traffic
        traffic.ended(self.done_s)
        traffic.request_bytes += self.request_bytes
        traffic.response_bytes += self.response_bytes
        if self._tunnel:
            traffic.tunnels -= 1  # how long it stood is its own affair
        if not self._proxy.histograms:
            return
        if not self._tunnel:
            traffic.duration.observe(self.done_s - self.arrived_s)
        first_byte_s = self.first_byte_s
        if first_byte_s > 0.0:
            traffic.first_byte.observe(first_byte_s - self.arrived_s)
        if self.queued_s > 0.0:
            waited_until_s = self.granted_s if self.granted_s > 0.0 else self.done_s
            traffic.wait.observe(waited_until_s - self.queued_s)
            if self.start is not None and first_byte_s > 0.0:
                traffic.cold_request(self.start.phases(self.arrived_s, self.granted_s, self.connected_s, first_byte_s))

    def leave_exemplars(self, trace_id: str, time_s: float) -> None:
        """For whoever has sent its trace: in each histogram that `_account` has added it to. `time_s`: since 1970."""
        throttler = self._throttler
        if throttler is None or not self._proxy.histograms:
            return
        traffic = throttler.traffic
        if not self._tunnel:
            traffic.duration.exemplify(self.done_s - self.arrived_s, trace_id, time_s)
        if self.first_byte_s > 0.0:
            traffic.first_byte.exemplify(self.first_byte_s - self.arrived_s, trace_id, time_s)
        if self.queued_s > 0.0:
            waited_until_s = self.granted_s if self.granted_s > 0.0 else self.done_s
            traffic.wait.exemplify(waited_until_s - self.queued_s, trace_id, time_s)
