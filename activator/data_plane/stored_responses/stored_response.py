"""A stored response: the client side of an asynchronous request.

Rules
  1. It takes data at once, up to a bound: `ResponseStore` decides if there is room for more.
  2. A response that does not fit fails with `answer_too_large`: its data is discarded, and the pod is aborted.
  3. It ends once: with the pod's response, with a refusal, or with the reason for which a response was cut short.
"""

from __future__ import annotations

from typing import Final

from activator.codec.message import Fields, Headers, ResponseHead
from activator.codec.proxy_protocol import Endpoints
from activator.config.specs import AsyncSpec
from activator.data_plane.exchange import Exchange
from activator.data_plane.refusals import refusal_head, refusal_text
from activator.data_plane.streams import ClientStream
from activator.data_plane.throttle.revision import RevisionThrottler
from activator.runtime.clock import Deadline
from activator.runtime.reasons import Reason

KEPT_OVERHEAD_BYTES: Final = 2048  # memory that is accounted for each stored request, besides its response


class StoredResponseOwner:
    """The interface of the store for its stored responses."""

    def fits(self, answer: StoredResponse, count: int) -> bool:
        """Return True if `count` more bytes would fit."""
        raise NotImplementedError

    def grow(self, answer: StoredResponse, count: int) -> bool:
        """Account for `count` more bytes; return False if they do not fit."""
        raise NotImplementedError

    def shrink(self, answer: StoredResponse) -> None:
        """Release the bytes of a discarded body."""
        raise NotImplementedError

    def count_too_large(self, answer: StoredResponse) -> None:
        """Count a response that is too large, and end its request."""
        raise NotImplementedError

    def done(self, answer: StoredResponse) -> None:
        """Record that a response is complete, whatever its outcome."""
        raise NotImplementedError

    def expired(self, answer: StoredResponse) -> None:
        """Forget a response whose time has expired."""
        raise NotImplementedError


class StoredResponse(ClientStream):
    """The stored response of one request; its creator sets `exchange` at once."""

    exchange: Exchange

    def __init__(
        self,
        store: StoredResponseOwner,
        identity: str,
        throttler: RevisionThrottler,
        spec: AsyncSpec,
        client: ClientStream,
        asked_s: float,
    ) -> None:
        self._store = store
        self.identity = identity
        self.throttler = throttler
        self.spec = spec  # as of the arrival of the request
        self.asked_s = asked_s
        self.head: ResponseHead | None = None  # set when the response has begun
        self.body = bytearray()
        self.trailers: Headers = []
        self.is_done: bool = False
        self.is_too_large: bool = False
        self.bytes: int = 0  # the bytes accounted for by the store
        self.readers: int = 0  # number of requests that are receiving the response
        self.was_read: bool = False  # a client has fetched the response
        self.is_forgotten: bool = False
        self.expiry = StoredResponseExpiry(self)
        self._client_ip = client.client_ip()
        self._endpoints = client.endpoints()
        self._protocol = client.protocol()
        self._secure = client.secure()

    # --- the response ---

    def send_interim(self, head: ResponseHead) -> None:
        pass  # no client waits for the response

    def send_head(self, head: ResponseHead) -> None:
        if self.is_done or self.is_too_large:
            return
        self.head = head
        body_bytes = max(head.content_length, 0) if head.has_body else 0
        if not self._store.fits(self, body_bytes) or not self._store.grow(self, len(head.headers.block)):
            self._fail_too_large()

    def send_body(self, data: bytes) -> None:
        if self.is_done or self.is_too_large:
            return
        if self._store.grow(self, len(data)):
            self.body += data
        else:
            self._fail_too_large()

    def send_end(self, trailers: Headers) -> None:
        if not self.is_done and not self.is_too_large:
            self.trailers = trailers
            self._done()

    def abort(self) -> None:
        if not self.is_done and not self.is_too_large:
            self._fail(self.exchange.reason or Reason.INTERNAL)

    def flush(self) -> None:
        pass

    def pause_request(self) -> None:
        pass  # the request is complete

    def resume_request(self) -> None:
        pass

    def half_closes(self) -> bool:
        return False

    # --- the client of the request ---

    def client_ip(self) -> str:
        return self._client_ip

    def endpoints(self) -> Endpoints | None:
        return self._endpoints

    def protocol(self) -> str:
        return self._protocol

    def secure(self) -> bool:
        return self._secure

    # --- within ---

    def _fail_too_large(self) -> None:
        self.is_too_large = True
        self._fail(Reason.ANSWER_TOO_LARGE)
        self._store.count_too_large(self)

    def _fail(self, reason: Reason) -> None:
        """Complete the response as a refusal, and discard the part of the pod's response that has arrived."""
        self.body = bytearray()
        self._store.shrink(self)
        text = refusal_text(reason, "")
        self.head = refusal_head(reason, text, 0)
        self.body += text
        self.trailers = []
        self._done()

    def _done(self) -> None:
        """Complete the response, whose body may now be read."""
        self.is_done = True
        head = self.head
        assert head is not None
        if head.has_body:
            head.content_length = len(self.body)
        elif head.status not in _BODILESS:
            head.content_length = 0  # the response to HEAD is sent to a GET
            head.has_body = True
        self._store.done(self)


_BODILESS: Final = frozenset({204, 304})


class StoredResponseExpiry(Deadline):
    """The deadline at which a stored response is forgotten."""

    def __init__(self, answer: StoredResponse) -> None:
        super().__init__()
        self._answer: StoredResponse | None = answer

    def expired(self, now_s: float) -> None:
        answer = self._answer
        if answer is not None:
            answer._store.expired(answer)

    def stop(self) -> None:
        """Drop the reference to the response, to avoid a reference cycle."""
        self._answer = None


def copy_of(head: ResponseHead) -> ResponseHead:
    """Return a copy for one reader, because a sender may edit the head."""
    copy = ResponseHead(head.status, head.reason_phrase, Fields(head.headers.block), head.content_length, head.has_body)
    copy.headers.never_indexed = head.headers.never_indexed
    return copy
