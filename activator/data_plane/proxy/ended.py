"""A request that has ended for the client before it has ended at its pod, which is busy with it until then.

Its slot must not be granted to another request while the pod works on this one. A lease that is revoked is released
before `revoked` returns, as for any other request.
"""

from __future__ import annotations

from activator.codec.message import Headers, RequestHead, ResponseHead
from activator.data_plane.streams import PodStream, PodUser
from activator.data_plane.throttle.leases import Lease
from activator.data_plane.throttle.revision import RevisionThrottler
from activator.runtime.clock import TimingWheel
from activator.runtime.reasons import Reason


class EndedRequest(PodUser):
    """The base of the pod users that replace a request, discard its response, and release its lease at the end.

    `latency_s` and `succeeded` are passed to the policy when the lease is released; a latency of 0.0 means unknown.
    """

    def __init__(
        self,
        head: RequestHead,
        throttler: RevisionThrottler,
        lease: Lease,
        latency_s: float,
        succeeded: bool,
        wheel: TimingWheel,
    ) -> None:
        super().__init__(head)
        self._throttler = throttler
        self._lease: Lease | None = lease
        self._latency_s = latency_s
        self._succeeded = succeeded
        self._wheel = wheel
        self._pod: PodStream | None = None

    def is_served(self, lease: Lease) -> bool:
        return lease is self._lease

    def revoked(self, reason: Reason, detail: str) -> None:
        self._abort_and_release()

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
        self._release()

    def pod_failed(self, reason: Reason, detail: str, untouched: bool) -> None:
        self._release()

    def pod_refused(self, reason: Reason, detail: str) -> None:
        self._release()

    def pod_blocked(self) -> None:
        pass

    def pod_drained(self) -> None:
        pass

    # --- for subclasses ---

    def _become_user_of(self, pod: PodStream, until_s: float, waits: bool) -> None:
        """Become the user of `pod`, until `expired` at `until_s` at the latest; `waits`: the pod may finish."""
        lease = self._lease
        assert lease is not None
        lease.holder = self
        self._pod = pod
        self._wheel.arm(self, until_s)  # `cancel` may disarm it
        if not pod.cancel(self, waits):
            self._release()

    def _abort_and_release(self) -> None:
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
            self._throttler.release(lease, self._latency_s, self._succeeded)
