"""The rest of a pod's response that a fallback has replaced: it is read and discarded, within bounds.

A pod that is short of capacity answers many requests with a short error. Without this, each of them would cost a
connection. Until the response is complete the pod is busy with the request, so its slot is not released before.
"""

from __future__ import annotations

from typing import Final, final

from activator.codec.message import RequestHead, ResponseHead
from activator.data_plane.proxy.cancelled import CancelledRequest, outlives_request
from activator.data_plane.proxy.ended import EndedRequest
from activator.data_plane.proxy.request_body import RequestBody
from activator.data_plane.streams import PodStream
from activator.data_plane.throttle.leases import Lease
from activator.data_plane.throttle.revision import RevisionThrottler
from activator.runtime.clock import Now, TimingWheel
from activator.runtime.units import KIB

DISCARDED_BYTES_MAX: Final = 64 * KIB
DISCARD_TIMEOUT_S: Final = 1.0


def may_discard(head: ResponseHead, body: RequestBody | None) -> bool:
    """Return True if the rest of the response should be read: it can be short, and the pod has the whole request."""
    return head.content_length <= DISCARDED_BYTES_MAX and (body is None or body.is_sent())


@final
class DiscardedResponse(EndedRequest):
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
        super().__init__(head, throttler, lease, latency_s, True, wheel)  # the pod has responded
        self._now = now
        self._bytes: int = 0  # discarded so far

    def begin_at(self, pod: PodStream) -> None:
        """Read the response of `pod` from now on."""
        self._become_user_of(pod, self._now() + DISCARD_TIMEOUT_S, True)

    def expired(self, now_s: float) -> None:
        self._cancel()

    def response_body(self, data: bytes) -> None:
        self._bytes += len(data)
        if self._bytes > DISCARDED_BYTES_MAX:
            self._cancel()

    def _cancel(self) -> None:
        """End the request at the pod, which sends too much or too slowly."""
        pod, lease = self._pod, self._lease
        if pod is None or lease is None:
            return
        if not outlives_request(self._throttler.spec):
            self._abort_and_release()
            return
        self._pod = self._lease = None
        self._wheel.cancel(self)
        cancelled = CancelledRequest(self.head, self._throttler, lease, self._latency_s, self._wheel)
        cancelled.begin_at(pod, self._now(), False)
