"""The identity check: the first exchange on a new connection, in which the pod states its identity.

By the time of a dial, an address may belong to another pod without any source having reported it. An existing
connection always belongs to the same pod, so each connection is checked once, before its first request.
"""

from __future__ import annotations

from collections.abc import Callable

from activator.codec.message import Headers, RequestHead, ResponseHead
from activator.data_plane.streams import PodStream, PodUser
from activator.runtime.reasons import Reason


class ExpectedIdentity:
    """The request for a pod's identity, and the expected response."""

    def __init__(self, head: RequestHead, header: bytes, identity: bytes) -> None:
        self.head = head
        self.header = header  # the name of the response field, in lower case
        self.identity = identity


class IdentityCheck(PodUser):
    """The exchange of one check. `on_failed` is called if there is no response; the pool judges a response."""

    def __init__(self, expected: ExpectedIdentity, on_failed: Callable[[IdentityCheck, Reason], None]) -> None:
        super().__init__(expected.head)
        self.stated: bytes | None = None  # None: no response yet
        self.pod: PodStream | None = None
        self._expected_identity = expected
        self.over: bool = False
        self._on_failed = on_failed

    def matches(self) -> bool:
        """Return True if the pod has stated the expected identity."""
        return self.stated == self._expected_identity.identity

    def connected(self, pod: PodStream) -> None:
        self.pod = pod
        pod.send_request(self.head, [])

    def response_interim(self, head: ResponseHead) -> None:
        pass

    def response_head(self, head: ResponseHead) -> None:
        self.stated = head.headers.get(self._expected_identity.header) or b""

    def response_body(self, data: bytes) -> None:
        pass

    def response_flush(self) -> None:
        pass

    def response_end(self, trailers: Headers) -> None:
        pass  # `finished` was called before

    def pod_failed(self, reason: Reason, detail: str, untouched: bool) -> None:
        if not self.over:
            self._on_failed(self, Reason.CONNECT_FAILED)

    def pod_refused(self, reason: Reason, detail: str) -> None:
        self.pod_failed(reason, detail, False)

    def pod_blocked(self) -> None:
        pass

    def pod_drained(self) -> None:
        pass

    def expired(self, now_s: float) -> None:
        if not self.over:
            self._on_failed(self, Reason.CONNECT_TIMEOUT)
