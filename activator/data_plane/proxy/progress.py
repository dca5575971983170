"""Progress in comments of an event stream, for clients that take one: how a request gets on until its pod answers.

    quiet ──(after)──► told: 200, and a comment at each interval ──► the pod's events, or one event `error`
      └──► the pod's answer as it is

Rules
  1. Before `after` has passed nothing is different: a quick answer has its own status and fields.
  2. From the first comment on the status is 200. A pod's 200 that is an event stream goes on with its body; any other
     answer, a refusal among them, becomes one event `error`, and the stream ends. Fields of the pod's answer are lost.
  3. It is the client's half between an exchange and its client: line, slots, retries and time limits are as ever.
  4. A client that does not take what is there is sent no comment: nothing gathers.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final, final

from activator.codec.message import UNKNOWN_LENGTH, Fields, Headers, RequestHead, ResponseHead
from activator.codec.proxy_protocol import Endpoints
from activator.config.specs import ProgressSpec
from activator.data_plane.exchange import ClientStream
from activator.data_plane.proxy.record import RequestRecord
from activator.runtime.clock import Deadline, Now, TimingWheel
from activator.runtime.units import KIB

ERROR_BYTES_MAX: Final = 16 * KIB  # of an answer that is told as an error
_EVENTS: Final = b"text/event-stream"

_QUIET: Final = 0  # nothing has been sent
_TOLD: Final = 1  # a 200, and comments
_PASSES: Final = 2  # what the pod sends is passed on
_FAILS: Final = 3  # what comes is the text of an error


def takes_events(head: RequestHead) -> bool:
    """True if its client reads an event stream."""
    if head.method == b"HEAD":
        return False
    accept = head.headers.get(b"accept")
    return accept is not None and _EVENTS in accept.lower()


@final
class ProgressStream(ClientStream):
    """`is_full()`: the client has not taken what was written to it."""

    def __init__(
        self,
        exchange: RequestRecord,
        client: ClientStream,
        spec: ProgressSpec,
        wheel: TimingWheel,
        now: Now,
        is_full: Callable[[], bool],
    ) -> None:
        self._exchange: RequestRecord | None = exchange
        self._client = client
        self._spec = spec
        self._wheel = wheel
        self._is_full: Callable[[], bool] | None = is_full
        self._state: int = _QUIET
        self._status: int = 0
        self._reason: bytes = b""
        self._text = bytearray()
        self._began_s: float = now()
        self._tick: _Tick | None = _Tick(self)
        wheel.arm(self._tick, self._began_s + spec.after_s)

    def tick(self, now_s: float) -> None:
        """It is time for a comment."""
        exchange = self._exchange
        if exchange is None or self._tick is None or exchange.over:
            return
        self._wheel.arm(self._tick, now_s + self._spec.interval_s)
        if not exchange.request_done or (self._is_full is not None and self._is_full()):
            return
        client = self._client
        if self._state == _QUIET:
            self._state = _TOLD
            client.send_head(_head())
        client.send_body(_comment(exchange, now_s - self._began_s))
        client.flush()

    def stop(self) -> None:
        """The pod answers, or the request has ended: no more comments."""
        if self._tick is not None:
            self._wheel.cancel(self._tick)
            self._tick.stream = None
            self._tick = None
        self._exchange = None  # no cycle is left for the collector
        self._is_full = None

    # --- the answer ---

    def send_interim(self, head: ResponseHead) -> None:
        if self._state == _QUIET:
            self._client.send_interim(head)

    def send_head(self, head: ResponseHead) -> None:
        self.stop()
        if self._state == _QUIET:
            self._state = _PASSES
            self._client.send_head(head)
        elif _is_stream(head):
            self._state = _PASSES
        else:
            self._state = _FAILS
            self._status = head.status
            self._reason = head.headers.get(b"activator-reason") or b""

    def send_body(self, data: bytes) -> None:
        if self._state == _PASSES:
            self._client.send_body(data)
        elif len(self._text) < ERROR_BYTES_MAX:
            self._text += data[: ERROR_BYTES_MAX - len(self._text)]

    def send_end(self, trailers: Headers) -> None:
        if self._state == _FAILS:
            self._state = _PASSES
            self._client.send_body(self._error())
            trailers = []
        self._client.send_end(trailers)

    def flush(self) -> None:
        self._client.flush()

    def abort(self) -> None:
        self.stop()
        self._client.abort()

    def _error(self) -> bytes:
        text = self._text.decode("utf-8", "replace").strip()
        said = {
            "message": text or f"the answer is {self._status}, without a body",
            "type": self._reason.decode("latin-1") or "upstream_status",
            "code": self._status,
        }
        return b"event: error\ndata: %b\n\n" % json.dumps({"error": said}).encode()

    # --- the client, as it is ---

    def pause_request(self) -> None:
        self._client.pause_request()

    def resume_request(self) -> None:
        self._client.resume_request()

    def ask_for_body(self) -> None:
        self._client.ask_for_body()

    def taken_bytes(self) -> int:
        return self._client.taken_bytes()

    def half_closes(self) -> bool:
        return self._client.half_closes()

    def client_ip(self) -> str:
        return self._client.client_ip()

    def endpoints(self) -> Endpoints | None:
        return self._client.endpoints()

    def protocol(self) -> str:
        return self._client.protocol()

    def secure(self) -> bool:
        return self._client.secure()


@final
class _Tick(Deadline):
    """Of one stream, until that stops."""

    def __init__(self, stream: ProgressStream) -> None:
        super().__init__()
        self.stream: ProgressStream | None = stream

    def expired(self, now_s: float) -> None:
        if self.stream is not None:
            self.stream.tick(now_s)


def _head() -> ResponseHead:
    headers: Headers = [
        (b"Content-Type", _EVENTS),
        (b"Cache-Control", b"no-store"),
        (b"X-Accel-Buffering", b"no"),  # proxies between us and the client are to pass comments on at once
    ]
    return ResponseHead(200, b"OK", Fields.from_pairs(headers), UNKNOWN_LENGTH, True)


def _comment(exchange: RequestRecord, waited_s: float) -> bytes:
    throttler = exchange.throttler
    if throttler is None or not exchange.in_line:
        return b": running waited_s=%d\n\n" % int(waited_s)
    position = throttler.position_of(exchange)
    state = b"starting" if throttler.table.capacity == 0 else b"queued"
    said = (state, position, throttler.waiting(), int(waited_s), throttler.expected_s(position))
    return b": %b position=%d waiting=%d waited_s=%d expected_s=%d\n\n" % said


def _is_stream(head: ResponseHead) -> bool:
    if head.status != 200 or not head.has_body:
        return False
    if not (head.headers.get(b"content-type") or b"").lower().startswith(_EVENTS):
        return False
    return (head.headers.get(b"content-encoding") or b"identity").lower() == b"identity"
