"""The life of one request: read this file first.

    arrived ──► routing ──► connecting ──► sent ──► answering ──► delivering ──► over
                 │   │         ▲      │        │
       (its body │   │ (no     │      ▼        ▼  (no connection, or closed untouched: another pod, same place in line)
        is slow) ▼   ▼  room)  │    waiting ◄──┘
            gathering ──► waiting     │    (Where its body says which revision it means: `scanning`, behind routing.)
                                      ▼
                                     over: refused with a reason, from whichever phase it happens in

Rules
  1. Everything is a plain method that the client side, the throttler, the pool or the timing wheel calls; there is no
     task per request and nothing to cancel, so a grant cannot fall between two turns of the loop.
  2. With room in a pod and an idle connection, `begin` has the request on its way when it returns.
  3. A request is in one phase, and goes from phase to phase by `_enter`, along the table in phases.py.
  4. An exchange ends exactly once, in `_end`: there its lease is released, its deadline disarmed, its place left.
  5. Once a byte of the answer has gone to the client, a failure can only cut the answer short; text is never appended.
  6. A request goes to a second pod only when the first provably did nothing with it (retry_policy.py).
  7. A slow client holds no slot while a buffer can do it for the client: the body of a request is gathered before a
     slot is asked for, and what the client has not taken of an answer is kept when the pod has finished (buffering.py).
  8. After a 101 the exchange is a tunnel (tunnel.py): the same lease, the same ends, other time limits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mypy_extensions import i64

from activator.codec.http1.fields import internal_names
from activator.codec.message import Headers, RequestHead, ResponseHead
from activator.codec.proxy_protocol import Endpoints
from activator.data_plane.answers.store import ANSWERS_PATH, AnswerStore
from activator.data_plane.buffering import is_request_streamed, is_response_streamed
from activator.data_plane.exchange import ClientStream, ClientWrapper, Exchange, PodStream
from activator.data_plane.filters.filter import Failure, Filter, FilterChain
from activator.data_plane.headers import grpc
from activator.data_plane.headers.edits import HeadEdits
from activator.data_plane.headers.trace_context import Sampler
from activator.data_plane.phases import (
    ANSWERING,
    CONNECTING,
    DELIVERING,
    GATHERING,
    HELD,
    OVER,
    POD_ENDED,
    ROUTING,
    SCANNING,
    SENT,
    TUNNEL,
    WAITING,
    illegal,
    is_legal,
)
from activator.data_plane.proxy.accounting import Accounting
from activator.data_plane.proxy.cancelled import CancelledRequest, outlives_request
from activator.data_plane.proxy.guarded_wrapper import GuardedWrapper
from activator.data_plane.proxy.own_answers import send_refusal, send_whole
from activator.data_plane.proxy.request_body import SHARE_BYTES, BodyBudgets, RequestBody
from activator.data_plane.proxy.retry_policy import (
    AGAIN,
    FALL_BACK,
    NOT_SENT,
    REFUSED,
    TOUCHED,
    UNTOUCHED,
    decide,
    forget_revision,
    idle_limit_s,
    is_idempotent,
    may_fall_back,
)
from activator.data_plane.proxy.routing import Router, sought
from activator.data_plane.proxy.selection import SCAN_TIMEOUT_S, Selection
from activator.data_plane.proxy.time_limits import limit_reached, next_limit_s, pod_had_its_time, trial_takes_long
from activator.data_plane.proxy.tunnel import accepted_upgrades, after_end_of_client, after_end_of_pod, tunnel_phase
from activator.data_plane.request import HOLD_MAX_S, BodyWatcher, RequestRecord
from activator.data_plane.throttle.held_bodies import BodyBuffer
from activator.data_plane.throttle.leases import Lease
from activator.data_plane.throttle.revision import RevisionThrottler
from activator.data_plane.upstream.pool import PodPool
from activator.data_plane.upstream.websockets import is_accepted
from activator.runtime.clock import Now, TimingWheel
from activator.runtime.reasons import Reason

FALLBACK_HEADER: Final = b"Activator-Fallback"  # of an answer: the revision that has given it, not the one asked for
PENDING_RETRY_AFTER_S: Final = 1  # for requests that have no revision yet, and may have one later or elsewhere
TOLD_LATE_S: Final = 0.001  # a wait so long is taken off the deadline that the pod of a gRPC request is told

_NO_BODY: Final[list[bytes]] = []
# What a hook may do.
_NO_HOOK: Final = 0
_ON_REQUEST: Final = 1
_EDITS: Final = 2
_BEHIND_ALL: Final = 1 << 30  # the place after the last filter
_NOBODY: Final = ClientStream()  # stands in for the client of an exchange that is over
# The client takes nothing; or what is kept is not to be trusted.
_ENDS_DELIVERY: Final = frozenset({Reason.SEND_TIMEOUT, Reason.INTERNAL})
# Refused for the length of the line: the client is told how long it is.
_LINE_IS_LONG: Final = frozenset({Reason.QUEUE_FULL, Reason.DEADLINE_TOO_SHORT})


class Proxy(Accounting):
    """What all exchanges of one worker share."""

    def __init__(
        self,
        router: Router,
        wheel: TimingWheel,
        now: Now,
        bodies: BodyBudgets,
        attempts_max: int,
        on_error: Callable[[Exception], None],
        send_timeout_s: float = 0.0,
    ) -> None:
        super().__init__()
        self.router = router
        self.wheel = wheel
        self.now = now
        self.bodies = bodies
        self.attempts_max = attempts_max
        self.on_error = on_error
        self.send_timeout_s = send_timeout_s  # for which a client may take nothing of an answer; 0.0: no limit
        self.sampler: Sampler | None = None  # decides which requests are traced, if any are
        self.is_pending: bool = False  # a source has yet to list its revisions
        self.filters: FilterChain | None = None  # all requests meet them, whatever their revision
        self.answers: AnswerStore | None = None  # that are kept for clients who do not wait …
        self.open_status: Callable[[RequestHead, ClientStream], Exchange] | None = None  # … and who asks for them

    def open_request(self, head: RequestHead, client: ClientStream) -> Exchange:
        """A request has arrived, for a revision or for an answer that is kept; `begin` it when its turn comes."""
        answers, opens = self.answers, self.open_status
        if answers is not None and answers.is_open and head.target.startswith(ANSWERS_PATH) and opens is not None:
            return opens(head, client)
        return self.open(head, client)

    def open(self, head: RequestHead, client: ClientStream) -> ProxiedExchange:
        """The same of a request for a revision."""
        exchange = ProxiedExchange(self, head, client)
        if self.sampler is not None:
            exchange.trace = self.sampler.begin(head)
            if exchange.trace is not None:
                exchange.trace.edit(exchange.edit())
        return exchange


class ProxiedExchange(RequestRecord):
    """One request, between its client and a pod."""

    def __init__(self, proxy: Proxy, head: RequestHead, client: ClientStream) -> None:
        super().__init__(head, proxy.now())
        self._proxy = proxy
        self._client = client
        self._body: RequestBody | None = RequestBody(proxy.bodies, client) if head.has_body else None
        self._selection: Selection | None = None  # where more than the host decides on the revision
        # the answer, where its client is slow
        self._response_head: ResponseHead | None = None
        self._response: BodyBuffer | None = None  # what the pod has sent and the client cannot take yet
        self._response_trailers: Headers = []
        self._client_full: bool = False
        self._taken_bytes: int = 0  # by the client, when that was last looked at
        self._gathering: bool = False  # counted as such
        self._goes_on: bool = False  # in another turn, with what the buffers hold
        self._gathered_max: int = 0  # bytes of its body that have been waited for
        self._is_handed_over: bool = False  # another exchange goes on with its request, and is counted
        # filters
        self._filters: FilterChain | None = None  # those that its revision had when it was routed
        self._hook: i64 = _NO_HOOK  # the kind of hook that is being called
        self._is_held: bool = False  # by the filter before that place
        self._holds: int = 0  # how often it was held
        self._filter_at: i64 = 0  # the place of the one whose turn it is, or will be when it goes on
        self._wrapper: ClientWrapper | None = None  # the outermost between it and its client
        self._watchers: list[BodyWatcher] | None = None
        self._is_revoked: bool = False  # the lease is to be released at once
        self._client_ended: bool = False  # its direction of a tunnel
        self._upload_failed: bool = False  # the pod closed while its request was being written

    def _enter(self, phase: i64) -> bool:
        """Go on to `phase`. False: there is no such step from here, an error for which the request has ended."""
        if is_legal(self.phase, phase):
            self.phase = phase
            return True
        self._proxy.on_error(illegal(self.phase, phase))
        self._fail(Reason.INTERNAL, "")
        return False

    # --- to a pod ---

    def endpoints(self) -> Endpoints | None:
        return self._client.endpoints()

    def begin(self) -> None:
        if self.over:
            return
        self.read_s = 0.0 if self.is_detached else self.arrived_s
        try:
            if self.is_detached:
                self._go_on_detached()
            else:
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
        chain = proxy.filters
        if chain is not None:
            for one in chain.on_arrival:
                one.on_arrival(self)
                if self.over:
                    return
        key = self.destination
        if key is not None:
            throttler = proxy.router.named(key) if key else proxy.router.by_host(self.head.authority)
            if key and throttler is None:
                self._unrouted(Reason.NO_ROUTE, self.head.authority.decode("latin-1"))
                return
        else:
            throttler = proxy.router.resolve(self.head)
            # A client's: no pod is to take them for ours, or for Knative's.
            if self.head.has_internal and not proxy.router.trusts_revision_headers:
                self.edit().remove(internal_names(self.head))
        if throttler is None:
            self._route_by_rules()
        else:
            self._routed(throttler)

    def _route_by_rules(self) -> None:
        rules = self._proxy.router.rules_of(sought(self.head))
        if rules is None:
            self._unrouted(Reason.NO_ROUTE, self.head.authority.decode("latin-1"))
            return
        selection = self._selection = Selection(rules, self.head, self.edit(), self._proxy.bodies.held_body_bytes)
        answer = selection.list_of_models()
        if answer is not None:
            self.respond(answer[0], answer[1])
            return
        body = None if self.upgrade else self._body
        if not selection.begin(body, self.request_done):
            self._selected(selection)
        elif self._enter(SCANNING):
            self._proxy.wheel.arm(self, self._time() + SCAN_TIMEOUT_S)
            self._client.ask_for_body()

    def _selected(self, selection: Selection) -> None:
        """All is known that the choice depends on."""
        throttler = selection.revision(self._client)
        if throttler is None:
            self._unrouted(selection.reason, selection.detail)
        elif not selection.rewrite(throttler, self._body):
            self._fail(Reason.HELD_BYTES_FULL, "")
        else:
            self._routed(throttler)

    def _unrouted(self, reason: Reason, detail: str) -> None:
        """Refuse a request that no revision serves; not for good while a source has yet to list its revisions."""
        self._proxy.unrouted_total += 1
        if reason is Reason.NO_ROUTE and self._proxy.is_pending:
            reason = Reason.SOURCES_PENDING
        self._fail(reason, detail)

    def _scanned(self, selection: Selection) -> None:
        """Enough of the body is here, in a turn of its own."""
        self._proxy.wheel.cancel(self)
        self.asked_for_slot_s = self._proxy.now()
        rules = self._proxy.router.rules_of(sought(self.head))
        if rules is None:  # its last revision has gone meanwhile
            self._unrouted(Reason.NO_ROUTE, self.head.authority.decode("latin-1"))
            return
        selection.renew(rules)
        try:
            self._selected(selection)
        except Exception as error:  # as in `begin`
            self._proxy.on_error(error)
            self._fail(Reason.INTERNAL, "")

    def _routed(self, throttler: RevisionThrottler) -> None:
        """Go on to the request's revision: its first one, or another in the place of a refusal."""
        filters = throttler.filters
        chain = self._filters = filters if isinstance(filters, FilterChain) else None
        self.throttler = throttler
        self.is_quiet = False
        if chain is not None:
            self._hook = _EDITS
            try:
                for one in chain.on_routed:
                    one.on_routed(self)
            except Exception:
                self.throttler = None  # it has not been counted there
                raise
            finally:
                self._hook = _NO_HOOK
        self._proxy.count_routed(self, throttler)
        if self.fallbacks == 0 and self.head.takes_trailers:
            self._look_at_grpc()
        self._ask_for_slot(throttler)

    def _look_at_grpc(self) -> None:
        """Where it is a gRPC request: its client's deadline bounds the wait."""
        if grpc.is_grpc(self.head):
            self.is_grpc = True
            timeout_s = grpc.timeout_of(self.head)
            if timeout_s is not None:
                self.own_deadline_s = self.grpc_timeout_s = timeout_s

    def _grpc_failed(self, reason: Reason) -> None:
        """It ends without a status of its pod's, perhaps before it was looked at."""
        if self.is_grpc or grpc.is_grpc(self.head):
            self.grpc_status = int(reason.grpc_status)

    def _ask_for_slot(self, throttler: RevisionThrottler) -> None:
        if self.head.upgrade and not self._takes_upgrade(throttler):
            self._fail(Reason.UPGRADE_NOT_SUPPORTED, "")
            return
        body = self._body
        if body is not None:
            if self.fallbacks == 0 and not body.assign(throttler.held):
                self._fail(Reason.HELD_BYTES_FULL, body.refused_for)
                return
            if self.fallbacks != 0 and not body.move(throttler.held):
                self._fail(Reason.HELD_BYTES_FULL, "for this revision")
                return
        self._find_key(throttler)
        self._meet_filters(throttler, 0)

    def _meet_filters(self, throttler: RevisionThrottler, at: i64) -> None:
        """Let the filters act on the request, from the one at `at` on; then ask for a slot."""
        chain = self._filters
        if chain is not None and not self._meets_all(chain.on_request, at):
            return
        self._filter_at = _BEHIND_ALL
        body = self._body
        if body is not None and not self.request_done and self._gathers(throttler, body):
            return
        self._acquire(throttler)

    def _meets_all(self, filters: tuple[Filter, ...], at: i64) -> bool:
        """Return False if one of them has ended the request, holds it, or waits for its body.

        One that has held it and let it go on at once has not: the next one is met in another turn all the same.
        """
        fallbacks, holds = self.fallbacks, self._holds
        while at < len(filters):
            self._filter_at = at
            self._hook = _ON_REQUEST
            try:
                filters[at].on_request(self)
            finally:
                self._hook = _NO_HOOK
            if self.over or self._holds != holds or self._gathering or self.fallbacks != fallbacks:
                return False
            at += 1
        return True

    def _takes_upgrade(self, throttler: RevisionThrottler) -> bool:
        """Offer its pods the protocols that the revision takes; False: the client could not go on without one."""
        accepted = accepted_upgrades(self.head, throttler.spec)
        if accepted is None:
            return False
        if accepted != self.upgrade:
            self.upgrade = accepted
            self.edit().set_upgrade(accepted)
        return True

    def _find_key(self, throttler: RevisionThrottler) -> None:
        affinity = throttler.affinity
        if affinity is not None:
            self.pick_key = affinity.key_of(self.head, self._client.client_ip() if affinity.on_client_ip else "")

    def _acquire(self, throttler: RevisionThrottler) -> None:
        lease = throttler.try_acquire(self, self.asked_for_slot_s)
        if lease is not None:
            self.granted(lease)
            return
        refusal = throttler.queue.enqueue(self)
        if refusal is not None:
            self._fail(refusal, throttler.refusal_detail())
        elif self.phase == WAITING or self._enter(WAITING):  # for another revision than before
            self._wait(throttler)

    # --- what filters may do ---

    def client(self) -> ClientStream:
        return self._client

    def is_client_full(self) -> bool:
        return self._client_full

    def respond(self, head: ResponseHead, body: bytes, is_success: bool = True, is_logged: bool = True) -> None:
        self._refuse_in_edits("respond")
        if self.over or self.phase >= ANSWERING:
            return
        client = self._client
        self.status = head.status
        self._end(is_success, is_logged)
        send_whole(client, self.head, head, body)

    def hold(self, timeout_s: float) -> int:
        if not 0.0 <= timeout_s <= HOLD_MAX_S:
            raise ValueError(f"a request is held for 0 to {HOLD_MAX_S:g} s, not {timeout_s}")
        self._refuse_outside("hold")
        if not self._is_held and not self.over and (self.phase == HELD or self._enter(HELD)):
            self._is_held = True
            self._holds += 1
            self._filter_at += 1
            until_s = self._time() + timeout_s
            if self.grpc_timeout_s > 0.0:
                until_s = min(until_s, self.arrived_s + self.grpc_timeout_s)
            self._proxy.wheel.arm(self, until_s)
        return self._holds

    def proceed(self, hold: int) -> None:
        if self._is_held and hold == self._holds:
            self._is_held = False
            self._proxy.wheel.cancel(self)
            self._go_on_soon()

    def gather(self, bytes_max: int) -> bool:
        self._refuse_outside("gather")
        if self._is_held:
            raise RuntimeError("`gather` cannot be called by a filter that holds the request")
        throttler = self.throttler
        body = self._body
        if body is None or throttler is None or self.request_done or bytes_max <= self._gathered_max:
            return True
        return not self._waits_for_body(throttler, body, bytes_max)

    def body(self) -> bytes | None:
        body = self._body
        return b"" if body is None else body.in_memory()

    def wrap_client(self, wrapper: ClientWrapper) -> None:
        if not self.over:
            self._client = self._wrapper = GuardedWrapper(wrapper, self._broken)

    def watch(self, watcher: BodyWatcher) -> None:
        if self.over:
            return
        if self._watchers is None:
            self._watchers = []
        self._watchers.append(watcher)

    def _refuse_outside(self, call: str) -> None:
        if self._hook != _ON_REQUEST:
            raise RuntimeError(f"`{call}` can be called in `on_request` only")

    def _refuse_in_edits(self, call: str) -> None:
        if self._hook == _EDITS:
            raise RuntimeError(f"`{call}` cannot be called in `on_routed`, `on_attempt` and `on_response`")

    def _broken(self, error: Exception) -> None:
        """End the request, in another turn, since an object of a filter has raised `error`."""
        self._proxy.on_error(error)
        self._proxy.bodies.later(self._end_broken)

    def _end_broken(self) -> None:
        self._fail(Reason.INTERNAL, "")

    def _tell_watchers(self, watchers: list[BodyWatcher], data: bytes, is_of_pod: bool) -> None:
        try:
            for watcher in watchers:
                if is_of_pod:
                    watcher.pod_sent(data)
                else:
                    watcher.client_sent(data)
        except Exception as error:
            self._stop_watchers()
            self._broken(error)

    def detach(self, client: ClientStream) -> RequestRecord:
        other = ProxiedExchange(self._proxy, self.head, client)
        other.is_detached = True
        other.throttler = self.throttler
        other.arrived_s = self.arrived_s
        other.pick_key = self.pick_key
        other.request_bytes = self.request_bytes
        other.request_done = True
        other.trace, self.trace = self.trace, None
        other.upgrade = self.upgrade
        other._edits = self._edits
        other.fallbacks = self.fallbacks
        other.first_throttler = self.first_throttler
        other._gathered_max = self._gathered_max
        other._filters = self._filters
        other._filter_at = self._filter_at + 1
        other._body = body = self._body
        if body is not None:
            body.hand_over(client)
            self._body = None
        self._is_handed_over = True
        return other

    def _go_on_detached(self) -> None:
        throttler = self.throttler
        assert throttler is not None
        self.asked_for_slot_s = self._proxy.now()
        self._proxy.active += 1
        if self._enter(ROUTING):
            self._meet_filters(throttler, self._filter_at)

    def fall_back(self, key: str, reason: Reason) -> bool:
        self._refuse_in_edits("fall_back")
        first = self.throttler
        second = self._proxy.router.named(key)
        if first is None or second is None or second is first or not may_fall_back(self, self._body, reason):
            return False
        self._leave(first)
        self._proxy.count_left(self, first, second.key, self._proxy.now())
        forget_revision(self)
        self.fallbacks += 1
        if self.first_throttler is None:
            self.first_throttler = first
        if self.phase <= ROUTING or self.phase == WAITING or self._enter(WAITING):
            self.asked_for_slot_s = self._proxy.now()
            try:
                self._routed(second)
            except Exception as error:  # as in `begin`
                self._proxy.on_error(error)
                self._fail(Reason.INTERNAL, "")
        return True

    # --- in line, and to a pod ---

    def _wait(self, throttler: RevisionThrottler) -> None:
        if self.queued_s == 0.0:
            self.queued_s = self._time()
        if self.start is None:
            self.start = throttler.queue.start
        self._proxy.wheel.arm(self, self.asked_for_slot_s + self.paused_s + throttler.wait_limit_s(self))

    def granted(self, lease: Lease) -> None:
        throttler = self.throttler
        assert throttler is not None
        if not self._enter(CONNECTING):
            throttler.release(lease, 0.0, False)
            return
        pool = lease.attachment
        assert isinstance(pool, PodPool)
        pool = pool.in_use()
        self.lease = self.last_lease = lease
        self.granted_s = lease.granted_s
        if pool.is_closed():  # the pod has left since
            self.connect_failed(Reason.CONNECT_FAILED)
            return
        pod = pool.checkout(self, idle_limit_s(self, self._body), self.granted_s)
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
        self.pod_protocol = pod.protocol()
        self.connected_s = self._time()
        throttler = self.throttler
        assert throttler is not None
        self.progress_s = self.arrived_s if throttler.spec.times_from_arrival else self.connected_s
        try:
            head = self._head_for_pod(throttler)
        except Exception as error:  # of a filter
            self._proxy.on_error(error)
            self._fail(Reason.INTERNAL, "")
            return
        body = self._body
        if body is None or not head.has_body:  # what a client sends ahead of a tunnel is no body
            pod.send_request(head, _NO_BODY)
        elif body.start(pod, head, is_idempotent(self)):
            self._go_on_soon()
        self._arm(throttler)

    def _head_for_pod(self, throttler: RevisionThrottler) -> RequestHead:
        """Return the head that this attempt sends."""
        edits = self._edits
        waited_s = self.connected_s - self.arrived_s
        is_late = self.grpc_timeout_s > 0.0 and waited_s >= TOLD_LATE_S
        chain = self._filters
        if is_late or (chain is not None and chain.on_attempt):
            edits = HeadEdits() if edits is None else edits.copy()
            if is_late:
                grpc.edit_timeout(edits, self.grpc_timeout_s - waited_s)
            if chain is not None:
                self._hook = _EDITS
                try:
                    for one in chain.on_attempt:
                        one.on_attempt(self, edits)
                finally:
                    self._hook = _NO_HOOK
        return self.head if edits is None else edits.apply(self.head)

    def connect_failed(self, reason: Reason) -> None:
        lease = self.lease
        if lease is not None:
            self._fail(reason, lease.address, NOT_SENT)

    def _try_again(self, throttler: RevisionThrottler, lease: Lease, reason: Reason) -> None:
        if not self._enter(WAITING):
            return
        self.attempts += 1
        self.lease = None
        self.granted_s = 0.0
        if self._body is not None:
            self._body.pod_failed()
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
        body = self._body
        pod = self.pod
        is_early = bool(self.upgrade) and self.phase < ANSWERING  # the tunnel does not stand yet
        if body is None and is_early:
            body = self._body = RequestBody(self._proxy.bodies, self._client)
            if self.throttler is not None:
                body.assign(self.throttler.held)  # nothing is held yet: the budget has room for that
        if body is None or self.phase == DELIVERING:  # after an early answer nothing more of the request is wanted
            return
        if self.phase >= TUNNEL:
            assert pod is not None
            self.progress_s = self._time()
            if self._watchers is not None:
                self._tell_watchers(self._watchers, data, False)
            pod.send_body(data)
        elif pod is not None and not is_early:
            body.send(pod, data)
        elif not body.hold(data):
            self._no_place_for(data, body)
        elif self.phase == SCANNING:
            if self._selection is not None and self._selection.feed(data):
                self._go_on_soon()
        elif self.phase == GATHERING and body.is_gathered():
            self._go_on_soon()

    def _no_place_for(self, data: bytes, body: RequestBody) -> None:
        throttler = self.throttler
        if self.phase == GATHERING and throttler is not None:
            self._gathered(throttler)  # a pod may have room, and take it at once
            pod = self.pod
            if pod is not None:
                body.send(pod, data)
                return
        self._fail(Reason.HELD_BYTES_FULL, body.refused_for)

    def request_end(self, trailers: Headers) -> None:
        if self.over:
            return
        self.request_done = True
        body = self._body
        pod = self.pod
        if self.phase >= TUNNEL:
            assert pod is not None
            self._client_ended = True
            if self._tunnel_goes_on(after_end_of_client(self.phase), pod):
                pod.send_end(trailers)
        elif body is not None and self.phase != DELIVERING and not self.upgrade:
            body.end(trailers)
            if self._selection is not None:
                self._selection.finish()
            if self.phase == GATHERING or self.phase == SCANNING:
                self._go_on_soon()

    def request_failed(self, reason: Reason, detail: str) -> None:
        self._fail(reason, detail)

    def pod_blocked(self) -> None:
        if not self.over and self._body is not None:
            self._body.pod_blocked()

    def pod_drained(self) -> None:
        if not self.over and self._body is not None and self._body.pod_drained():
            self._go_on_soon()

    # --- what the buffers hold ---

    def _gathers(self, throttler: RevisionThrottler, body: RequestBody) -> bool:
        """Return True if the rest of the body is waited for, up to a bound, before a slot is asked for."""
        bytes_max = throttler.spec.buffer_request_bytes
        if bytes_max <= self._gathered_max or throttler.queue.failure is not None:
            return False
        if self.phase == WAITING or self.upgrade or is_request_streamed(self.head):
            return False
        return self._waits_for_body(throttler, body, bytes_max) or self.over

    def _waits_for_body(self, throttler: RevisionThrottler, body: RequestBody, bytes_max: int) -> bool:
        body.gather(bytes_max, throttler.spec.buffer_file_bytes)
        self._gathered_max = bytes_max
        if body.is_gathered() or not (self.phase == GATHERING or self._enter(GATHERING)):
            return False
        self._gathering = True
        throttler.body_expected()
        self._arm(throttler)
        return True

    def _gathered(self, throttler: RevisionThrottler) -> None:
        self._gathering = False
        throttler.gathering -= 1
        self._go_on_to_filters(throttler)

    def _go_on_to_filters(self, throttler: RevisionThrottler) -> None:
        self.asked_for_slot_s = self._proxy.now()
        try:
            self._meet_filters(throttler, self._filter_at)
        except Exception as error:  # as in `begin`
            self._proxy.on_error(error)
            self._fail(Reason.INTERNAL, "")

    def _go_on_soon(self) -> None:
        if not self._goes_on:
            self._goes_on = True
            self._proxy.bodies.later(self._go_on)

    def _go_on(self) -> None:
        """The turn has come: a share of what the buffers hold is sent on."""
        self._goes_on = False
        if self.over:
            return
        selection = self._selection
        if self.phase == SCANNING and selection is not None:
            self._scanned(selection)
            return
        throttler = self.throttler
        assert throttler is not None
        if self.phase == GATHERING:
            self._gathered(throttler)  # it was decided then: by now a budget may have room, but the client is paused
        elif self.phase == HELD:
            if not self._is_held:
                self._go_on_to_filters(throttler)
        else:
            self._send_on(True)

    def _send_on(self, feeds: bool) -> None:
        """To the client a share of what is kept; where it `feeds`, one to the pod, too."""
        body = self._body
        try:
            more = feeds and body is not None and body.feed()
            more = self._deliver() or more
        except OSError as error:  # of a temporary file
            self._proxy.on_error(error)
            self._fail(Reason.INTERNAL, "")
            return
        if more and not self.over:
            self._go_on_soon()

    def _keeps_response(self, throttler: RevisionThrottler) -> bool:
        """Whether the pod may go on answering while the client takes nothing: what it sends has a place."""
        buffer = self._response
        if buffer is not None:
            return buffer.has_room()
        spec = throttler.spec
        head = self._response_head
        if spec.buffer_response_bytes == 0 or head is None or is_response_streamed(head):
            return False
        bodies = self._proxy.bodies
        buffer = BodyBuffer(
            spec.buffer_response_bytes, spec.buffer_file_bytes, bodies.held, throttler.held, bodies.files
        )
        if not buffer.has_room():
            return False
        self._response = buffer
        return True

    def _deliver(self) -> bool:
        """Send the client a share of what is kept of the answer; True: there is more, and the client takes it.

        Raises OSError where a temporary file cannot be read.
        """
        buffer = self._response
        if buffer is None or self._client_full:
            return False
        client = self._client
        if buffer.size > 0:
            client.send_body(buffer.take(SHARE_BYTES))
            client.flush()  # the client may be full again by now: then what comes next is kept, too
        if buffer.size == 0 and (self.phase == DELIVERING or not self._client_full):
            buffer.drop()
            self._response = None
            if self.phase == DELIVERING:
                self._delivered(client)
                return False
        if self.is_client_slow:
            self._resume_pod()
        return self._response is not None and not self._client_full

    def _delivered(self, client: ClientStream) -> None:
        """The client has been sent all that the pod had sent: the whole answer, or what there is of it."""
        trailers = self._response_trailers
        is_whole = self.reason is None
        self._end(is_whole, True)
        if is_whole:
            client.send_end(trailers)
        else:
            client.abort()

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
            if self._client.protocol() == "HTTP/2" and not is_accepted(self.head, head):
                self._fail(Reason.BAD_RESPONSE, "the pod's Sec-WebSocket-Accept does not fit the key (RFC 6455 4.1)")
                return
            phase = tunnel_phase(self._client, pod)
        self.first_byte_s = self.progress_s = self._time()
        chain = self._filters
        if chain is not None and chain.on_response and not self._edit_response(chain, head):
            return
        if not self._enter(phase):
            return
        self.status = head.status
        self._response_head = head
        body = self._body
        if body is not None and phase < TUNNEL:
            body.answered()
        throttler = self.throttler
        assert throttler is not None
        lease = self.lease
        if lease is not None and lease.trial:
            throttler.trial_answered(lease)
        self._proxy.count_answer(throttler, head.status)
        if self.fallbacks != 0:
            head.headers = head.headers.with_line(FALLBACK_HEADER, throttler.key.encode())
        if phase >= TUNNEL:
            self.request_done = False  # the client's stream begins now
            if body is None:
                self._body = body = RequestBody(self._proxy.bodies, self._client)
            if self.pod is not None:
                body.tunnels(self.pod)
            self._proxy.count_tunnel(throttler)
            self._arm(throttler)
        if self._client_full and (phase >= TUNNEL or not self._keeps_response(throttler)):
            self._pause_pod()
        self._client.send_head(head)

    def _edit_response(self, chain: FilterChain, head: ResponseHead) -> bool:
        """Let the filters act on the head of the response; False: one of them has ended the request."""
        self._hook = _EDITS
        try:
            for one in chain.on_response:
                one.on_response(self, head)
        except Exception as error:
            self._hook = _NO_HOOK
            self._proxy.on_error(error)
            self._fail(Reason.INTERNAL, "")
        self._hook = _NO_HOOK
        return not self.over

    def response_body(self, data: bytes) -> None:
        if self.over:
            return
        self.response_bytes += len(data)
        if self._watchers is not None:
            self._tell_watchers(self._watchers, data, True)
        buffer = self._response
        if buffer is None:
            self._client.send_body(data)
            return
        buffer.append(data)
        if not buffer.has_room():
            self._pause_pod()

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
            if self.is_grpc:
                self.grpc_status = grpc.status_said(self._response_head, trailers)
            if not self.request_done and pod is not None:
                pod.abort()  # an early answer: the rest of the request has no reader
            if self._response is not None:
                self._response_trailers = trailers
                self._keep_rest(self._response, True)
                return
            self._end(True, True)
        client.send_end(trailers)

    def _keep_rest(self, buffer: BodyBuffer, succeeded: bool) -> None:
        """The pod has finished, or failed: its slot is free, and the client takes the rest as it can."""
        throttler = self.throttler
        lease = self.lease
        pod = self.pod
        assert throttler is not None
        if not self._enter(DELIVERING):
            return
        throttler.delivering += 1
        buffer.ended()
        if self._body is not None:
            self._body.discard()
        self._arm(throttler)
        self.pod = None
        if lease is not None:
            self._give_back(throttler, lease, pod, self._time() - self.granted_s, succeeded)
        elif pod is not None:
            pod.abort()

    def client_blocked(self) -> None:
        if self.over:
            return
        throttler = self.throttler
        self._client_full = True  # perhaps with the answers before this one: `response_head` sees to it then
        now_s = self._proxy.now()
        if self.phase >= ANSWERING and not self._proxy.bodies.stalled.begin(self, self._client.unsent_bytes(), now_s):
            return
        if self.phase >= TUNNEL:
            self._pause_pod()
            return
        self.blocked_s = now_s
        self._taken_bytes = self._client.taken_bytes()
        if throttler is None:  # it has no revision yet, and has another time limit
            return
        if self.pod is not None and not self._keeps_response(throttler):
            self._pause_pod()
        if self.phase >= CONNECTING or self.phase == GATHERING:  # in line it has another time limit
            self._arm(throttler)

    def client_drained(self) -> None:
        if self.over:
            return
        self._client_full = False
        self.blocked_s = 0.0
        if self.stalled_bytes > 0:
            self._proxy.bodies.stalled.end(self)
        if self._response is not None:
            self._send_on(False)
        elif self.is_client_slow:
            self._resume_pod()

    def _pause_pod(self) -> None:
        if self.pod is not None and not self.is_client_slow:
            self.is_client_slow = True
            self.pod.pause_response()

    def _resume_pod(self) -> None:
        """The client takes more, or there is room again: so does the pod's answer."""
        if self.pod is None or (self._response is not None and not self._response.has_room()):
            return
        self.is_client_slow = False
        if self.phase < TUNNEL and self.throttler is not None:
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
        pod, self.pod = self.pod, None
        body = self._body
        self._upload_failed = body is not None and pod is not None and (pod.was_reset or not body.is_sent())
        if self.phase == POD_ENDED:
            client = self._client  # the pod had sent everything: the client is to get it
            self._end(True, True)
            client.send_end([])
            return
        self._fail(reason, detail, UNTOUCHED if untouched else TOUCHED)

    def pod_refused(self, reason: Reason, detail: str) -> None:
        if self.over:
            return
        self.pod = None
        self._fail(reason, detail, REFUSED)

    def client_gone(self) -> None:
        if self.over:
            return
        if self.throttler is not None:
            self.throttler.counters.client_gone_total += 1
        self.reason = Reason.CLIENT_GONE
        if self.head.takes_trailers:
            self._grpc_failed(Reason.CLIENT_GONE)
        self._end(False, True)

    def refuse_unsent(self) -> bool:
        if self.phase not in (SCANNING, GATHERING, HELD):
            return False
        self._fail(Reason.DRAINING, "")
        return True

    def refused(self, reason: Reason, detail: str) -> None:
        self._fail(reason, detail)

    def revoked(self, reason: Reason, detail: str) -> None:
        self._is_revoked = True
        self._fail(reason, detail)

    def expired(self, now_s: float) -> None:
        if self.over:
            return
        throttler = self.throttler
        if self.phase == SCANNING or self.phase == HELD:
            self._fail(Reason.REQUEST_TIMEOUT if self.phase == SCANNING else Reason.FILTER_TIMEOUT, "")
            return
        assert throttler is not None
        if self.in_line:
            throttler.overdue(self)
            return
        if self.blocked_s > 0.0:
            self._see_what_client_took(now_s)
        lease = self.lease
        if lease is not None and trial_takes_long(lease, now_s):
            throttler.trial_takes_long(lease)
        reason = limit_reached(self, throttler.spec, self._proxy.send_timeout_s, now_s)
        if reason is None:
            self._arm(throttler)
        else:
            self._fail(reason, "")

    def loop_paused(self, pause_s: float) -> None:
        self.paused_s += pause_s
        if self.progress_s > 0.0:
            self.progress_s += pause_s
        if self.blocked_s > 0.0:
            self.blocked_s += pause_s

    def shed(self) -> None:
        self.is_shed = True
        self._fail(Reason.SEND_TIMEOUT, "")

    def _see_what_client_took(self, now_s: float) -> None:
        taken_bytes = self._client.taken_bytes()
        if taken_bytes > self._taken_bytes:
            self.blocked_s = now_s
        self._taken_bytes = taken_bytes

    def _arm(self, throttler: RevisionThrottler) -> None:
        """Let the wheel look at the exchange when the next of its time limits could be reached."""
        self._proxy.wheel.arm(self, next_limit_s(self, throttler.spec, self._proxy.send_timeout_s))

    # --- another revision in the place of a refusal ---

    def _leave(self, throttler: RevisionThrottler) -> None:
        """Give back what it has of its revision."""
        if self._is_held:
            self._is_held = False
            self._holds += 1  # whoever holds it cannot let it go on any more
        self._gathered_max = 0
        self._proxy.wheel.cancel(self)
        pod, lease = self.pod, self.lease
        if self.in_line:
            throttler.cancel(self)
        if self._gathering:
            self._gathering = False
            throttler.gathering -= 1
        if self._body is not None:
            self._body.pod_failed()
        self.pod = None
        if lease is not None:
            if self.phase == CONNECTING:
                _forget(lease, self)
            self._give_back(throttler, lease, pod, self._proxy.now() - self.granted_s, False)
        elif pod is not None:
            pod.abort()

    def _give_back(
        self, throttler: RevisionThrottler, lease: Lease, pod: PodStream | None, latency_s: float, succeeded: bool
    ) -> None:
        """Release the lease; if `pod` still works on the request, when it has stopped (cancelled.py).

        A tunnel is cut, so that the pod does not take a part for the whole. If the client had ended its direction, the
        pod still receives its last bytes.
        """
        self.lease = None
        if pod is not None:
            is_tunnel = self.status == 101
            outlives = self._client_ended if is_tunnel else outlives_request(throttler.spec)
            if outlives and not self._is_revoked:
                proxy = self._proxy
                cancelled = CancelledRequest(self.head, throttler, lease, latency_s, proxy.wheel)
                cancelled.begin_at(pod, proxy.now(), is_tunnel)
                return
            pod.abort()
        throttler.release(lease, latency_s, succeeded)

    def _fail(self, reason: Reason, detail: str, evidence: i64 = TOUCHED) -> None:
        """Act on a failure of the request as the retry policy decides."""
        if self.over:
            return
        throttler = self.throttler
        lease = self.lease
        decision = decide(self, self._body, reason, evidence, self._proxy.attempts_max)
        if throttler is None:
            self._proxy.count_refused(reason)
        elif decision == AGAIN and lease is not None:
            if evidence == NOT_SENT:
                throttler.pod_failed(lease, reason)
            self._try_again(throttler, lease, reason)
            return
        else:
            self._proxy.count_failed(throttler, reason)
            if lease is not None and self._is_about_pod(reason, throttler):
                throttler.pod_failed(lease, reason)
        self._refuse(throttler, reason, detail, decision == FALL_BACK)

    def _is_about_pod(self, reason: Reason, throttler: RevisionThrottler) -> bool:
        """True if the failure may count against the pod.

        A server that answers and closes before it has read the request body makes the write fail, which is no fault.
        """
        if reason is Reason.POD_CLOSED and self._upload_failed:
            return False
        return pod_had_its_time(self, reason, throttler.spec, self._time())

    def _refuse(self, throttler: RevisionThrottler | None, reason: Reason, detail: str, may_fall_back: bool) -> None:
        """End the request: its client is sent the reason, or is cut off if the response has begun."""
        client = self._client
        if self.phase >= ANSWERING:
            self._note_end(reason)
            if self.phase == ANSWERING and self._response is not None and reason not in _ENDS_DELIVERY:
                self._keep_rest(self._response, False)  # the client gets what the pod sent, and is cut off after it
                return
            self._end(False, True)
            client.abort()
            return
        retry_after_s = 0
        if throttler is None:
            if reason is Reason.SOURCES_PENDING or reason is Reason.DRAINING:
                retry_after_s = PENDING_RETRY_AFTER_S
        elif reason.status == 503:
            retry_after_s = throttler.retry_after_s()
        self._note_end(reason)
        failure = Failure(reason, detail, retry_after_s, may_fall_back)
        chain = self._chain()
        if chain is not None and self._is_taken_over(chain, failure):
            return
        self.status = reason.status
        self._end(False, True)
        waiting = throttler.waiting() if throttler is not None and reason in _LINE_IS_LONG else -1
        send_refusal(client, self.head, failure, waiting)

    def _note_end(self, reason: Reason) -> None:
        self.reason = reason
        if self.head.takes_trailers:
            self._grpc_failed(reason)

    def _is_taken_over(self, chain: FilterChain, failure: Failure) -> bool:
        """Return True if a filter has responded in the place of a refusal, or another revision takes the request."""
        fallbacks = self.fallbacks
        for one in chain.on_failure:
            try:
                one.on_failure(self, failure)
                failure.check()
            except Exception as error:  # the refusal stands
                self._proxy.on_error(error)
            if self.over or self.fallbacks != fallbacks:
                return True
        return False

    def _end(self, succeeded: bool, is_request: bool) -> None:
        """Give back all that the exchange holds. `is_request` False: a probe, which no log or statistic shows."""
        phase = self.phase
        if not self._enter(OVER):
            return
        self.over = True
        client = self._client
        self._client = _NOBODY  # the stream refers to the exchange: no cycle is left for the collector
        self._selection = None
        if self._wrapper is not None or self._watchers is not None or self.stalled_bytes > 0:
            self._stop_companions()
        proxy = self._proxy
        proxy.count_end(phase)
        self.done_s = self._time()
        proxy.wheel.cancel(self)
        if self._body is not None:
            self._body.stop()
        if self._response is not None:
            self._response.drop()
            self._response = None
        pod, self.pod = self.pod, None
        lease = self.lease
        throttler = self.throttler
        if pod is not None and (lease is None or throttler is None):
            pod.abort()
        if throttler is not None:
            if self.in_line:
                throttler.cancel(self)
            elif self._gathering:
                throttler.gathering -= 1
            elif phase == DELIVERING:
                throttler.delivering -= 1
            if lease is not None:
                if phase == CONNECTING:
                    _forget(lease, self)
                # The duration of a tunnel says nothing about the speed of its pod.
                latency_s = 0.0 if phase >= TUNNEL else self.done_s - self.granted_s
                self._give_back(throttler, lease, pod, latency_s, succeeded)
            if not self._is_handed_over:
                proxy.add_to_traffic(self, throttler)
        if is_request:
            proxy.notify_observers(self, client)
            self._notify_filters()

    def _stop_companions(self) -> None:
        self._proxy.bodies.stalled.end(self)
        wrapper, self._wrapper = self._wrapper, None
        if wrapper is not None:
            wrapper.stop()
        self._stop_watchers()

    def _stop_watchers(self) -> None:
        watchers, self._watchers = self._watchers, None
        if watchers is None:
            return
        for watcher in watchers:
            try:
                watcher.stop()
            except Exception as error:  # the others are stopped all the same
                self._proxy.on_error(error)

    def _chain(self) -> FilterChain | None:
        """Return the filters that meet it now: those of its revision, or of all requests while it has none."""
        return self._proxy.filters if self._filters is None and self.throttler is None else self._filters

    def _notify_filters(self) -> None:
        chain = self._chain()
        if chain is None:
            return
        for one in chain.on_end:
            try:
                one.on_end(self)
            except Exception as error:  # the others are notified all the same
                self._proxy.on_error(error)

    def leave_exemplars(self, trace_id: str, time_s: float) -> None:
        self._proxy.leave_exemplars(self, trace_id, time_s)


def _forget(lease: Lease, exchange: ProxiedExchange) -> None:
    """The exchange waits no longer for a connection to the pod of `lease`."""
    pool = lease.attachment
    assert isinstance(pool, PodPool)
    pool.forget(exchange)
