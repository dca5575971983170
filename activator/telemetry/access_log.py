"""One line for each request that had a place in the program, when it is over: json, common, or a user's template.

Rules
  1. A line is a line: whatever a client sent, no control character, line end or direction mark gets into it; what
     cannot be printed stands as an escape. A field is cut at ACCESS_LOG_FIELD_MAX.
  2. Nothing here blocks the loop, and a failure here never reaches the request: lines are gathered and written in
     batches by a thread; when that cannot keep up, whole lines are dropped and counted.
  3. What could not be parsed as a request has no line; `activator_refused_requests_total` counts it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

from activator.clock import Now
from activator.config import ACCESS_LOG_BATCH_BYTES, ACCESS_LOG_BATCH_S, ACCESS_LOG_FIELD_MAX
from activator.errors import Reason
from activator.exchange import ClientStream, Exchange
from activator.proxy import ExchangeObserver, ProxiedExchange
from activator.telemetry.log_template import template_fields
from activator.telemetry.log_writer import LogWriter

CLIENT_GONE_STATUS: Final = 499

_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

Later = Callable[[float, Callable[[], None]], object]
Format = Callable[["Entry"], str]


class Entry(msgspec.Struct, omit_defaults=True, gc=False):
    """One request, in the order of the fields in a JSON line; what does not apply is left out there."""

    time: str
    client: str
    method: str
    host: str
    target: str
    protocol: str
    status: int
    duration_s: float
    reason: str = ""
    namespace: str = ""
    revision: str = ""
    pod: str = ""
    address: str = ""
    retries: int = 0
    request_bytes: int = 0
    response_bytes: int = 0
    first_byte_s: float | None = None
    wait_s: float | None = None
    connect_s: float | None = None
    cold: bool = False
    start_s: float | None = None
    ready_s: float | None = None
    request_id: str = ""
    trace_id: str = ""
    user_agent: str = ""
    referer: str = ""


class AccessLog(ExchangeObserver):
    """`wall` is the time of day in seconds since 1970; `later` the loop's call_later."""

    def __init__(
        self, kind: str, wall: Now, later: Later, writer: LogWriter, failed: Callable[[Exception], None]
    ) -> None:
        self.kind = kind
        self._format = format_of(kind)
        self._clock = _WallClock(wall)
        self._later = later
        self._writer = writer
        self._failed = failed
        self._lines: list[str] = []
        self._gathered = 0  # characters
        self._flush_ordered = False
        self.dropped_total = 0

    def ended(self, exchange: Exchange, client: ClientStream) -> None:
        if not isinstance(exchange, ProxiedExchange):
            return
        if not self._writer.has_room(self._gathered):
            self.dropped_total += 1
            return
        try:
            line = self._format(entry_of(exchange, client, self._clock.text()))
        except Exception as error:
            self.dropped_total += 1
            self._failed(error)
            return
        self._lines.append(line)
        self._gathered += len(line)
        if self._gathered >= ACCESS_LOG_BATCH_BYTES:
            self.flush()
        elif not self._flush_ordered:
            self._flush_ordered = True
            self._later(ACCESS_LOG_BATCH_S, self._flush_ordered_now)

    def flush(self) -> None:
        """Hand over what has been gathered."""
        if self._lines:
            self._lines.append("")  # the last line ends too
            batch = "\n".join(self._lines).encode()
            self._lines.clear()
            self._gathered = 0
            self._writer.write(batch)

    def _flush_ordered_now(self) -> None:
        self._flush_ordered = False
        self.flush()


def entry_of(exchange: ProxiedExchange, client: ClientStream, now: str) -> Entry:
    """What there is to say of a request that is over."""
    head = exchange.head
    get = head.headers.get
    lease = exchange.last_lease
    namespace, _, name = exchange.revision_key().partition("/")
    entry = Entry(
        now,
        client.client_ip().partition("%")[0],  # a zone may be any text
        printable(head.method),
        printable(head.authority),
        printable(head.target),
        client.protocol(),
        int(exchange.status),
        _rounded(exchange.done_s - exchange.arrived_s),
        "" if exchange.reason is None else exchange.reason.value,
        namespace,
        name,
        "" if lease is None else lease.identity,
        "" if lease is None else lease.address,
        exchange.retries(),
        int(exchange.request_bytes),
        int(exchange.response_bytes),
    )
    if exchange.reason is Reason.CLIENT_GONE and entry.status == 0:
        entry.status = CLIENT_GONE_STATUS
    entry.request_id = printable(get(b"x-request-id"))
    entry.user_agent = printable(get(b"user-agent"))
    entry.referer = printable(get(b"referer"))
    entry.trace_id = trace_id_of(get(b"traceparent"))
    _add_phases(entry, exchange)
    return entry


def _add_phases(entry: Entry, exchange: ProxiedExchange) -> None:
    if exchange.first_byte_s > 0.0:
        entry.first_byte_s = _rounded(exchange.first_byte_s - exchange.arrived_s)
    if exchange.queued_s > 0.0:
        until_s = exchange.granted_s if exchange.granted_s > 0.0 else exchange.done_s
        entry.wait_s = _rounded(until_s - exchange.queued_s)
    if exchange.connected_s > 0.0 and exchange.granted_s > 0.0:
        entry.connect_s = _rounded(max(exchange.connected_s - exchange.granted_s, 0.0))
    if exchange.start is not None:
        entry.cold = True
        if exchange.first_byte_s > 0.0:
            phases = exchange.start.phases(
                exchange.arrived_s, exchange.granted_s, exchange.connected_s, exchange.first_byte_s
            )
            entry.start_s = _rounded(phases.start_s)
            entry.ready_s = _rounded(phases.ready_s)


def format_of(kind: str) -> Format:
    """Raises TemplateError."""
    if kind == "json":
        encoder = msgspec.json.Encoder()
        return lambda entry: encoder.encode(entry).decode()
    if kind == "common":
        return _common
    fields = template_fields(kind)
    return lambda entry: kind.format_map({field: _shown(getattr(entry, field)) for field in fields})


def _common(entry: Entry) -> str:
    """The common log format of old, which many programs read."""
    time_of_day = f"{entry.time[8:10]}/{_MONTHS[int(entry.time[5:7]) - 1]}/{entry.time[:4]}:{entry.time[11:19]} +0000"
    request = f"{_quoted(entry.method)} {_quoted(entry.target)} {entry.protocol}"
    return f'{entry.client or "-"} - - [{time_of_day}] "{request}" {entry.status} {entry.response_bytes or "-"}'


def _shown(value: Any) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    return _quoted(str(value))


def _quoted(text: str) -> str:
    """So that it may stand between quotation marks, whoever has put them there."""
    return text.replace("\\", "\\\\").replace('"', '\\"')


def printable(value: bytes | None) -> str:
    """What a peer sent, as text without anything that does more than to be seen."""
    if not value:
        return ""
    text = value[:ACCESS_LOG_FIELD_MAX].decode("utf-8", "backslashreplace")
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def trace_id_of(traceparent: bytes | None) -> str:
    """The second part of a W3C traceparent; empty unless it is one."""
    if traceparent is None or len(traceparent) < 55:
        return ""
    trace_id = traceparent[3:35]
    if trace_id.translate(None, b"0123456789abcdef") or trace_id == b"0" * 32 or traceparent[2:3] != b"-":
        return ""
    return trace_id.decode()


def _rounded(seconds: float) -> float:
    return round(seconds, 6)


class _WallClock:
    """The time of day as text; the part down to the second is made once a second."""

    def __init__(self, wall: Now) -> None:
        self._wall = wall
        self._second = -1
        self._text = ""

    def text(self) -> str:
        now_s = self._wall()
        second = int(now_s)
        if second != self._second:
            self._second = second
            self._text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        return f"{self._text}.{int((now_s - second) * 1000.0):03d}Z"
