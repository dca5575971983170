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
from activator.telemetry.log_entry import Entry
from activator.telemetry.log_template import template_fields
from activator.telemetry.log_writer import LogWriter

CLIENT_GONE_STATUS: Final = 499

_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

Later = Callable[[float, Callable[[], None]], object]
_FROM_HEADERS: Final = frozenset({"request_id", "trace_id", "user_agent", "referer"})


class AccessLog(ExchangeObserver):
    """`wall` is the time of day in seconds since 1970; `later` the loop's call_later."""

    def __init__(
        self, kind: str, wall: Now, later: Later, writer: LogWriter, failed: Callable[[Exception], None]
    ) -> None:
        self.kind = kind
        self._format = LineFormat(kind)
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
            form = self._format
            line = form.line(entry_of(exchange, client, self._clock.text(), form.with_headers))
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


def entry_of(exchange: ProxiedExchange, client: ClientStream, now: str, with_headers: bool) -> Entry:
    """What there is to say of a request that is over; of its headers only where somebody wants it."""
    head = exchange.head
    lease = exchange.last_lease
    reason = exchange.reason
    key = exchange.revision_key()
    slash = key.find("/")
    status = int(exchange.status)
    if status == 0 and reason is Reason.CLIENT_GONE:
        status = CLIENT_GONE_STATUS
    client_ip = client.client_ip()
    if "%" in client_ip:
        client_ip = client_ip[: client_ip.index("%")]  # a zone may be any text
    entry = Entry(
        now,
        client_ip,
        printable(head.method),
        printable(head.authority),
        printable(head.target),
        client.protocol(),
        status,
        round(exchange.done_s - exchange.arrived_s, 6),
        "" if reason is None else reason.value,
        key[:slash] if slash > 0 else "",
        key[slash + 1 :],
        "" if lease is None else lease.identity,
        "" if lease is None else lease.address,
        exchange.retries(),
        int(exchange.request_bytes),
        int(exchange.response_bytes),
    )
    _add_phases(entry, exchange)
    if with_headers:
        _add_headers(entry, head.headers.block)
    return entry


def _add_headers(entry: Entry, block: bytes) -> None:
    lowered = block.lower()
    entry.request_id = _printable_field(block, lowered, b"\r\nx-request-id:")
    entry.user_agent = _printable_field(block, lowered, b"\r\nuser-agent:")
    entry.referer = _printable_field(block, lowered, b"\r\nreferer:")
    entry.trace_id = trace_id_of(_field(block, lowered, b"\r\ntraceparent:"))


def _field(block: bytes, lowered: bytes, start: bytes) -> bytes:
    """Fields.get, for several of one block that has been lowered once."""
    place = lowered.find(start)
    if place < 0:
        return b""
    place += len(start)
    end = block.find(b"\r\n", place)
    return block[place : end if end >= 0 else len(block)].strip(b" \t")


def _printable_field(block: bytes, lowered: bytes, start: bytes) -> str:
    value = _field(block, lowered, start)
    return printable(value) if value else ""


def _add_phases(entry: Entry, exchange: ProxiedExchange) -> None:
    granted_s = exchange.granted_s
    first_byte_s = exchange.first_byte_s
    if first_byte_s > 0.0:
        entry.first_byte_s = round(first_byte_s - exchange.arrived_s, 6)
    if exchange.queued_s > 0.0:
        until_s = granted_s if granted_s > 0.0 else exchange.done_s
        entry.wait_s = round(until_s - exchange.queued_s, 6)
    if exchange.connected_s > 0.0 and granted_s > 0.0:
        entry.connect_s = round(max(exchange.connected_s - granted_s, 0.0), 6)
    start = exchange.start
    if start is not None:
        entry.cold = True
        if first_byte_s > 0.0:
            phases = start.phases(exchange.arrived_s, granted_s, exchange.connected_s, first_byte_s)
            entry.start_s = round(phases.start_s, 6)
            entry.ready_s = round(phases.ready_s, 6)


class LineFormat:
    """Makes the lines of one kind. Raises TemplateError."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._encode = msgspec.json.Encoder().encode
        self._fields = [] if kind in {"json", "common"} else template_fields(kind)
        self.with_headers: bool = kind == "json" or not _FROM_HEADERS.isdisjoint(self._fields)

    def line(self, entry: Entry) -> str:
        if self._kind == "json":
            return self._encode(entry).decode()
        if self._kind == "common":
            return _common(entry)
        return self._kind.format_map({field: _shown(getattr(entry, field)) for field in self._fields})


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


def printable(value: bytes) -> str:
    """What a peer sent, as text without anything that does more than to be seen."""
    text = value[:ACCESS_LOG_FIELD_MAX].decode("utf-8", "backslashreplace")
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def trace_id_of(traceparent: bytes) -> str:
    """The second part of a W3C traceparent; empty unless it is one."""
    if len(traceparent) < 55:
        return ""
    trace_id = traceparent[3:35]
    if trace_id.translate(None, b"0123456789abcdef") or trace_id == b"0" * 32 or traceparent[2:3] != b"-":
        return ""
    return trace_id.decode()


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
