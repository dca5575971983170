"""External authorisation (`forward_auth`): an HTTP server decides about each request before it may start a pod.

Rules
  1. The authorisation request is a GET with the fields of the client's request, without those about its body and its
     connection, and without conditions. X-Forwarded-Method, -Proto, -Host, -Uri and -For describe the client's request.
     Fields that other filters have removed, such as the key of a user, are not sent.
  2. A response with 2xx lets the request through. Any other response is sent to the client.
  3. Without a complete, valid response the request is refused (`auth_unavailable`), never let through.
  4. The listed fields of a client are removed from each request and its trailers, with all names that a server could
     take for them.
  5. Until the decision a request is `is_unverified`: it starts no pod and is no load.
  6. A revision has at most AUTH_REQUESTS_MAX authorisation requests under way in each worker, with connections of its
     own. The next WAITING_MAX wait for their turn, within the same timeout. A client that disconnects ends its
     authorisation request.
  7. Only 2xx is cached. The cache key is a hash, with a random key, of the whole authorisation request except for the
     id and the trace, so every field that the authoriser may decide by is the same.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import Callable
from typing import Final, final

from activator.codec.message import Fields, Headers, RequestHead, ResponseHead
from activator.config.specs import ForwardAuthSpec
from activator.data_plane.body_watcher import BodyWatcher
from activator.data_plane.exchange import WITHOUT_BODY, Exchange
from activator.data_plane.filters.filter import Failure, Filter
from activator.data_plane.headers.edits import FieldEdit, addition, edited_fields, removal, replacement, shape_of
from activator.data_plane.streams import PodStream, PodUser
from activator.data_plane.upstream.pool import PodPool
from activator.runtime.clock import NEVER, Deadline, Now, TimingWheel
from activator.runtime.reasons import GrpcStatus, Reason
from activator.runtime.units import KIB

AUTH_REQUESTS_MAX: Final = 64  # under way at the same time, of one revision in one worker
WAITING_MAX: Final = 1_000  # authorisation requests that wait for their turn
RESPONSE_BODY_BYTES_MAX: Final = 64 * KIB  # a longer one is no valid response
CACHED_MAX: Final = 1_000  # decisions of one revision in one worker
CACHED_BYTES_MAX: Final = 4 * KIB  # a decision with longer fields is not cached
POOL_IDLE_S: Final = 10.0  # without an authorisation request, until the pool of connections is closed
HOLD_SLACK_S: Final = 1.0  # after the timeout, until the hold of the request times out
RETRY_AFTER_S: Final = 1  # whole seconds, in a refusal without a decision

log = logging.getLogger("activator.upstream")

OpenPool = Callable[[ForwardAuthSpec], PodPool]

_NO_PIECES: Final[list[bytes]] = []
# Fields of the client that are not sent to the authoriser; a conditional request would get a conditional response.
_NOT_SENT: Final = removal(
    frozenset((
        b"host", b"content-type", b"content-encoding", b"content-language", b"content-location", b"content-range",
        b"expect", b"trailer", b"te", b"range", b"if-match", b"if-none-match", b"if-modified-since",
        b"if-unmodified-since", b"if-range",
    ))
)  # fmt: skip
# Fields of the authoriser's response that its client does not get: it has no trailers, and a reason of its own.
_NOT_PASSED_ON: Final = frozenset((b"activator-reason", b"trailer"))
# Fields that differ between requests about which the authoriser decides in the same way.
_NOT_IN_KEY: Final = frozenset((b"x-request-id", b"traceparent", b"tracestate"))


@final
class Decision:
    """The response of the authoriser: the listed fields if it is 2xx, else the whole response."""

    def __init__(self, head: ResponseHead, body: bytes, fields: Headers) -> None:
        self.head = head
        self.body = body
        self.fields = fields
        self.valid_until_s: float = 0.0  # in the cache


@final
class AuthRequest(PodUser):
    """The authorisation request for one client request, from its turn until the response, a failure, or its end."""

    def __init__(self, head: RequestHead, request: Exchange, owner: ForwardAuth, key: bytes) -> None:
        super().__init__(head)
        self.request = request
        self.fallbacks: int = int(request.fallbacks)  # identifies the revision that it is for
        self.hold_number: int = 0  # what `request.hold` returned, for `Exchange.proceed`; 0: not held yet
        self.key = key  # the cache key of the decision; empty: not cached
        self._owner = owner
        self._pool: PodPool | None = None  # set while it waits for a connection
        self._pod: PodStream | None = None
        self._is_over: bool = False
        self._is_repeated: bool = False  # it has been sent a second time
        self._head: ResponseHead | None = None
        self._body: list[bytes] = []
        self._body_bytes: int = 0

    def begin(self, pool: PodPool, idle_max_s: float, now_s: float) -> None:
        """Send the authorisation request on a connection of `pool`."""
        self._pool = pool
        pod = pool.checkout(self, idle_max_s, now_s)
        if pod is not None:
            self.connected(pod)

    def cancel(self) -> None:
        """End the authorisation request, because its request has ended."""
        self._end(None, "")

    def expired(self, now_s: float) -> None:
        self._end(None, "it did not answer in time")

    # --- PodUser ---

    def connected(self, pod: PodStream) -> None:
        self._pool = None
        self._pod = pod
        pod.send_request(self.head, _NO_PIECES)

    def connect_failed(self, reason: Reason) -> None:
        self._pool = None
        self._end(None, "the TLS handshake failed" if reason is Reason.TLS_FAILED else "it accepts no connection")

    def response_interim(self, head: ResponseHead) -> None:
        pass  # the final one follows; the parser bounds their number

    def response_head(self, head: ResponseHead) -> None:
        self._head = head
        if not 200 <= head.status <= 599:
            self._end(None, "its response is malformed")

    def response_body(self, data: bytes) -> None:
        self._body_bytes += len(data)
        if self._body_bytes > RESPONSE_BODY_BYTES_MAX:
            self._end(None, f"its response is longer than {RESPONSE_BODY_BYTES_MAX // KIB} KiB")
        elif not self._is_over:
            self._body.append(data)

    def response_flush(self) -> None:
        pass

    def response_end(self, trailers: Headers) -> None:
        head = self._head
        self._pod = None  # the connection may serve another authorisation request from now on
        if head is not None and not self._is_over:
            self._end(head, "")

    def pod_failed(self, reason: Reason, detail: str, untouched: bool) -> None:
        if self._is_over:
            return
        self._pod = None
        if untouched and not self._is_repeated:  # the connection had been idle, and the authoriser has closed it
            self._is_repeated = True
            self._owner.repeat(self)
            return
        is_cut = reason is Reason.POD_CLOSED
        self._end(None, "it closed the connection" if is_cut else "its response is malformed")

    def pod_refused(self, reason: Reason, detail: str) -> None:
        self.pod_failed(reason, detail, False)

    def pod_blocked(self) -> None:
        pass  # the timeout ends the authorisation request

    def pod_drained(self) -> None:
        pass

    # --- within ---

    def _end(self, head: ResponseHead | None, problem: str) -> None:
        """End the authorisation request with a response, with a problem, or with neither if its request has ended."""
        if self._is_over:
            return
        self._is_over = True
        pool, self._pool = self._pool, None
        pod, self._pod = self._pod, None
        if pool is not None:
            pool.stop_waiting(self)
        if pod is not None:
            pod.abort()
        self._owner.ended(self, head, b"".join(self._body), problem)


@final
class _CancelAtEnd(BodyWatcher):
    """The watcher of a client's request, whose end cancels the authorisation request."""

    def __init__(self, auth_request: AuthRequest) -> None:
        super().__init__()
        self._auth_request: AuthRequest | None = auth_request

    def stop(self) -> None:
        auth_request, self._auth_request = self._auth_request, None
        if auth_request is not None:
            auth_request.cancel()


@final
class _PoolEnd(Deadline):
    """The time at which the connections to an authoriser are closed, because it has had no request."""

    def __init__(self, owner: ForwardAuth) -> None:
        super().__init__()
        self._owner = owner

    def expired(self, now_s: float) -> None:
        self._owner.close_pool()


@final
class ForwardAuth(Filter):
    """The filter of one revision. `open_pool` returns a pool of connections to its authoriser."""

    def __init__(self, key: str, spec: ForwardAuthSpec, open_pool: OpenPool, wheel: TimingWheel, now: Now) -> None:
        self._revision = key
        self._spec = spec
        self._open_pool = open_pool
        self._wheel = wheel
        self._now = now
        self._authority: bytes = spec.authority.encode()
        self._target: bytes = spec.target.encode()
        # The fields that the authoriser sets: their lowered names, and the shapes of these names.
        self._names: frozenset[bytes] = frozenset([name.lower().encode() for name in spec.headers])
        self._shapes: frozenset[bytes] = frozenset([shape_of(name) for name in self._names])
        self._pool: PodPool | None = None  # opened by an authorisation request
        self._pool_end = _PoolEnd(self)
        self._under_way: int = 0  # authorisation requests that have been sent
        self._waiting: dict[AuthRequest, None] = {}  # the one that has waited longest is first
        self._cached: dict[bytes, Decision] = {}  # the oldest is first
        self._hash_key: bytes = secrets.token_bytes(32)
        self._refused: Decision | None = None  # set while `on_failure` is called with its request
        self._is_failure_logged: bool = False  # since the last valid response

    # --- Filter ---

    def on_routed(self, request: Exchange) -> None:
        request.is_unverified = True

    def on_request(self, request: Exchange) -> None:
        if self._names:
            request.edit().add(removal(self._names | _names_like(self._shapes, request.head.headers)))
        head = self._auth_request_of(request)
        key = self._key_of(head) if self._spec.cache_s > 0.0 else b""
        decision = self._cached_decision(key) if key else None
        if decision is not None:
            self._let_through(request, decision)
            return
        if len(self._waiting) >= WAITING_MAX:
            request.fail(Reason.AUTH_UNAVAILABLE, "too many requests wait for it")
            return
        auth_request = AuthRequest(head, request, self, key)
        auth_request.hold_number = request.hold(self._spec.timeout_s + HOLD_SLACK_S)
        request.watch(_CancelAtEnd(auth_request))
        self._wheel.arm(auth_request, self._now() + self._spec.timeout_s)
        self._waiting[auth_request] = None
        self._send_waiting()

    def on_failure(self, request: Exchange, failure: Failure) -> None:
        if failure.reason is Reason.AUTH_UNAVAILABLE:
            failure.retry_after_s = RETRY_AFTER_S
        decision = self._refused
        if decision is None or failure.reason is not Reason.AUTH_DENIED:
            return
        head = decision.head
        if request.is_grpc and head.status == 401:
            request.grpc_status = int(GrpcStatus.UNAUTHENTICATED)
        has_body = head.status not in WITHOUT_BODY
        body = decision.body if has_body else b""
        fields = head.headers.without(_NOT_PASSED_ON)
        fields = fields.with_line(b"Activator-Reason", failure.reason.value.encode())
        length = len(body) if has_body else -1
        response = ResponseHead(head.status, head.reason_phrase, fields, length, has_body)
        request.respond(response, body, head.status < 500)

    # --- calls of authorisation requests ---

    def repeat(self, auth_request: AuthRequest) -> None:
        """Send an authorisation request again, on a new connection."""
        auth_request.begin(self._connections(), 0.0, self._now())

    def ended(self, auth_request: AuthRequest, head: ResponseHead | None, body: bytes, problem: str) -> None:
        """Decide on the client's request after its authorisation request has ended, and send the next one."""
        self._wheel.cancel(auth_request)
        if auth_request in self._waiting:
            del self._waiting[auth_request]
        else:
            self._under_way -= 1
        request = auth_request.request
        is_current = not request.over and request.fallbacks == auth_request.fallbacks
        if head is not None:
            self._is_failure_logged = False
            decision = Decision(head, body, self._listed(head))
            if not is_current:
                pass
            elif head.status < 300:
                self._cache(auth_request.key, decision)
                self._let_through(request, decision)
                request.proceed(auth_request.hold_number)
            else:
                self._refused = decision
                request.fail(Reason.AUTH_DENIED, "")
                self._refused = None
        elif problem:
            self._log_failure(problem)
            if is_current:
                request.fail(Reason.AUTH_UNAVAILABLE, problem)
        self._send_waiting()

    def close_pool(self) -> None:
        """Close the connections to the authoriser."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    # --- within ---

    def _connections(self) -> PodPool:
        pool = self._pool
        if pool is None or pool.is_closed():
            pool = self._pool = self._open_pool(self._spec)
        return pool

    def _send_waiting(self) -> None:
        """Send the authorisation requests whose turn has come; arm the end of an unused pool."""
        while self._waiting and self._under_way < AUTH_REQUESTS_MAX:
            auth_request = next(iter(self._waiting))
            del self._waiting[auth_request]
            self._under_way += 1
            self._wheel.cancel(self._pool_end)
            auth_request.begin(self._connections(), NEVER, self._now())
        if self._under_way == 0 and self._pool is not None:
            self._wheel.arm(self._pool_end, self._now() + POOL_IDLE_S)

    def _let_through(self, request: Exchange, decision: Decision) -> None:
        request.verified(self._now())
        edits = request.edit()
        for name, value in decision.fields:
            edits.append(name, value)

    def _listed(self, head: ResponseHead) -> Headers:
        """Return the fields of a response that are set in the request for the pod."""
        if not self._names or head.status >= 300:
            return []
        return [pair for pair in head.headers.pairs() if pair[0].lower() in self._names]

    def _auth_request_of(self, request: Exchange) -> RequestHead:
        """Return the head of the authorisation request for a client's request."""
        received = request.head
        edits = request.edits
        fields = (received if edits is None else edits.apply(received)).headers
        client = request.client()
        changes: list[FieldEdit] = [
            _NOT_SENT,
            replacement(b"X-Forwarded-Method", received.method),
            replacement(b"X-Forwarded-Uri", received.target),
        ]
        if fields.get(b"x-forwarded-proto") is None:
            changes.append(addition(b"X-Forwarded-Proto", b"https" if client.secure() else b"http"))
        if fields.get(b"x-forwarded-host") is None:
            changes.append(addition(b"X-Forwarded-Host", received.authority))
        ip = client.client_ip()
        if ip and fields.get(b"x-forwarded-for") is None:
            changes.append(addition(b"X-Forwarded-For", ip.encode()))
        changes.append(addition(b"Host", self._authority))
        return RequestHead(b"GET", self._target, self._authority, edited_fields(fields, changes), -1, False)

    # --- the cache ---

    def _key_of(self, head: RequestHead) -> bytes:
        """Return the cache key: a keyed hash of the request's fields."""
        return hashlib.blake2b(head.headers.without(_NOT_IN_KEY).block, key=self._hash_key, digest_size=16).digest()

    def _cached_decision(self, key: bytes) -> Decision | None:
        self._drop_expired()
        return self._cached.get(key)

    def _cache(self, key: bytes, decision: Decision) -> None:
        """Cache a decision, unless it is too long or the authoriser forbids it."""
        if not key or _size_of(decision.fields) > CACHED_BYTES_MAX:
            return
        if b"no-store" in (decision.head.headers.get(b"cache-control") or b"").lower():
            return
        self._drop_expired()
        self._cached.pop(key, None)
        while len(self._cached) >= CACHED_MAX:
            del self._cached[next(iter(self._cached))]
        cached = self._cached[key] = Decision(decision.head, b"", decision.fields)
        cached.valid_until_s = self._now() + self._spec.cache_s

    def _drop_expired(self) -> None:
        """Drop the decisions whose time has passed."""
        now_s = self._now()
        while self._cached:
            oldest = next(iter(self._cached))
            if self._cached[oldest].valid_until_s > now_s:
                return
            del self._cached[oldest]

    def _log_failure(self, problem: str) -> None:
        """Log a failure, once until a valid response."""
        if not self._is_failure_logged:
            self._is_failure_logged = True
            log.warning(
                "revision %s: the authoriser at %s failed: %s; requests get 503",
                self._revision,
                self._spec.authority,
                problem,
            )


def _size_of(fields: Headers) -> int:
    size = 0
    for name, value in fields:
        size += len(name) + len(value)
    return size


def _names_like(shapes: frozenset[bytes], fields: Fields) -> frozenset[bytes]:
    """Return the names of fields, in lower case, that a server could take for one of `shapes`."""
    names = [line.partition(b":")[0].lower() for line in fields.block.split(b"\r\n")]
    return frozenset([name for name in names if b"_" in name and shape_of(name) in shapes])
