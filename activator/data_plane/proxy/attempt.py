"""One attempt of a request, from the grant of a slot at a pod until the pod has finished or failed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64

from activator.codec.message import Headers, ResponseHead
from activator.codec.proxy_protocol import Endpoints
from activator.data_plane.headers import grpc
from activator.data_plane.headers.edits import HeadEdits
from activator.data_plane.phases import ANSWERING, CONNECTING, OVER, POD_ENDED, SENT, TUNNEL
from activator.data_plane.proxy.cancelled import CancelledRequest, outlives_request
from activator.data_plane.proxy.delivery import keeps_response
from activator.data_plane.proxy.discarded import DiscardedResponse, may_discard
from activator.data_plane.proxy.filter_run import FilterRun
from activator.data_plane.proxy.request_body import RequestBody
from activator.data_plane.proxy.retry_policy import (
    NOT_SENT,
    REFUSED,
    TOUCHED,
    UNTOUCHED,
    idle_limit_s,
    is_idempotent,
)
from activator.data_plane.proxy.time_limits import pod_had_its_time
from activator.data_plane.proxy.tunnel import after_end_of_pod, tunnel_phase
from activator.data_plane.streams import PodStream, PodUser
from activator.data_plane.throttle.leases import Lease
from activator.data_plane.throttle.revision import RevisionThrottler
from activator.data_plane.upstream.pod_figures import SERVER_ERROR_STATUS
from activator.data_plane.upstream.pool import PodPool
from activator.data_plane.upstream.websockets import is_accepted
from activator.runtime.reasons import Reason

if TYPE_CHECKING:  # import cycle
    from activator.data_plane.proxy.exchange import ProxiedExchange

FALLBACK_HEADER: Final = b"Activator-Fallback"  # names the revision that responded in place of the requested one
LATE_GRANT_S: Final = 0.001  # a longer wait is subtracted from the deadline that a gRPC request carries

_NO_BODY: Final[list[bytes]] = []


@final
class Attempt(PodUser):
    """The pod's side of one request: it connects, sends the head, and forwards the response to the client.

    The exchange owns the lease and the connection. Calls after the end of the exchange have no effect.
    """

    def __init__(self, exchange: ProxiedExchange) -> None:
        super().__init__(exchange.head)
        self.exchange = exchange
        self._is_revoked: bool = False  # release the lease at once
        self._is_replaced: bool = False  # another response is sent in place of the pod's
        self._discards: bool = False  # the rest of the pod's response is read before the slot is released
        self._upload_failed: bool = False  # the pod closed while its request was being written

    # --- to the pod ---

    def begin(self, throttler: RevisionThrottler, lease: Lease) -> None:
        """Get a connection to the pod of `lease`."""
        exchange = self.exchange
        lease.holder = self
        exchange.lease = exchange.last_lease = lease
        exchange.granted_s = lease.granted_s
        pool = _pool_of(lease).in_use()
        if pool.is_closed():  # the pod was removed after the grant
            self.connect_failed(Reason.CONNECT_FAILED)
            return
        pod = pool.checkout(self, idle_limit_s(exchange, exchange.upload), lease.granted_s)
        if pod is not None:
            self.connected(pod)
        else:
            exchange.context.arm(exchange, throttler)

    def endpoints(self) -> Endpoints | None:
        return self.exchange.endpoints()

    def is_served(self, lease: Lease) -> bool:
        exchange = self.exchange
        return lease is exchange.lease and CONNECTING <= exchange.phase < OVER

    def revoked(self, reason: Reason, detail: str) -> None:
        self._is_revoked = True
        self.exchange.fail(reason, detail)

    def connected(self, pod: PodStream) -> None:
        exchange = self.exchange
        if not exchange.enter(SENT):
            pod.abort()
            return
        exchange.pod = pod
        exchange.pod_protocol = pod.protocol()
        exchange.connected_s = exchange.time()
        throttler = exchange.throttler
        assert throttler is not None
        exchange.progress_s = exchange.arrived_s if throttler.timeouts.from_arrival else exchange.connected_s
        try:
            edits = self._edits()
            body = exchange.upload
            if body is not None and body.editor is not None:
                edits = HeadEdits() if edits is None else edits.copy()
                edits.set_content_length(body.size if body.is_whole() and not body.has_trailers() else -1)
            head = exchange.head if edits is None else edits.apply(exchange.head)
        except Exception as error:  # a filter has raised it
            exchange.end_with_error(error)
            return
        if body is None or not head.has_body:  # bytes that a client sends before its tunnel are not a body
            pod.send_request(head, _NO_BODY)
        elif body.start(pod, head, edits, self._may_be_sent_again(pod)):
            exchange.continue_soon()
        exchange.context.arm(exchange, throttler)

    def connect_failed(self, reason: Reason) -> None:
        lease = self.exchange.lease
        if lease is not None:
            self.exchange.fail(reason, lease.address, NOT_SENT)

    def stop_waiting(self, lease: Lease) -> None:
        """Stop waiting for a connection to the pod of `lease`."""
        _pool_of(lease).stop_waiting(self)

    def _edits(self) -> HeadEdits | None:
        """Return the edits of the client's head for this attempt; None if there are none."""
        exchange = self.exchange
        common = exchange.edits  # those of every attempt
        waited_s = exchange.connected_s - exchange.arrived_s
        is_late = exchange.grpc_timeout_s > 0.0 and waited_s >= LATE_GRANT_S
        filters = exchange.filters
        if is_late or (filters is not None and filters.edits_attempts()):
            edits = HeadEdits() if common is None else common.copy()
            if is_late:
                grpc.edit_timeout(edits, exchange.grpc_timeout_s - waited_s)
            if filters is not None:
                filters.edit_attempt(edits)
            return edits
        return common

    def _may_be_sent_again(self, pod: PodStream) -> bool:
        """Return True if the request may go to another pod or revision after it was written to this one."""
        filters = self.exchange.filters
        replaces = filters is not None and filters.replaces_responses()
        if not pod.reused and not replaces:
            return False
        return is_idempotent(self.exchange) or (filters is not None and filters.repeats_any_method())

    def pod_blocked(self) -> None:
        exchange = self.exchange
        if not exchange.over and exchange.upload is not None:
            exchange.upload.pod_blocked()

    def pod_drained(self) -> None:
        exchange = self.exchange
        if not exchange.over and exchange.upload is not None and exchange.upload.pod_drained():
            exchange.continue_soon()

    # --- the response ---

    def response_interim(self, head: ResponseHead) -> None:
        if not self.exchange.over:
            self.exchange.client().send_interim(head)

    def response_head(self, head: ResponseHead) -> None:
        exchange = self.exchange
        if exchange.over:
            return
        phase: i64 = ANSWERING
        if head.status == 101:
            pod = exchange.pod
            assert pod is not None
            client = exchange.client()
            if client.protocol() == "HTTP/2" and not is_accepted(exchange.head, head):
                detail = "the pod's Sec-WebSocket-Accept does not match the key (RFC 6455 4.1)"
                exchange.fail(Reason.BAD_RESPONSE, detail)
                return
            phase = tunnel_phase(client, pod)
        filters = exchange.filters
        if (
            filters is not None
            and phase == ANSWERING
            and filters.replaces_responses()
            and self._replace_response(filters, head)
        ):
            return
        exchange.first_byte_s = exchange.progress_s = exchange.time()
        if (filters is not None and not self._edit_response(filters, head)) or not exchange.enter(phase):
            return
        exchange.status = head.status
        exchange.response_head = head
        body = exchange.upload
        if body is not None and phase < TUNNEL:
            body.response_begun()
        throttler = exchange.throttler
        assert throttler is not None
        lease = exchange.lease
        if lease is not None:
            if lease.trial:
                throttler.trial_answered(lease)
            _pool_of(lease).figures.responded(head.status, exchange.first_byte_s - exchange.connected_s)
        exchange.context.count_answer(throttler, head.status)
        if exchange.fallbacks != 0:
            head.headers = head.headers.with_line(FALLBACK_HEADER, throttler.key.encode())
        if phase >= TUNNEL:
            self._begin_tunnel(throttler)
        if exchange.is_client_full() and (phase >= TUNNEL or not keeps_response(exchange, throttler)):
            self.pause_pod()
        exchange.client().send_head(head)

    def _replace_response(self, filters: FilterRun, head: ResponseHead) -> bool:
        """Let filters respond in place of the pod; return False if none does, and the pod's response is sent.

        A replaced response is counted for the pod, and discarded.
        """
        exchange = self.exchange
        throttler, lease = exchange.throttler, exchange.lease
        assert throttler is not None and lease is not None
        first_byte_s = exchange.time() - exchange.connected_s
        if lease.trial:
            throttler.trial_answered(lease)
        self._discards = may_discard(head, exchange.upload)
        try:
            self._is_replaced = filters.replace_response(head)
        except Exception as error:
            self._is_replaced = True
            exchange.end_with_error(error)
        if not self._is_replaced:
            self._discards = False
            return False
        _pool_of(lease).figures.responded(head.status, first_byte_s)
        exchange.context.count_answer(throttler, head.status)
        return True

    def _edit_response(self, filters: FilterRun, head: ResponseHead) -> bool:
        """Apply the filters to the head of the response; return False if the request has ended."""
        try:
            filters.edit_response(head)
        except Exception as error:
            self.exchange.end_with_error(error)
        return not self.exchange.over

    def _begin_tunnel(self, throttler: RevisionThrottler) -> None:
        """Forward the client's data to the pod from now on, and apply the limits of tunnels."""
        exchange = self.exchange
        exchange.request_done = False  # the client's stream begins now
        body = exchange.upload
        if body is None:
            exchange.upload = body = RequestBody(exchange.context.bodies, exchange.client())
        if exchange.pod is not None:
            body.begin_tunnel(exchange.pod)
        exchange.context.count_tunnel(throttler)
        exchange.context.arm(exchange, throttler)

    def response_body(self, data: bytes) -> None:
        exchange = self.exchange
        if exchange.over:
            return
        exchange.response_bytes += len(data)
        if exchange.filters is not None:
            exchange.filters.notify_watchers(data, True)
        delivery = exchange.delivery
        if delivery is None:
            exchange.client().send_body(data)
            return
        delivery.append(data)
        if not delivery.has_room():
            self.pause_pod()

    def response_flush(self) -> None:
        exchange = self.exchange
        if exchange.over or self._is_replaced:
            return
        exchange.progress_s = exchange.time()
        self.read_s = 0.0
        exchange.client().flush()

    def response_end(self, trailers: Headers) -> None:
        exchange = self.exchange
        if exchange.over:
            return
        client = exchange.client()
        pod = exchange.pod
        if exchange.phase >= TUNNEL and pod is not None:
            self.enter_tunnel_phase(after_end_of_pod(exchange.phase), pod)
        else:
            exchange.pod = None  # the connection may serve another exchange from now on
            if exchange.is_grpc:
                exchange.grpc_status = grpc.status_of(exchange.response_head, trailers)
            if not exchange.request_done and pod is not None:
                pod.abort()  # an early response: the pod does not read the rest of the request
            if exchange.delivery is not None:
                exchange.delivery.pod_ended(trailers, True)
                return
            exchange.end(True, True)
        client.send_end(trailers)

    def pause_pod(self) -> None:
        """Stop reading the response until the client takes more."""
        exchange = self.exchange
        if exchange.pod is not None and not exchange.is_client_slow:
            exchange.is_client_slow = True
            exchange.pod.pause_response()

    def resume_pod(self) -> None:
        """Resume reading the response, because the client takes more or the buffer has room."""
        exchange = self.exchange
        pod, throttler = exchange.pod, exchange.throttler
        if pod is None or (exchange.delivery is not None and not exchange.delivery.has_room()):
            return
        exchange.is_client_slow = False
        if exchange.phase < TUNNEL and throttler is not None:
            exchange.progress_s = exchange.context.now()
            exchange.context.arm(exchange, throttler)
        pod.resume_response()

    def enter_tunnel_phase(self, phase: i64, pod: PodStream) -> bool:
        """Enter `phase` after one direction of a tunnel has ended; return False if both have ended."""
        exchange = self.exchange
        if phase == OVER:
            exchange.pod = None
            pod.finish()
            exchange.end(True, True)
            return False
        return phase == exchange.phase or exchange.enter(phase)

    # --- ends ---

    def pod_failed(self, reason: Reason, detail: str, untouched: bool) -> None:
        exchange = self.exchange
        if exchange.over:
            return
        pod, exchange.pod = exchange.pod, None
        body = exchange.upload
        self._upload_failed = body is not None and pod is not None and (pod.was_reset or not body.is_sent())
        if exchange.phase == POD_ENDED:
            client = exchange.client()  # the pod had sent everything, which the client still receives
            exchange.end(True, True)
            client.send_end([])
            return
        exchange.fail(reason, detail, UNTOUCHED if untouched else TOUCHED)

    def pod_refused(self, reason: Reason, detail: str) -> None:
        exchange = self.exchange
        if not exchange.over:
            exchange.pod = None
            exchange.fail(reason, detail, REFUSED)

    def is_about_pod(self, reason: Reason, throttler: RevisionThrottler) -> bool:
        """Return True if the failure may count against the pod.

        If a server responds and closes before it has read the request body, the write fails; that is not a fault.
        """
        if reason is Reason.POD_CLOSED and self._upload_failed:
            return False
        return pod_had_its_time(self.exchange, reason, throttler.timeouts, self.exchange.time())

    def give_back(
        self, throttler: RevisionThrottler, lease: Lease, pod: PodStream | None, latency_s: float, succeeded: bool
    ) -> None:
        """Release the lease; if `pod` still works on the request, release it when the pod has stopped (cancelled.py).

        A tunnel is aborted, so that the pod does not mistake a part for the whole. If the client had ended its
        direction, the pod still receives its last bytes.
        """
        exchange = self.exchange
        exchange.lease = None
        if pod is not None:
            context = exchange.context
            if self._discards and not self._is_revoked:
                DiscardedResponse(exchange.head, throttler, lease, latency_s, context.wheel, context.now).begin_at(pod)
                return
            is_tunnel = exchange.was_tunnel()
            outlives = exchange.has_client_ended if is_tunnel else outlives_request(throttler.spec)
            if outlives and not self._is_revoked:
                cancelled = CancelledRequest(exchange.head, throttler, lease, latency_s, context.wheel)
                cancelled.begin_at(pod, context.now(), is_tunnel)
                return
            pod.abort()
        throttler.release(lease, latency_s, succeeded)


def blame_pod(throttler: RevisionThrottler, lease: Lease, reason: Reason, status: i64) -> None:
    """Report and count a request that the pod has failed. `status`: that of the pod's response; 0: none."""
    throttler.pod_failed(lease, reason)
    if status < SERVER_ERROR_STATUS:  # otherwise the response was already counted as an error
        _pool_of(lease).figures.errors += 1


def _pool_of(lease: Lease) -> PodPool:
    pool = lease.attachment
    assert isinstance(pool, PodPool)
    return pool
