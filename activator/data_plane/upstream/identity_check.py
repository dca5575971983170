"""The first exchange on a connection to a pod, where it must be sure that it is that pod: the pod states its identity.

An address may be another pod's by the time we dial it, before a source reports it. An existing connection stays with
its pod: so each is checked once, before its first request.
"""

from __future__ import annotations

from collections.abc import Callable

from activator.codec.message import Headers, RequestHead, ResponseHead
from activator.data_plane.exchange import PodStream, PodUser
from activator.runtime.reasons import Reason


class ExpectedIdentity:
    """How a pod is asked for its identity, and what it must answer."""

    def __init__(self, head: RequestHead, header: bytes, identity: bytes) -> None:
        self.head = head
        self.header = header  # of the answer, lowered
        self.identity = identity


class IdentityCheck(PodUser):
    """`on_failed` is called when no answer came; an answer is judged by the owner of the connection."""

    def __init__(self, naming: ExpectedIdentity, on_failed: Callable[[IdentityCheck, Reason], None]) -> None:
        super().__init__(naming.head)
        self.said: bytes | None = None  # None: nothing, so far
        self.pod: PodStream | None = None
        self._expected_identity = naming
        self.over: bool = False
        self._on_failed = on_failed

    def is_right(self) -> bool:
        """The pod has stated the identity that is expected."""
        return self.said == self._expected_identity.identity

    def connected(self, pod: PodStream) -> None:
        self.pod = pod
        pod.send_request(self.head, [])

    def response_interim(self, head: ResponseHead) -> None:
        pass

    def response_head(self, head: ResponseHead) -> None:
        self.said = head.headers.get(self._expected_identity.header) or b""

    def response_body(self, data: bytes) -> None:
        pass

    def response_flush(self) -> None:
        pass

    def response_end(self, trailers: Headers) -> None:
        pass  # `finished` has come before

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
