"""The slot of a request that was cancelled while its pod worked on it.

The client has disconnected, or a time limit was reached. The pod is notified, or may finish; until then it is still
busy with the request, and the slot must not be granted to another one.

Rules
  1. `on_cancel: close`: the connection to the pod is closed for writing, and the slot is released when the pod has
     closed its side. Most servers count a request until they have handled the end of its connection, which an event
     loop does after it has read a request that arrived later on another connection. A pod that has not closed within
     CLOSE_PATIENCE_S gets a reset, and the slot is released.
  2. `on_cancel: wait`: the pod is not notified. The slot is released when it has answered or closed the connection, or
     after the revision's `cancel_timeout`.
  3. A lease that is revoked is released before `revoked` returns, as for any other request.
"""

from __future__ import annotations

from typing import Final, final

from activator.codec.message import Headers, RequestHead, ResponseHead
from activator.config.specs import RevisionSpec
from activator.data_plane.streams import PodStream, PodUser
from activator.data_plane.throttle.leases import Lease
from activator.data_plane.throttle.revision import RevisionThrottler
from activator.runtime.clock import TimingWheel
from activator.runtime.reasons import Reason

CLOSE_PATIENCE_S: Final = 0.2  # how long a pod may take to close a connection that was closed for writing


def outlives_request(spec: RevisionSpec) -> bool:
    """Return True if the slot of a cancelled request is released only after its pod has stopped."""
    return spec.container_concurrency > 0 or spec.timeouts.cancel_wait_s > 0.0


@final
class CancelledRequest(PodUser):
    """The pod user that replaces a cancelled request, and releases its lease when the pod has stopped.

    `latency_s` is passed to the policy when the lease is released; 0.0 means unknown.
    """

    def __init__(
        self, head: RequestHead, throttler: RevisionThrottler, lease: Lease, latency_s: float, wheel: TimingWheel
    ) -> None:
        super().__init__(head)
        self._throttler = throttler
        self._lease: Lease | None = lease
        self._latency_s = latency_s
        self._wheel = wheel
        self._pod: PodStream | None = None
        self._is_tunnel = False

    def begin_at(self, pod: PodStream, now_s: float, is_tunnel: bool) -> None:
        """Cancel the request at `pod`."""
        lease = self._lease
        assert lease is not None
        lease.holder = self
        wait_s = 0.0 if is_tunnel else self._throttler.timeouts.cancel_wait_s
        self._is_tunnel = is_tunnel
        self._pod = pod
        self._wheel.arm(self, now_s + (wait_s if wait_s > 0.0 else CLOSE_PATIENCE_S))  # `cancel` may disarm it
        if not pod.cancel(self, wait_s > 0.0):
            self._release()

    def is_served(self, lease: Lease) -> bool:
        return lease is self._lease

    def revoked(self, reason: Reason, detail: str) -> None:
        self._stop()

    def expired(self, now_s: float) -> None:
        self._stop()

    # --- from the pod ---

    def response_interim(self, head: ResponseHead) -> None:
        pass

    def response_head(self, head: ResponseHead) -> None:
        pass

    def response_body(self, data: bytes) -> None:
        pass

    def response_flush(self) -> None:
        self.read_s = 0.0

    def response_end(self, trailers: Headers) -> None:
        if self._is_tunnel:
            self._stop()
        else:
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

    def _stop(self) -> None:
        """Cut the connection, or reset the stream, and release the lease."""
        pod = self._pod
        if pod is not None:
            self._pod = None
            pod.abort()
        self._release()

    def _release(self) -> None:
        self._pod = None
        lease = self._lease
        if lease is not None:
            self._lease = None
            self._wheel.cancel(self)
            self._throttler.release(lease, self._latency_s, False)
