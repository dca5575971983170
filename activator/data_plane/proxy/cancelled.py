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
"""

from __future__ import annotations

from typing import Final, final

from activator.codec.message import Headers, RequestHead
from activator.config.specs import RevisionSpec
from activator.data_plane.proxy.ended import EndedRequest
from activator.data_plane.streams import PodStream
from activator.data_plane.throttle.leases import Lease
from activator.data_plane.throttle.revision import RevisionThrottler
from activator.runtime.clock import TimingWheel

CLOSE_PATIENCE_S: Final = 0.2  # how long a pod may take to close a connection that was closed for writing


def outlives_request(spec: RevisionSpec) -> bool:
    """Return True if the slot of a cancelled request is released only after its pod has stopped."""
    return spec.container_concurrency > 0 or spec.timeouts.cancel_wait_s > 0.0


@final
class CancelledRequest(EndedRequest):
    """The pod user that replaces a cancelled request, and releases its lease when the pod has stopped.

    `latency_s` is passed to the policy when the lease is released; 0.0 means unknown.
    """

    def __init__(
        self, head: RequestHead, throttler: RevisionThrottler, lease: Lease, latency_s: float, wheel: TimingWheel
    ) -> None:
        super().__init__(head, throttler, lease, latency_s, False, wheel)
        self._is_tunnel = False

    def begin_at(self, pod: PodStream, now_s: float, is_tunnel: bool) -> None:
        """Cancel the request at `pod`."""
        wait_s = 0.0 if is_tunnel else self._throttler.timeouts.cancel_wait_s
        self._is_tunnel = is_tunnel
        self._become_user_of(pod, now_s + (wait_s if wait_s > 0.0 else CLOSE_PATIENCE_S), wait_s > 0.0)

    def expired(self, now_s: float) -> None:
        self._abort_and_release()

    def response_end(self, trailers: Headers) -> None:
        if self._is_tunnel:
            self._abort_and_release()
        else:
            self._release()
