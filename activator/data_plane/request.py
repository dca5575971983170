"""One request as filters, time limits, accounting and logs see it: its phase, times, figures and pod, and what a filter
may do with it.

Rules
  1. Attributes ending in `_s` are monotonic seconds; 0.0 means: not reached.
  2. proxy/exchange.py and what stands beside it write them. Others only read; a filter may set `is_quiet` in
     `on_routed`, and `reason` before it responds.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64, mypyc_attr

from activator.codec.message import Fields, Headers, RequestHead, ResponseHead
from activator.codec.proxy_protocol import Endpoints
from activator.config.specs import RevisionSpec
from activator.data_plane.exchange import ClientStream, ClientWrapper, Exchange, PodStream
from activator.data_plane.headers.edits import HeadEdits, addition, edited_fields
from activator.data_plane.headers.grpc import NO_STATUS, is_grpc, timeout_of
from activator.data_plane.headers.trace_context import TraceContext
from activator.data_plane.phases import ARRIVED
from activator.data_plane.refusals import PHRASES
from activator.data_plane.throttle.leases import Lease
from activator.data_plane.throttle.revision import RevisionThrottler
from activator.data_plane.throttle.starting import Start
from activator.runtime.clock import Deadline
from activator.runtime.reasons import Reason

HOLD_MAX_S: Final = 3600.0  # the longest time that a filter may hold a request

WITHOUT_BODY: Final = frozenset({204, 205, 304})  # statuses of responses that have none


@mypyc_attr(allow_interpreted_subclasses=True)
class BodyWatcher(Deadline):
    """Observes what goes through a tunnel, or the response body of another request, until the request is over.

    It may use the timing wheel for itself.
    """

    def client_sent(self, data: bytes) -> None:
        """The client has sent these bytes through a tunnel."""

    def pod_sent(self, data: bytes) -> None:
        """The pod has sent these bytes."""

    def stop(self) -> None:
        """The request is over: no timer and no reference to it may be left."""


class RequestRecord(Exchange):
    """One request."""

    def __init__(self, head: RequestHead, client: ClientStream, arrived_s: float) -> None:
        super().__init__(head)
        self.phase: i64 = ARRIVED  # phases.py
        self.read_s: float = 0.0  # the time of the client's read that is being handled, 0.0 in between
        self._client = client  # or what wraps it; none once the request is over
        self._client_full: bool = False  # the client reads more slowly than it is written to
        self._taken_bytes: int = 0  # by the client, when that was last looked at
        # when
        self.arrived_s: float = arrived_s
        self.asked_for_slot_s: float = arrived_s  # later where its body was received first
        self.queued_s: float = 0.0
        self.granted_s: float = 0.0
        self.connected_s: float = 0.0
        self.first_byte_s: float = 0.0
        self.is_client_slow: bool = False  # the pod is not read until the client catches up
        self.blocked_s: float = 0.0  # the client has taken nothing of its answer since then; 0.0: it is not waited for
        self.progress_s: float = 0.0  # something came from the pod; through a tunnel, from either side
        self.paused_s: float = 0.0  # the event loop did not run for so long since its arrival: that counts for no limit
        self.grpc_timeout_s: float = 0.0  # the client's deadline, from its arrival; 0.0: it has none
        self.start: Start | None = None  # the start from zero that it has waited for
        # how much
        self.request_bytes: i64 = 0  # bytes of the body that have come; in a tunnel, from the client
        self.response_bytes: i64 = 0
        self.stalled_bytes: int = 0  # counted while its client takes nothing of the answer (stalled.py)
        self.request_done: bool = not head.has_body  # all of the request is here; of a tunnel, of the client's stream
        # where
        self.throttler: RevisionThrottler | None = None  # its revision's; None: none was found, so far
        self.lease: Lease | None = None  # its slot
        self.last_lease: Lease | None = None  # names the pod that it was given to last
        self.pod: PodStream | None = None  # the connection that carries it
        self.attempts: int = 0  # pods that failed it
        self.fallbacks: i64 = 0  # revisions that failed it, before this one …
        self.first_throttler: RevisionThrottler | None = None  # … and the first of them
        self.pod_protocol: str = ""  # spoken with the last pod; empty: none was connected to
        self.upgrade: bytes = head.upgrade  # the protocols that its revision takes, of those that its client offers
        self.edits: HeadEdits | None = None  # shared by all attempts
        # what became of it
        self.status: i64 = 0  # its response has it; 0: there was none
        self.reason: Reason | None = None  # why it ended otherwise than with its pod's answer
        self.is_quiet: bool = False  # it wakes nothing, and is no activity
        self.destination: str | None = None  # the key of its revision, if a filter names it; empty: its host decides
        self.is_detached: bool = False  # its client does not wait for the response
        self.is_grpc: bool = False
        self.grpc_status: i64 = NO_STATUS  # the call ended with it
        self.trace: TraceContext | None = None  # it is traced

    def edit(self) -> HeadEdits:
        """Return the edits of the head that all its pods are sent."""
        if self.edits is None:
            self.edits = HeadEdits()
        return self.edits

    def client(self) -> ClientStream:
        """Return the client, or what wraps it."""
        return self._client

    def is_client_full(self) -> bool:
        """Return True if the client reads more slowly than it is written to."""
        return self._client_full

    def has_client_taken(self) -> bool:
        """Return True if the client has taken some of the response since this was last asked."""
        taken_bytes = self._client.taken_bytes()
        has_taken = taken_bytes > self._taken_bytes
        self._taken_bytes = taken_bytes
        return has_taken

    def endpoints(self) -> Endpoints | None:
        """Return those of the client; None: they are not known."""
        return self._client.endpoints()

    def loop_paused(self, pause_s: float) -> None:
        self.paused_s += pause_s
        if self.progress_s > 0.0:
            self.progress_s += pause_s
        if self.blocked_s > 0.0:
            self.blocked_s += pause_s

    def read_grpc_timeout(self) -> None:
        """Bound the wait by the client's deadline if it is a gRPC request."""
        if is_grpc(self.head):
            self.is_grpc = True
            timeout_s = timeout_of(self.head)
            if timeout_s is not None:
                self.own_deadline_s = self.grpc_timeout_s = timeout_s

    # --- ends ---

    def fail(self, reason: Reason, detail: str) -> None:
        """End the request, which has no response of a pod, or not all of it."""
        raise NotImplementedError

    def request_failed(self, reason: Reason, detail: str) -> None:
        self.fail(reason, detail)

    def refused(self, reason: Reason, detail: str) -> None:
        self.fail(reason, detail)

    def revoked(self, reason: Reason, detail: str) -> None:
        """End the request, and release its slot at once if it has one."""
        lease = self.lease
        if lease is None:
            self.fail(reason, detail)
        else:
            lease.holder.revoked(reason, detail)

    def shed(self) -> None:
        """Cut the response, since its client takes nothing of it and the memory is needed."""
        self.is_shed = True
        self.fail(Reason.SEND_TIMEOUT, "")

    def note_reason(self, reason: Reason) -> None:
        """Note why it ends without a status of its pod's; a gRPC request may not have been looked at yet."""
        self.reason = reason
        if self.head.takes_trailers and (self.is_grpc or is_grpc(self.head)):
            self.grpc_status = int(reason.grpc_status)

    # --- what filters may do ---

    def respond(self, head: ResponseHead, body: bytes, is_success: bool = True, is_logged: bool = True) -> None:
        """End the request with a response that no pod made, before a byte of another one has gone to the client."""
        raise NotImplementedError

    def answer(self, status: int, body: bytes = b"", headers: Headers | None = None) -> None:
        """As `respond`, with these fields; below 500 it counts as a success. Content-Length is added.

        Raises ValueError if a field holds CR, LF or NUL, for a status that is not from 200 to 599, and for a body where
        the status allows none; TypeError if the body is text.
        """
        data = bytes(body)  # plain Python does not check its type
        has_body = status not in WITHOUT_BODY
        if not 200 <= status <= 599 or (data and not has_body):
            raise ValueError(f"no answer can have the status {status}{' and a body' if data else ''}")
        pairs: Headers = [] if headers is None else headers
        edits = [addition(name, value) for name, value in pairs]
        fields = edited_fields(Fields(b""), edits)
        length = len(data) if has_body else -1
        self.respond(ResponseHead(status, PHRASES.get(status, b""), fields, length, has_body), data, status < 500)

    def body(self) -> bytes | None:
        """Return the body as far as it is here; None if a part of it has gone to a file or to a pod.

        Whole after `gather` has returned True, if `request_done`.
        """
        raise NotImplementedError

    def route_to(self, key: str) -> None:
        """Name the revision, namespace/name; empty: the host alone decides. To be called in `on_arrival`."""
        self.destination = key

    def hold(self, timeout_s: float) -> int:
        """Meet no other filter and ask for no slot until `proceed`, which takes the number that is returned.

        After `timeout_s` the request is refused (`filter_timeout`). To be called in `on_request`. Raises ValueError if
        the time is not from 0 to HOLD_MAX_S.
        """
        raise NotImplementedError

    def proceed(self, hold: int) -> None:
        """Go on with a request, in another turn of the loop. Harmless if it is over, or another filter holds it."""
        raise NotImplementedError

    def gather(self, bytes_max: int) -> bool:
        """Receive the request's body first, up to `bytes_max`; return True if it is whole or no more can be received.

        If False, `on_request` of the same filter is called again when that is so. To be called in `on_request`.
        """
        raise NotImplementedError

    def wrap_client(self, wrapper: ClientWrapper) -> None:
        """Send the response through `wrapper`, which has been made around `client()`. Before the response begins."""
        raise NotImplementedError

    def watch(self, watcher: BodyWatcher) -> None:
        """Call `watcher` with the bytes that pass from now on."""
        raise NotImplementedError

    def fall_back(self, key: str, reason: Reason) -> bool:
        """Let another revision, namespace/name, take the request; return False if that cannot be done."""
        raise NotImplementedError

    def detach(self, client: ClientStream) -> RequestRecord:
        """Let another request go on in the place of this one, for `client`; return it.

        All of the request must be here. This one has nothing of it any more, and is to be responded to.
        """
        raise NotImplementedError

    def revision_key(self) -> str:
        """namespace/name; empty where no revision was found."""
        throttler = self.throttler
        return "" if throttler is None else throttler.key

    def spec(self) -> RevisionSpec | None:
        """Return the specification of its revision; None: none was found."""
        throttler = self.throttler
        return None if throttler is None else throttler.spec

    def leave_exemplars(self, trace_id: str, time_s: float) -> None:
        """Name its trace in each histogram that it was added to. `time_s`: since 1970."""

    def retries(self) -> int:
        """Pods that failed it before the last."""
        return self.attempts

    def was_tunnel(self) -> bool:
        """Return True if it is or was a tunnel: both directions depend on the client and the pod alone."""
        return self.status == 101
