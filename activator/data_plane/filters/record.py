"""Records of a revision's requests: tokens, times and captures.

Rules
  1. Tokens are counted in responses to POST whose content type is JSON or an event stream, without a content coding:
     a response that is fetched again with GET counts once.
  2. Each request that its revision counts has one record, whatever its end. A request that falls back is recorded and
     captured as the last revision is configured.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from activator.codec.message import RequestHead, ResponseHead
from activator.codec.token_counts import TokenScan
from activator.config.specs import RecordSpec
from activator.data_plane.body_watcher import BodyWatcher
from activator.data_plane.captures import CaptureStore
from activator.data_plane.exchange import Exchange
from activator.data_plane.filters.activity import is_comment
from activator.data_plane.filters.filter import Filter
from activator.data_plane.throttle.counters import RevisionCounters
from activator.data_plane.throttle.last_requests import RequestRecord
from activator.data_plane.usage import Usage
from activator.runtime.clock import Now

TARGET_BYTES_MAX: Final = 256  # longer targets are truncated in records
METHOD_BYTES_MAX: Final = 32
LINE_BYTES_READ: Final = 32  # the beginning of a line shows if it has data, or `[DONE]`

_EVENT_STREAM: Final = b"text/event-stream"
_DONE: Final = b"[DONE]"
_JSON: Final = b"application/json"
_SEARCHED: Final = frozenset(
    [_EVENT_STREAM, _JSON, b"application/x-ndjson", b"application/ndjson", b"application/jsonl"]
)
_QUEUE_TIME: Final = b"activator-queue-time"


@final
class Record(Filter):
    """The records of one revision. It adds captures to `captures`."""

    def __init__(self, spec: RecordSpec, captures: CaptureStore, now: Now) -> None:
        self._spec = spec
        self._captures = captures
        self._now = now

    def on_request(self, request: Exchange) -> None:
        spec, throttler = self._spec, request.throttler
        if throttler is None:
            return
        if spec.tokens:
            throttler.counters.traffic.token_traffic()  # Prometheus' `rate` needs a zero before the first count
        if spec.capture_bytes == 0:
            return
        capture = self._captures.begin(throttler.key, spec.capture_bytes, spec.capture_keep_s)
        if capture is not None:
            request.capture = capture
            request.watch(capture)
            capture.add_request(_request_head(request.head), request.body())

    def on_response(self, request: Exchange, head: ResponseHead) -> None:
        if self._spec.tokens:
            wait_s = max(request.granted_s - request.asked_for_slot_s, 0.0)
            fields = head.headers
            if fields.get(_QUEUE_TIME) is not None:
                fields = fields.without(frozenset([_QUEUE_TIME]))
            head.headers = fields.with_line(b"Activator-Queue-Time", b"%.6f" % wait_s)
            count_tokens(request, head, self._now)
        capture = request.capture
        if capture is not None:
            capture.add_response_head(b"%d%b" % (head.status, head.headers.block))

    def on_end(self, request: Exchange) -> None:
        throttler = request.throttler
        if throttler is None or request.is_handed_over:
            return
        counters = throttler.counters
        if self._spec.tokens:
            _add_tokens(request, counters)
        last_requests = counters.last_requests
        if last_requests is None:
            return
        capture, number = request.capture, self._captures.next_number()
        if capture is not None:
            capture.keep(number)
        last_requests.add(record_of(request, number))


@final
class UsageWatch(BodyWatcher):
    """The search for tokens in the response of one request. `content_type`: its content type."""

    def __init__(self, usage: Usage, content_type: bytes, now: Now) -> None:
        super().__init__()
        self._usage = usage
        self._is_stream: bool = content_type == _EVENT_STREAM
        self._scan = TokenScan(has_lines=content_type != _JSON)
        self._now = now
        self._in_comment: bool = False  # the last line is an incomplete comment
        self._in_data: bool = False  # the last line is incomplete, and no comment
        self._line: bytes = b""  # the beginning of the last line, if it is incomplete
        self._has_data: bool = False  # the last event, which is incomplete, has data
        self._events: i64 = 0

    def pod_sent(self, data: bytes) -> None:
        if self._is_stream:
            self._count_events(data)
            if self._scan_for_event(data):
                usage = self._usage
                usage.last_event_s = self._now()
                if usage.first_event_s == 0.0:
                    usage.first_event_s = usage.last_event_s
        self._scan.feed(data)

    def _count_events(self, data: bytes) -> None:
        """Count the complete events, however they are split; not comments, and not the `[DONE]` at the end."""
        begin: i64 = 0
        end: i64 = data.find(b"\n")
        if self._line == b"" and end == len(data) - 2 and data.startswith(b"data: {") and data.endswith(b"\n\n"):
            self._has_data = False
            self._events += 1  # the usual event, whole
            self._usage.events = int(self._events)
            return
        while end >= 0:
            line = self._line + data[begin : min(end, begin + LINE_BYTES_READ)]
            self._line = b""
            if line == b"" or line == b"\r":
                if self._has_data:
                    self._events += 1
                self._has_data = False
                self._usage.events = max(int(self._events), 1)
            elif not self._has_data and line.startswith(b"data:"):
                value = line[5:].strip()
                self._has_data = value != b"" and value != _DONE
            begin = end + 1
            end = data.find(b"\n", begin)
        if len(self._line) < LINE_BYTES_READ:
            self._line += data[begin : begin + LINE_BYTES_READ]

    def stop(self) -> None:
        self._usage.tokens = self._scan.counts()

    def _scan_for_event(self, data: bytes) -> bool:
        """Return True if the data has more than comments and empty lines; remember the kind of an incomplete line."""
        has_event = self._in_data and len(data) > 0
        begin: i64 = 0
        if self._in_comment or self._in_data:
            begin = data.find(b"\n") + 1
            if begin == 0:
                return has_event
        rest = data[begin:]
        last = rest[rest.rfind(b"\n") + 1 :]
        self._in_comment = last.startswith(b":")
        self._in_data = len(last) > 0 and not self._in_comment
        return has_event or not is_comment(rest)


def count_tokens(request: Exchange, head: ResponseHead, now: Now) -> None:
    """Search the response for the tokens that the pod reports (rule 1), unless another filter has begun that."""
    if request.usage is None and request.head.method == b"POST" and head.status < 400:
        content_type = _searched_type(head)
        if content_type:
            usage = request.usage = Usage()
            request.watch(UsageWatch(usage, content_type, now))


def _add_tokens(request: Exchange, counters: RevisionCounters) -> None:
    """Add the tokens of an ended request to its revision and its user."""
    usage = request.usage
    if usage is None:
        return
    traffic = counters.traffic.token_traffic()
    if usage.first_event_s > 0.0:
        traffic.first_token.observe(usage.first_event_s - request.arrived_s)
    tokens = usage.tokens
    if tokens is None:
        return
    access = request.access
    user = None if access is None else access.user
    traffic.add(tokens, "" if user is None else user.name)
    output_token_s = usage.output_token_s()
    if output_token_s > 0.0:
        traffic.output_token.observe(output_token_s)
    if user is not None:
        user.totals.prompt_tokens += tokens.prompt
        user.totals.completion_tokens += tokens.completion


def record_of(request: Exchange, number: int) -> RequestRecord:
    """Return the record of a request that has ended."""
    head = request.head
    reason = request.reason
    lease = request.last_lease
    first = request.first_throttler
    access = request.access
    usage = request.usage
    arrived_s, granted_s = request.arrived_s, request.granted_s
    connected_s, first_byte_s = request.connected_s, request.first_byte_s
    wait_s = start_s = ready_s = first_token_s = output_token_s = None
    if request.queued_s > 0.0:
        wait_s = (granted_s if granted_s > 0.0 else request.done_s) - request.queued_s
    if request.start is not None and first_byte_s > 0.0:
        phases = request.start.phases(arrived_s, granted_s, connected_s, first_byte_s)
        start_s, ready_s = phases.start_s, phases.ready_s
    if usage is not None and usage.first_event_s > 0.0:
        first_token_s = usage.first_event_s - arrived_s
        output_token_s = usage.output_token_s() or None
    return RequestRecord(
        number,
        request.revision_key(),
        request.done_s,
        head.method[:METHOD_BYTES_MAX].decode("ascii", "replace"),
        head.target[:TARGET_BYTES_MAX].decode("ascii", "replace"),
        int(request.status),
        "" if reason is None else reason.value,
        "" if access is None else access.name(),
        "" if lease is None else lease.address,
        "" if first is None else first.key,
        request.retries(),
        request.done_s - arrived_s,
        wait_s,
        start_s,
        ready_s,
        connected_s - granted_s if connected_s >= granted_s > 0.0 else None,
        first_byte_s - arrived_s if first_byte_s > 0.0 else None,
        first_token_s,
        output_token_s,
        None if usage is None else usage.tokens,
        int(request.request_bytes),
        int(request.response_bytes),
        request.capture is not None,
    )


def _searched_type(head: ResponseHead) -> bytes:
    """Return the content type of a response that may report tokens; b"" for others."""
    coding = head.headers.get(b"content-encoding")
    content_type = (head.headers.get(b"content-type") or b"").partition(b";")[0].strip().lower()
    return content_type if content_type in _SEARCHED and (coding is None or coding == b"identity") else b""


def _request_head(head: RequestHead) -> bytes:
    return b"%b %b%b" % (head.method, head.target, head.headers.block)
