"""The access log: one line for each request that has ended, as json, common, knative, or by a template.

Rules
  1. An entry is exactly one line: no control character, line end or direction mark that a client sent gets into it;
     characters that are not printable are escaped. A field is truncated to ACCESS_LOG_FIELD_MAX.
  2. The log never blocks the loop, and its failures never affect the request: lines are buffered and written in
     batches; if the writer cannot keep up, whole lines are dropped and counted.
  3. The lines of one turn of the loop are made together at its end, after the responses were written: the code is then
     in the processor's cache, which saves 0.2 of 17 us per request.
  4. Input that could not be parsed as a request has no line; `activator_refused_requests_total` counts it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from mypy_extensions import i64

from activator.config.log_template import KNATIVE, REQUEST_TEMPLATE, template_fields
from activator.data_plane.exchange import Exchange
from activator.data_plane.headers.trace_context import trace_id_of
from activator.data_plane.proxy.accounting import ExchangeObserver
from activator.data_plane.streams import ClientStream
from activator.data_plane.usage import Usage
from activator.runtime.clock import Defer, Later, Now
from activator.runtime.line_writer import LineWriter
from activator.runtime.units import KIB
from activator.telemetry.logs.entry import Entry
from activator.telemetry.logs.fields import (
    LoggedHeaders,
    grpc_status_of,
    printable,
    reason_of,
    shown_target,
    status_of,
    without_zone,
)
from activator.telemetry.logs.json_line import JsonLine
from activator.telemetry.logs.request_template import RequestTemplate, knative_template

ACCESS_LOG_BATCH_S: Final = 0.05  # the longest time that lines are buffered
ACCESS_LOG_BATCH_BYTES: Final = 512 * KIB  # the size of a batch; few batches, because waking the writer is expensive
ACCESS_LOG_TURN_MAX: Final = 128  # ended requests that wait for the end of the turn to be logged

_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

_FROM_HEADERS: Final = frozenset({"request_id", "trace_id", "user_agent", "referer"})


class AccessLog(ExchangeObserver):
    """The access log in one format.

    `wall` returns the time of day in seconds since 1970; `defer` and `later` are the loop's call_soon and call_later.
    """

    def __init__(
        self, kind: str, wall: Now, defer: Defer, later: Later, writer: LineWriter, failed: Callable[[Exception], None]
    ) -> None:
        self.kind = kind
        self._format = LineFormat(kind)
        self._clock = _WallClock(wall)
        self._defer = defer
        self._later = later
        self._writer = writer
        self._failed = failed
        self._exchanges: list[Exchange] = []  # the requests that ended in this turn
        self._clients: list[ClientStream] = []  # their clients, in the same order
        # Lines are encoded one by one while they are in the cache, 0.16 us each; joining and encoding them per batch
        # would take 0.48 us each.
        self._batch = bytearray()
        self._flush_scheduled = False
        self._on_turn_end: Callable[[], None] = self._end_turn  # bound once
        self.dropped_total = 0

    def ended(self, exchange: Exchange, client: ClientStream) -> None:
        exchanges = self._exchanges
        if not exchanges:
            self._defer(self._on_turn_end)
        exchanges.append(exchange)
        self._clients.append(client)
        if len(exchanges) >= ACCESS_LOG_TURN_MAX:
            self._end_turn()

    def flush(self) -> None:
        """Pass the buffered lines to the writer."""
        self._gather()
        if self._batch:
            batch = self._batch
            self._batch = bytearray()
            try:
                self._writer.write(batch)
            except Exception as error:  # the writer could not start its thread
                self.dropped_total += batch.count(b"\n")
                self._failed(error)

    def _end_turn(self) -> None:
        """Make the lines of this turn, and flush them now or at the next time for that."""
        self._gather()
        if len(self._batch) >= ACCESS_LOG_BATCH_BYTES:
            self.flush()
        elif self._batch and not self._flush_scheduled:
            self._flush_scheduled = True
            self._later(ACCESS_LOG_BATCH_S, self._flush_on_time)

    def _flush_on_time(self) -> None:
        self._flush_scheduled = False
        self.flush()

    def _gather(self) -> None:
        """Make the lines of the requests that have ended; drop those for which the writer has no room."""
        exchanges = self._exchanges
        if not exchanges:
            return
        clients = self._clients
        self._exchanges = []
        self._clients = []
        batch = self._batch
        room: i64 = self._writer.room_bytes
        time_text = self._clock.text()
        for index, exchange in enumerate(exchanges):
            if len(batch) > room:
                self.dropped_total += 1
                continue
            try:
                batch += self._format.line(exchange, clients[index], time_text).encode()
            except Exception as error:
                self.dropped_total += 1
                self._failed(error)


def entry_of(exchange: Exchange, client: ClientStream, now: str, with_headers: bool) -> Entry:
    """Return the entry of a request that has ended, with fields from its headers only if `with_headers`."""
    head = exchange.head
    lease = exchange.last_lease
    key = exchange.revision_key()
    slash = key.find("/")
    entry = Entry(
        now,
        without_zone(client.client_ip()),
        printable(head.method),
        printable(head.authority),
        shown_target(head.target),
        client.protocol(),
        status_of(exchange),
        round(exchange.done_s - exchange.arrived_s, 6),
        "" if exchange.access is None else exchange.access.name(),
        grpc_status_of(exchange),
        reason_of(exchange),
        key[:slash] if slash > 0 else "",
        key[slash + 1 :],
        "" if lease is None else lease.identity,
        "" if lease is None else lease.address,
        exchange.pod_protocol,
        "" if exchange.first_throttler is None else exchange.first_throttler.key,
        exchange.retries(),
        int(exchange.request_bytes),
        int(exchange.response_bytes),
    )
    _add_phases(entry, exchange)
    if exchange.usage is not None:
        _add_usage(entry, exchange.usage, exchange.arrived_s)
    if with_headers:
        _add_headers(entry, head.headers.block)
    return entry


def _add_headers(entry: Entry, block: bytes) -> None:
    logged = LoggedHeaders(block)
    entry.request_id = printable(logged.request_id)
    entry.user_agent = printable(logged.user_agent)
    entry.referer = printable(logged.referer)
    entry.trace_id = trace_id_of(logged.traceparent)


def _add_phases(entry: Entry, exchange: Exchange) -> None:
    """Add the durations of the phases that the request has reached."""
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


def _add_usage(entry: Entry, usage: Usage, arrived_s: float) -> None:
    tokens = usage.tokens
    if tokens is not None:
        entry.prompt_tokens, entry.completion_tokens, entry.cached_tokens = tokens
    if usage.first_event_s > 0.0:
        entry.first_token_s = round(usage.first_event_s - arrived_s, 6)
    per_s = usage.tokens_per_s()
    if per_s > 0.0:
        entry.tokens_per_s = round(per_s, 3)


class LineFormat:
    """The formatter of lines of one kind."""

    def __init__(self, kind: str) -> None:
        """Make a formatter. Raises TemplateError."""
        self._kind = kind
        self._json = JsonLine() if kind == "json" else None
        self._request_template: RequestTemplate | None = None
        self._fields: list[str] = []
        if kind == KNATIVE:
            self._request_template = RequestTemplate(knative_template())
        elif kind.startswith(REQUEST_TEMPLATE):
            self._request_template = RequestTemplate(kind.removeprefix(REQUEST_TEMPLATE))
        elif kind not in {"json", "common"}:
            self._fields = template_fields(kind)
        self._with_headers: bool = not _FROM_HEADERS.isdisjoint(self._fields)

    def line(self, exchange: Exchange, client: ClientStream, time_text: str) -> str:
        """Return the line of a request that has ended, including the line end."""
        if self._json is not None:
            return self._json.line(exchange, client, time_text)
        if self._request_template is not None:
            return f"{self._request_template.line(exchange, client)}\n"
        return f"{self.text(entry_of(exchange, client, time_text, self._with_headers))}\n"

    def text(self, entry: Entry) -> str:
        """Return the text of an entry, in a format other than JSON."""
        if self._kind == "common":
            return _common(entry)
        return self._kind.format_map({field: _template_value(getattr(entry, field)) for field in self._fields})


def _common(entry: Entry) -> str:
    """Return an entry in the Common Log Format, which many programs read."""
    time_of_day = f"{entry.time[8:10]}/{_MONTHS[int(entry.time[5:7]) - 1]}/{entry.time[:4]}:{entry.time[11:19]} +0000"
    request = f"{_quoted(entry.method)} {_quoted(entry.target)} {entry.protocol}"
    opening = f"{entry.client or '-'} - {entry.user or '-'} [{time_of_day}]"
    return f'{opening} "{request}" {entry.status} {entry.response_bytes or "-"}'


def _template_value(value: Any) -> str:
    """Return a field's value as text; a dash if it has none."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    return _quoted(str(value))


def _quoted(text: str) -> str:
    """Escape text for use between quotation marks."""
    return text.replace("\\", "\\\\").replace('"', '\\"')


class _WallClock:
    """The time of day as text, formatted once per millisecond, and down to the second once per second."""

    def __init__(self, wall: Now) -> None:
        self._wall = wall
        self._second: i64 = -1
        self._second_text = ""
        self._millisecond: i64 = -1
        self._text = ""

    def text(self) -> str:
        millisecond = i64(self._wall() * 1000.0)
        if millisecond != self._millisecond:
            self._millisecond = millisecond
            second: i64 = millisecond // 1000
            if second != self._second:
                self._second = second
                self._second_text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
            self._text = f"{self._second_text}.{str(millisecond - second * 1000 + 1000)[1:]}Z"
        return self._text
