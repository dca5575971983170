"""One request and its response, as the client's connection, filters, time limits, accounting and logs see it.

Rules
  1. Attributes ending in `_s` are monotonic seconds; 0.0 means that the event has not happened.
  2. Only proxy/exchange.py and its neighbours write them. A filter may set `access` in `on_arrival`, `is_quiet`,
     `is_unverified` and, at the first revision, `body_editor` in `on_routed`, and `reason` before it responds.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from activator.codec.json_edit import BodyEditor
from activator.codec.message import Fields, Headers, RequestHead, ResponseHead
from activator.codec.proxy_protocol import Endpoints
from activator.config.specs import RevisionSpec
from activator.data_plane.body_watcher import BodyWatcher
from activator.data_plane.captures import Capture
from activator.data_plane.headers.edits import HeadEdits, addition, edited_fields
from activator.data_plane.headers.grpc import NO_STATUS, is_grpc, timeout_of
from activator.data_plane.headers.trace_context import TraceContext
from activator.data_plane.phases import ARRIVED
from activator.data_plane.refusals import PHRASES
from activator.data_plane.streams import ClientStream, ClientWrapper, PodStream
from activator.data_plane.throttle.leases import Lease
from activator.data_plane.throttle.revision import RevisionThrottler
from activator.data_plane.throttle.starting import Start
from activator.data_plane.throttle.waiters import Waiter
from activator.data_plane.usage import Usage
from activator.data_plane.users import Access, Admission
from activator.runtime.clock import Deadline
from activator.runtime.reasons import Reason

HOLD_MAX_S: Final = 3600.0  # the longest hold of a request by a filter

WITHOUT_BODY: Final = frozenset({204, 205, 304})  # statuses of responses without a body
NO_PLACE: Final = Waiter()  # the queue entry of an exchange without a revision, and of one that is over


class Exchange(Deadline):
    """One request from its arrival to its end, with all its state that is visible outside the proxy."""

    is_unverified: bool = False  # treated as quiet until the filter that holds the request calls `verified`
    body_editor: BodyEditor | None = None  # a filter's edit of the body; without effect on gRPC and content codings
    rate_wait_s: float = 0.0  # until the client's address may send another request; 0.0: this one is admitted

    def __init__(self, head: RequestHead, client: ClientStream, arrived_s: float) -> None:
        super().__init__()
        self.head = head
        self.over: bool = False
        self.is_shed: bool = False  # aborted because the memory of its unread response is needed
        self.phase: i64 = ARRIVED  # phases.py
        self.read_s: float = 0.0  # the time of the current read from the client; 0.0 in between
        self._client = client  # or its outermost wrapper; a dummy after the end of the request
        self._client_full: bool = False  # the client reads more slowly than the pod sends
        self._taken_bytes: int = 0  # bytes that the client had taken at the last check
        # Times:
        self.arrived_s: float = arrived_s
        self.asked_for_slot_s: float = arrived_s  # later if a filter has held it or gathered its body
        self.queued_s: float = 0.0
        self.granted_s: float = 0.0
        self.connected_s: float = 0.0
        self.first_byte_s: float = 0.0
        self.is_client_slow: bool = False  # the pod is not read until the client catches up
        self.blocked_s: float = 0.0  # the client has taken nothing of the response since then; 0.0: not blocked
        self.progress_s: float = 0.0  # last data from the pod; in a tunnel, from either side
        self.paused_s: float = 0.0  # total pauses of the event loop since its arrival; no time limit includes them
        self.done_s: float = 0.0
        self.grpc_timeout_s: float = 0.0  # the client's deadline, from its arrival; 0.0: none
        self.start: Start | None = None  # the start from zero that it has waited for
        # Bytes:
        self.request_bytes: i64 = 0  # received body bytes; in a tunnel, from the client
        self.response_bytes: i64 = 0
        self.stalled_bytes: int = 0  # counted while its client takes nothing of the response (stalled.py)
        self.request_done: bool = not head.has_body  # the request, or the client's stream of a tunnel, is complete
        # Revision and pod:
        self.throttler: RevisionThrottler | None = None  # the throttler of its revision; None: not routed
        self.place: Waiter = NO_PLACE  # its entry in the queue of its revision
        self.lease: Lease | None = None  # its slot
        self.last_lease: Lease | None = None  # names the last pod at which the request had a slot
        self.pod: PodStream | None = None  # the connection that carries the request
        self.attempts: int = 0  # pods that have failed the request
        self.fallbacks: i64 = 0  # revisions that have failed the request, before this one
        self.first_throttler: RevisionThrottler | None = None  # the first of these revisions
        self.pod_protocol: str = ""  # protocol of the last pod; empty: never connected
        self.upgrade: bytes = head.upgrade  # the offered protocols that its revision accepts
        self.edits: HeadEdits | None = None  # shared by all attempts
        # The outcome:
        self.status: i64 = 0  # status of its response; 0: none
        self.reason: Reason | None = None  # why it ended without a complete response of its pod
        self.is_quiet: bool = False  # it starts no pod, and does not count as activity
        self.access: Access | None = None  # the users whose keys it has; None if no keys are required
        self.admission: Admission | None = None  # set if its user has limits
        self.destination: str | None = None  # revision key set by a filter; empty: determined by the host
        self.is_detached: bool = False  # its client does not wait for the response
        self.is_handed_over: bool = False  # another exchange continues the request, and counts it
        self.is_grpc: bool = False
        self.grpc_status: i64 = NO_STATUS  # the status of the gRPC call
        self.trace: TraceContext | None = None  # set if it is traced
        self.usage: Usage | None = None  # set if its tokens are counted
        self.capture: Capture | None = None  # set if its heads and bodies are kept

    # --- calls of the client's connection ---

    def begin(self) -> None:
        """Start to route the request, because the connection has processed those before it."""
        raise NotImplementedError

    def refuse_unsent(self) -> bool:
        """Refuse the request at the end of a drain if it has no pod and is not queued; return True if refused."""
        return False

    def request_body(self, data: bytes) -> None:
        raise NotImplementedError

    def request_end(self, trailers: Headers) -> None:
        raise NotImplementedError

    def client_gone(self) -> None:
        """Handle a disconnected client: the queue position or slot is released within this turn."""
        raise NotImplementedError

    def client_blocked(self) -> None:
        """Handle a client that reads more slowly than the pod sends."""
        raise NotImplementedError

    def client_drained(self) -> None:
        """Handle a client that has read the data that blocked it."""
        raise NotImplementedError

    # --- for filters, time limits and logs ---

    def edit(self) -> HeadEdits:
        """Return the edits of the head that apply to all attempts."""
        if self.edits is None:
            self.edits = HeadEdits()
        return self.edits

    def client(self) -> ClientStream:
        """Return the client, or its outermost wrapper."""
        return self._client

    def is_client_full(self) -> bool:
        """Return True if the client reads more slowly than the pod sends."""
        return self._client_full

    def has_client_taken(self) -> bool:
        """Return True if the client has taken some of the response since the last call."""
        taken_bytes = self._client.taken_bytes()
        has_taken = taken_bytes > self._taken_bytes
        self._taken_bytes = taken_bytes
        return has_taken

    def endpoints(self) -> Endpoints | None:
        """Return the addresses of the client's connection; None if they are unknown."""
        return self._client.endpoints()

    def loop_paused(self, pause_s: float) -> None:
        """Exclude a pause of the event loop from the time limits."""
        self.paused_s += pause_s
        if self.progress_s > 0.0:
            self.progress_s += pause_s
        if self.blocked_s > 0.0:
            self.blocked_s += pause_s

    def read_grpc_timeout(self) -> None:
        """Read the client's deadline of a gRPC request."""
        if is_grpc(self.head):
            self.is_grpc = True
            timeout_s = timeout_of(self.head)
            if timeout_s is not None:
                self.grpc_timeout_s = timeout_s

    # --- ends ---

    def fail(self, reason: Reason, detail: str) -> None:
        """End the request, which has no complete response of a pod."""
        raise NotImplementedError

    def request_failed(self, reason: Reason, detail: str) -> None:
        """Handle an error in the request's data after its head was accepted."""
        self.fail(reason, detail)

    def revoked(self, reason: Reason, detail: str) -> None:
        """End the request, and release its slot at once if it has one."""
        lease = self.lease
        if lease is None:
            self.fail(reason, detail)
        else:
            lease.holder.revoked(reason, detail)

    def shed(self) -> None:
        """Abort the response, because its client takes nothing of it and the memory is needed."""
        self.is_shed = True
        self.fail(Reason.SEND_TIMEOUT, "")

    def note_reason(self, reason: Reason) -> None:
        """Record why the request ends without a status of its pod, and the gRPC status if it is a gRPC request."""
        self.reason = reason
        if self.head.takes_trailers and (self.is_grpc or is_grpc(self.head)):
            self.grpc_status = int(reason.grpc_status)

    # --- calls of filters ---

    def respond(self, head: ResponseHead, body: bytes, is_success: bool = True, is_logged: bool = True) -> None:
        """End the request with this response; only before a byte of another one has been sent to the client.

        `is_success`: as the outcome of the request in the metrics. `is_logged`: in the access log.
        """
        raise NotImplementedError

    def answer(self, status: int, body: bytes = b"", headers: Headers | None = None) -> None:
        """Respond with these fields and Content-Length; a status below 500 counts as a success.

        Raises ValueError if a field contains CR, LF or NUL, for a status outside 200 to 599, and for a body with a
        status that allows none; TypeError if the body is text.
        """
        data = bytes(body)  # plain Python does not check its type
        has_body = status not in WITHOUT_BODY
        if not 200 <= status <= 599 or (data and not has_body):
            raise ValueError(f"a response cannot have the status {status}{' and a body' if data else ''}")
        pairs: Headers = [] if headers is None else headers
        edits = [addition(name, value) for name, value in pairs]
        fields = edited_fields(Fields(b""), edits)
        length = len(data) if has_body else -1
        self.respond(ResponseHead(status, PHRASES.get(status, b""), fields, length, has_body), data, status < 500)

    def body(self) -> bytes | None:
        """Return the body as far as it has arrived; None if a part of it is in a file or was sent to a pod.

        It is complete after `gather` has returned True, if `request_done`.
        """
        raise NotImplementedError

    def route_to(self, key: str) -> None:
        """Select the revision, namespace/name; "" selects by host only. Call it in `on_arrival`."""
        self.destination = key

    def hold(self, timeout_s: float) -> int:
        """Call no further filter and ask for no slot until `proceed`, which takes the returned number.

        After `timeout_s` the request is refused (`filter_timeout`). Call it in `on_request`. Raises ValueError if the
        time is not from 0 to HOLD_MAX_S.
        """
        raise NotImplementedError

    def proceed(self, hold_number: int) -> None:
        """Continue a held request in another turn. No effect if it is over or if another filter holds it."""
        raise NotImplementedError

    def gather(self, bytes_max: int) -> bool:
        """Receive the request body first, up to `bytes_max`; return True if it is complete or no more can be received.

        If False, `on_request` of the same filter is called again at that point. Call it in `on_request`.
        """
        raise NotImplementedError

    def wrap_client(self, wrapper: ClientWrapper) -> None:
        """Send the response through `wrapper`, which wraps `client()`. Call it before the response begins."""
        raise NotImplementedError

    def watch(self, watcher: BodyWatcher) -> None:
        """Call `watcher` with all bytes from now on."""
        raise NotImplementedError

    def fall_back(self, key: str, reason: Reason, any_method: bool = False) -> bool:
        """Move the request to another revision, namespace/name; return False if that is not possible.

        `any_method`: also a request that is not idempotent and was sent to a pod.
        """
        raise NotImplementedError

    def detach(self, client: ClientStream) -> Exchange:
        """Return a new request that continues this one for `client`.

        This request must have arrived completely. It loses its body and slot, and must be answered.
        """
        raise NotImplementedError

    def revision_key(self) -> str:
        """Return namespace/name of the revision; "" if it is not routed."""
        throttler = self.throttler
        return "" if throttler is None else throttler.key

    def spec(self) -> RevisionSpec | None:
        """Return the specification of the request's revision; None if it is not routed."""
        throttler = self.throttler
        return None if throttler is None else throttler.spec

    def counts_as_activity(self) -> bool:
        """Return True if the request counts as activity."""
        return not self.is_quiet and not self.is_unverified

    def verified(self, now_s: float) -> None:
        """Count an unverified request as activity from now on, unless it is quiet."""
        throttler = self.throttler
        if self.is_unverified and throttler is not None:
            self.is_unverified = False
            if not self.is_quiet:
                throttler.counters.quiet -= 1
                throttler.counters.quiet_total -= 1
                throttler.counters.traffic.begun(now_s)

    def leave_exemplars(self, trace_id: str, time_s: float) -> None:
        """Attach `trace_id` to the histograms that the request was added to. `time_s`: Unix time."""

    def retries(self) -> int:
        """Return the number of pods that have failed the request before the last one."""
        return self.attempts

    def was_tunnel(self) -> bool:
        """Return True if the request is or was a tunnel, whose duration and data depend on client and pod only."""
        return self.status == 101
