"""Tracking of WebSockets and event streams without traffic, which do not count as activity of their revision.

Rules
  1. A watched request without traffic for a configured time is *dormant*: it does not count as load, so its program may
     go to sleep. After new traffic it counts again, from the next check on.
  2. Keep-alives are not traffic: pings and pongs of a WebSocket, and comments of an event stream.
  3. A dormant request whose pod drains is ended, because it would delay the drain for nothing.
  4. Requests that are not watched cost one check for None.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from activator.codec.message import ResponseHead
from activator.data_plane.body_watcher import BodyWatcher
from activator.data_plane.buffering import is_response_streamed
from activator.data_plane.exchange import Exchange
from activator.data_plane.filters.filter import Filter
from activator.data_plane.throttle.revision import RevisionThrottler
from activator.runtime.clock import Now, TimingWheel
from activator.runtime.reasons import Reason
from lb.tracker import DRAINING

DORMANT_CHECK_S: Final = 1.0  # interval of the check of a watched request
COMMENT_BYTES_MAX: Final = 256  # longer data is not searched for comments

_CONTROL: Final = 0x8  # the first opcode of control frames
_CLOSE: Final = 0x8  # opcode of the only control frame that counts as traffic
_PAYLOAD_16: Final = 126
_PAYLOAD_64: Final = 127
_LENGTH_MASK: Final = (1 << 62) - 1  # fits an i64; longer frames do not exist


@final
class FrameScanner:
    """The frame parser of one direction of a WebSocket (RFC 6455 5.2), which skips pings and pongs."""

    def __init__(self) -> None:
        self._head = bytearray()  # the incomplete head of the next frame
        self._payload_left: i64 = 0  # remaining payload bytes of the current frame
        self._is_traffic: bool = False  # the current frame counts as traffic

    def feed(self, data: bytes) -> bool:
        """Return True if any of the bytes count as traffic."""
        has_traffic = False
        pos: i64 = 0
        size: i64 = len(data)
        while pos < size:
            if self._payload_left > 0:
                step = min(self._payload_left, size - pos)
                self._payload_left -= step
                pos += step
                has_traffic = has_traffic or self._is_traffic
                continue
            self._head.append(data[pos])
            pos += 1
            if self._parse_head():
                has_traffic = has_traffic or self._is_traffic
        return has_traffic

    def _parse_head(self) -> bool:
        """Return True, and begin the payload, if the head of the frame is complete."""
        head = self._head
        if len(head) < 2:
            return False
        length: i64 = head[1] & 0x7F
        extended: i64 = 2 if length == _PAYLOAD_16 else 8 if length == _PAYLOAD_64 else 0
        mask: i64 = 4 if head[1] & 0x80 else 0
        if len(head) < 2 + extended + mask:
            return False
        if extended > 0:
            length = int.from_bytes(bytes(head[2 : 2 + extended]), "big") & _LENGTH_MASK
        opcode = head[0] & 0x0F
        self._is_traffic = opcode < _CONTROL or opcode == _CLOSE
        self._payload_left = length
        self._head = bytearray()
        return True


@final
class ActivityTracking(Filter):
    """The watch over the tunnels and streams of one revision. `…_s`: time without traffic until dormant; 0.0: never."""

    def __init__(self, quiet_tunnels_s: float, quiet_streams_s: float, wheel: TimingWheel, now: Now) -> None:
        self._quiet_tunnels_s = quiet_tunnels_s
        self._quiet_streams_s = quiet_streams_s
        self._wheel = wheel
        self._now = now

    def on_response(self, request: Exchange, head: ResponseHead) -> None:
        throttler = request.throttler
        if throttler is None or request.is_quiet:
            return
        is_websocket = head.status == 101 and b"websocket" in request.upgrade
        quiet_s = 0.0
        if head.status == 101:
            quiet_s = self._quiet_tunnels_s
        elif self._quiet_streams_s > 0.0 and is_response_streamed(head):
            quiet_s = self._quiet_streams_s
        if quiet_s > 0.0:
            request.watch(ActivityWatch(request, throttler, quiet_s, is_websocket, self._wheel, self._now()))


@final
class ActivityWatch(BodyWatcher):
    """The traffic watch of one tunnel or stream."""

    def __init__(
        self,
        request: Exchange,
        throttler: RevisionThrottler,
        quiet_s: float,
        is_websocket: bool,
        wheel: TimingWheel,
        now_s: float,
    ) -> None:
        super().__init__()
        self._request: Exchange | None = request
        self._throttler = throttler
        self._quiet_s = quiet_s
        self._wheel = wheel
        self._traffic_s: float = now_s  # time of the last traffic
        self._has_traffic: bool = False  # since the last check, which sets `_traffic_s`
        self._is_dormant: bool = False
        self._from_client: FrameScanner | None = None  # set for a WebSocket, like the next one
        self._from_pod: FrameScanner | None = None
        if is_websocket:
            self._from_client, self._from_pod = FrameScanner(), FrameScanner()
        wheel.arm(self, now_s + min(quiet_s, DORMANT_CHECK_S))

    def client_sent(self, data: bytes) -> None:
        scanner = self._from_client
        if scanner is None or scanner.feed(data):
            self._has_traffic = True

    def pod_sent(self, data: bytes) -> None:
        scanner = self._from_pod
        if scanner.feed(data) if scanner is not None else not is_comment(data):
            self._has_traffic = True

    def expired(self, now_s: float) -> None:
        request = self._request
        if request is None or request.over:
            return
        if self._has_traffic:
            self._has_traffic = False
            self._traffic_s = now_s
            if self._is_dormant:
                self._wake(request, now_s)
        elif not self._is_dormant and now_s - self._traffic_s >= self._quiet_s:
            self._is_dormant = True
            request.is_quiet = True
            self._throttler.counters.quiet += 1
            self._throttler.counters.traffic.ended(now_s)
        if self._is_dormant and _is_pod_draining(request):
            request.revoked(Reason.POD_REMOVED, "")
            return
        self._wheel.arm(self, now_s + min(self._quiet_s, DORMANT_CHECK_S))

    def _wake(self, request: Exchange, now_s: float) -> None:
        """Count a dormant request as load again."""
        self._is_dormant = False
        request.is_quiet = False
        self._throttler.counters.quiet -= 1
        self._throttler.counters.traffic.begun(now_s)
        self._throttler.activate()

    def stop(self) -> None:
        self._wheel.cancel(self)
        self._request = None


def is_comment(data: bytes) -> bool:
    """Return True if the data consists of comments and empty lines of an event stream only."""
    if len(data) > COMMENT_BYTES_MAX:
        return False
    return all(line.startswith(b":") or not line for line in data.splitlines())


def _is_pod_draining(request: Exchange) -> bool:
    lease = request.lease
    return lease is not None and lease.tracker.generation == lease.generation and lease.tracker.state == DRAINING
