"""Progress as comments of an event stream, for clients that accept one, until the pod responds.

    quiet ──(after)──► commenting: 200, and a comment per interval ──► the pod's events, or one event `error`
      └──► the pod's response, unchanged

Rules
  1. Until `after` has passed nothing changes: a fast response keeps its own status and fields.
  2. From the first comment on the status is 200. The body of a pod's 200 with an event stream follows; any other
     response, including a refusal, becomes one event `error`, and the stream ends. The fields of the pod's response are
     lost.
  3. This is a wrapper of the client only: queue, slots, retries and time limits do not change.
  4. No comment is sent to a client with a backlog, so that nothing accumulates.
"""

from __future__ import annotations

import json
from typing import Final, final

from activator.codec.message import UNKNOWN_LENGTH, Fields, Headers, RequestHead, ResponseHead
from activator.config.specs import ProgressSpec
from activator.data_plane.exchange import Exchange
from activator.data_plane.filters.filter import Filter
from activator.data_plane.streams import ClientWrapper
from activator.runtime.clock import Deadline, Now, TimingWheel
from activator.runtime.units import KIB

ERROR_BYTES_MAX: Final = 16 * KIB  # read of a response that becomes an error event
_EVENTS: Final = b"text/event-stream"
_ENCODINGS: Final = frozenset({b"accept-encoding"})

_QUIET: Final = 0  # nothing has been sent
_COMMENTING: Final = 1  # a 200 and comments have been sent
_FORWARDING: Final = 2  # the pod's data is forwarded
_FAILING: Final = 3  # the body becomes the text of an error event


def takes_events(head: RequestHead) -> bool:
    """Return True if the client accepts an event stream."""
    if head.method == b"HEAD":
        return False
    accept = head.headers.get(b"accept")
    return accept is not None and _EVENTS in accept.lower()


@final
class ProgressEvents(Filter):
    """The filter that wraps those clients of one revision that accept event streams."""

    def __init__(self, spec: ProgressSpec, wheel: TimingWheel, now: Now) -> None:
        self._spec = spec
        self._wheel = wheel
        self._now = now

    def on_request(self, request: Exchange) -> None:
        if request.is_detached or request.upgrade or not takes_events(request.head):
            return
        if not isinstance(request.client(), ProgressStream):  # a former revision may have wrapped it
            request.edit().remove(_ENCODINGS)  # the pod's events follow comments, which are not compressed
            request.wrap_client(ProgressStream(request, self._spec, self._wheel, self._now()))


@final
class ProgressStream(ClientWrapper):
    """The wrapper of one client, which sends comments until the pod responds."""

    def __init__(self, request: Exchange, spec: ProgressSpec, wheel: TimingWheel, now_s: float) -> None:
        super().__init__(request.client())
        self._exchange: Exchange | None = request
        self._spec = spec
        self._wheel = wheel
        self._state: int = _QUIET
        self._status: int = 0  # status, reason and body of an error event
        self._reason: bytes = b""
        self._text = bytearray()
        self._began_s = now_s
        self._tick: _Tick | None = _Tick(self)
        wheel.arm(self._tick, self._began_s + spec.after_s)

    def tick(self, now_s: float) -> None:
        """Send a comment, unless the request is incomplete or its client has a backlog; set the timer again."""
        exchange = self._exchange
        if exchange is None or self._tick is None or exchange.over:
            return
        self._wheel.arm(self._tick, now_s + self._spec.interval_s)
        if not exchange.request_done or exchange.is_client_full():
            return
        client = self.client
        if self._state == _QUIET:
            self._state = _COMMENTING
            client.send_head(_stream_head())
        client.send_body(_comment(exchange, now_s - self._began_s))
        client.flush()

    def stop(self) -> None:
        self._stop_comments()
        super().stop()

    def _stop_comments(self) -> None:
        """Send no more comments, because the pod responds or the request has ended."""
        if self._tick is not None:
            self._wheel.cancel(self._tick)
            self._tick.stream = None
            self._tick = None
        self._exchange = None  # avoid a reference cycle

    # --- the response ---

    def send_interim(self, head: ResponseHead) -> None:
        if self._state == _QUIET:
            self.client.send_interim(head)

    def send_head(self, head: ResponseHead) -> None:
        self._stop_comments()
        if self._state == _QUIET:
            self._state = _FORWARDING
            self.client.send_head(head)
        elif _is_event_stream(head):
            self._state = _FORWARDING
        else:
            self._state = _FAILING
            self._status = head.status
            self._reason = head.headers.get(b"activator-reason") or b""

    def send_body(self, data: bytes) -> None:
        if self._state == _FORWARDING:
            self.client.send_body(data)
        elif len(self._text) < ERROR_BYTES_MAX:
            self._text += data[: ERROR_BYTES_MAX - len(self._text)]

    def send_end(self, trailers: Headers) -> None:
        if self._state == _FAILING:
            self._state = _FORWARDING
            self.client.send_body(self._error())
            trailers = []
        self.client.send_end(trailers)

    def abort(self) -> None:
        self._stop_comments()
        self.client.abort()

    def _error(self) -> bytes:
        """Return the event `error` for a response."""
        text = self._text.decode("utf-8", "replace").strip()
        error = {
            "message": text or f"the response has status {self._status} and no body",
            "type": self._reason.decode("latin-1") or "upstream_status",
            "code": self._status,
        }
        return b"event: error\ndata: %b\n\n" % json.dumps({"error": error}).encode()


@final
class _Tick(Deadline):
    """The timer of the comments of one stream, until the stream stops."""

    def __init__(self, stream: ProgressStream) -> None:
        super().__init__()
        self.stream: ProgressStream | None = stream

    def expired(self, now_s: float) -> None:
        if self.stream is not None:
            self.stream.tick(now_s)


def _stream_head() -> ResponseHead:
    headers: Headers = [
        (b"Content-Type", _EVENTS),
        (b"Cache-Control", b"no-store"),
        (b"X-Accel-Buffering", b"no"),  # proxies in front of this one must forward comments at once
    ]
    return ResponseHead(200, b"OK", Fields.from_pairs(headers), UNKNOWN_LENGTH, True)


def _comment(exchange: Exchange, waited_s: float) -> bytes:
    """Return the comment about a request that has waited for `waited_s`."""
    throttler = exchange.throttler
    if throttler is None or not exchange.place.is_queued:
        return b": running waited_s=%d\n\n" % int(waited_s)
    position = throttler.queue.position_of(exchange.place)
    state = b"starting" if throttler.table.capacity == 0 else b"queued"
    values = (state, position, throttler.queue.waiting(), int(waited_s), throttler.queue.expected_s(position))
    return b": %b position=%d waiting=%d waited_s=%d expected_s=%d\n\n" % values


def _is_event_stream(head: ResponseHead) -> bool:
    """Return True for a 200 with an event stream without a content coding."""
    if head.status != 200 or not head.has_body:
        return False
    if not (head.headers.get(b"content-type") or b"").lower().startswith(_EVENTS):
        return False
    return (head.headers.get(b"content-encoding") or b"identity").lower() == b"identity"
