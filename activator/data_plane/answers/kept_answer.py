"""An answer that is kept for a client who did not want to wait for it: the client's half of such a request.

Rules
  1. It takes what it is sent at once, and bounded: `AnswerStore` says whether there is room for more.
  2. What does not fit is a failure (`answer_too_large`): nothing of it is kept, and the pod is told to stop.
  3. It ends once: with the pod's answer, with a refusal, or with the reason for which an answer was cut short.
"""

from __future__ import annotations

from typing import Final

from activator.codec.message import Fields, Headers, ResponseHead
from activator.codec.proxy_protocol import Endpoints
from activator.config.specs import AsyncSpec
from activator.data_plane.exchange import ClientStream
from activator.data_plane.refusals import refusal_head, refusal_text
from activator.data_plane.request import RequestRecord
from activator.data_plane.throttle.revision import RevisionThrottler
from activator.runtime.clock import Deadline
from activator.runtime.reasons import Reason

KEPT_OVERHEAD_BYTES: Final = 2048  # that a kept request counts for beside the bytes of its answer


class AnswerKeeper:
    """The store, as an answer sees it."""

    def fits(self, answer: KeptAnswer, count: int) -> bool:
        """Whether so many more bytes could be kept."""
        raise NotImplementedError

    def grow(self, answer: KeptAnswer, count: int) -> bool:
        """Whether so many more bytes may be kept, which are accounted for then."""
        raise NotImplementedError

    def shrink(self, answer: KeptAnswer) -> None:
        """Nothing of its body is kept any more."""
        raise NotImplementedError

    def too_large(self, answer: KeptAnswer) -> None:
        """Its request is of no use any more."""
        raise NotImplementedError

    def done(self, answer: KeptAnswer) -> None:
        """It is complete, however it ended."""
        raise NotImplementedError

    def expired(self, answer: KeptAnswer) -> None:
        """Its time is up."""
        raise NotImplementedError


class KeptAnswer(ClientStream):
    """Of one request; `exchange` is set by whoever makes it, at once."""

    exchange: RequestRecord

    def __init__(
        self,
        keeper: AnswerKeeper,
        identity: str,
        throttler: RevisionThrottler,
        spec: AsyncSpec,
        client: ClientStream,
        asked_s: float,
    ) -> None:
        self._keeper = keeper
        self.identity = identity
        self.throttler = throttler
        self.spec = spec  # as it was when the request came
        self.asked_s = asked_s
        self.head: ResponseHead | None = None  # of the answer, once it has begun
        self.body = bytearray()
        self.trailers: Headers = []
        self.is_done: bool = False
        self.is_too_large: bool = False
        self.bytes: int = 0  # as the store accounts for it
        self.readers: int = 0  # requests that are being sent it
        self.was_read: bool = False
        self.is_forgotten: bool = False
        self.expiry = AnswerExpiry(self)
        self._client_ip = client.client_ip()
        self._endpoints = client.endpoints()
        self._protocol = client.protocol()
        self._secure = client.secure()

    # --- the answer ---

    def send_interim(self, head: ResponseHead) -> None:
        pass  # nobody waits for it

    def send_head(self, head: ResponseHead) -> None:
        if self.is_done or self.is_too_large:
            return
        self.head = head
        expected = max(head.content_length, 0) if head.has_body else 0
        if not self._keeper.fits(self, expected) or not self._keeper.grow(self, len(head.headers.block)):
            self._give_up()

    def send_body(self, data: bytes) -> None:
        if self.is_done or self.is_too_large:
            return
        if self._keeper.grow(self, len(data)):
            self.body += data
        else:
            self._give_up()

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
        pass  # all of the request is here

    def resume_request(self) -> None:
        pass

    def half_closes(self) -> bool:
        return False

    # --- who asked ---

    def client_ip(self) -> str:
        return self._client_ip

    def endpoints(self) -> Endpoints | None:
        return self._endpoints

    def protocol(self) -> str:
        return self._protocol

    def secure(self) -> bool:
        return self._secure

    # --- within ---

    def _give_up(self) -> None:
        self.is_too_large = True
        self._fail(Reason.ANSWER_TOO_LARGE)
        self._keeper.too_large(self)

    def _fail(self, reason: Reason) -> None:
        self.body = bytearray()
        self._keeper.shrink(self)
        text = refusal_text(reason, "")
        self.head = refusal_head(reason, text, 0)
        self.body += text
        self.trailers = []
        self._done()

    def _done(self) -> None:
        self.is_done = True
        head = self.head
        assert head is not None
        if head.has_body:
            head.content_length = len(self.body)
        elif head.status not in _BODILESS:
            head.content_length = 0  # of an answer to HEAD: it is sent to a GET now
            head.has_body = True
        self._keeper.done(self)


_BODILESS: Final = frozenset({204, 304})


class AnswerExpiry(Deadline):
    """When a kept answer is forgotten."""

    def __init__(self, answer: KeptAnswer) -> None:
        super().__init__()
        self._answer: KeptAnswer | None = answer

    def expired(self, now_s: float) -> None:
        answer = self._answer
        if answer is not None:
            answer._keeper.expired(answer)

    def stop(self) -> None:
        """No cycle is left for the collector."""
        self._answer = None


def copy_of(head: ResponseHead) -> ResponseHead:
    """For one reader: whoever sends a head may change it."""
    copied = ResponseHead(
        head.status, head.reason_phrase, Fields(head.headers.block), head.content_length, head.has_body
    )
    copied.headers.never_indexed = head.headers.never_indexed
    return copied
