"""The rest of a pod's response that a fallback has replaced: it is read and discarded, within bounds.

A pod that is short of capacity answers many requests with a short error. Without this, each of them would cost a
connection. Until the response is complete the pod is busy with the request, so its slot is not released before.
"""

from __future__ import annotations

from typing import Final, final

from activator.codec.message import Headers, RequestHead, ResponseHead
from activator.data_plane.proxy.cancelled import CancelledRequest, outlives_request
from activator.data_plane.proxy.request_body import RequestBody
from activator.data_plane.streams import PodStream, PodUser
from activator.data_plane.throttle.leases import Lease
from activator.data_plane.throttle.revision import RevisionThrottler
from activator.runtime.clock import Now, TimingWheel
from activator.runtime.reasons import Reason
from activator.runtime.units import KIB

DISCARDED_BYTES_MAX: Final = 64 * KIB
DISCARD_TIMEOUT_S: Final = 1.0


def may_discard(head: ResponseHead, body: RequestBody | None) -> bool:
    """Return True if the rest of the response should be read: it can be short, and the pod has the whole request."""
    return head.content_length <= DISCARDED_BYTES_MAX and (body is None or body.is_sent())


@final
class DiscardedResponse(PodUser):
    """The pod user that replaces a request whose response is discarded. Beyond the bounds the request is cancelled.

    `latency_s` is passed to the policy when the lease is released.
    """

    def __init__(
        self,
        head: RequestHead,
        throttler: RevisionThrottler,
        lease: Lease,
        latency_s: float,
        wheel: TimingWheel,
        now: Now,
    ) -> None:
        super().__init__(head)
        self._throttler = throttler
        self._lease: Lease | None = lease
        self._latency_s = latency_s
        self._wheel = wheel
        self._now = now
        self._pod: PodStream | None = None
        self._bytes: int = 0  # discarded so far

    def begin_at(self, pod: PodStream) -> None:
        """Read the response of `pod` from now on."""
        lease = self._lease
        assert lease is not None
        lease.holder = self
        self._pod = pod
        self._wheel.arm(self, self._now() + DISCARD_TIMEOUT_S)
        if not pod.cancel(self, True):
            self._release()

    def is_served(self, lease: Lease) -> bool:
        return lease is self._lease

    def revoked(self, reason: Reason, detail: str) -> None:
        pod = self._pod
        if pod is not None:
            pod.abort()
        self._release()

    def expired(self, now_s: float) -> None:
        self._cancel()

    # --- from the pod ---

    def response_interim(self, head: ResponseHead) -> None:
        pass

    def response_head(self, head: ResponseHead) -> None:
        pass

    def response_body(self, data: bytes) -> None:
        self._bytes += len(data)
        if self._bytes > DISCARDED_BYTES_MAX:
            self._cancel()

    def response_flush(self) -> None:
        self.read_s = 0.0

    def response_end(self, trailers: Headers) -> None:
        self._release()

    def pod_failed(self, reason: Reason, detail: str, untouched: bool) -> None:
        self._release()

    def pod_refused(self, reason: Reason, detail: str) -> None:
        self._release()

    def pod_blocked(self) -> None:
        pass

    def pod_drained(self) -> None:
        pass

    # --- within ---

    def _cancel(self) -> None:
        """End the request at the pod, which sends too much or too slowly."""
        pod, lease = self._pod, self._lease
        if pod is None or lease is None:
            return
        if not outlives_request(self._throttler.spec):
            pod.abort()
            self._release()
            return
        self._pod = self._lease = None
        self._wheel.cancel(self)
        cancelled = CancelledRequest(self.head, self._throttler, lease, self._latency_s, self._wheel)
        cancelled.begin_at(pod, self._now(), False)

    def _release(self) -> None:
        self._pod = None
        lease = self._lease
        if lease is not None:
            self._lease = None
            self._wheel.cancel(self)
            self._throttler.release(lease, self._latency_s, True)  # the pod has responded
