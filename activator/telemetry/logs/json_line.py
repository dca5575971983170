"""Access log lines in JSON, joined from cached pieces: 1 us per line, where a JSON library takes 5.

Rules
  1. Pieces that repeat are cached: the time of a millisecond, a pod, and the last request of each client, because
     clients tend to repeat their headers. Each cache is bounded, and cleared when it is full.
  2. Every text from outside passes through `quoted` exactly once.
  3. The fields equal those of `entry_of`; a test compares the two.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from activator.codec.message import RequestHead
from activator.data_plane.exchange import Exchange
from activator.data_plane.headers.forwarding import is_valid_request_id
from activator.data_plane.headers.trace_context import trace_id_of
from activator.data_plane.streams import ClientStream
from activator.data_plane.throttle.leases import Lease
from activator.data_plane.usage import Usage
from activator.telemetry.logs.fields import (
    ACCESS_LOG_FIELD_MAX,
    LoggedHeaders,
    grpc_status_of,
    printable,
    reason_of,
    shown_target,
    status_of,
    without_zone,
)

ACCESS_LOG_MEMO_MAX: Final = 1_024  # cached pieces of each kind

_REQUEST_ID: Final = b"\r\nX-Request-Id: "  # as headers/forwarding.py writes it, at the end
_NO_TIME: Final = "0.000000"
_THREE_DIGITS: Final[list[str]] = [str(number)[1:] for number in range(1000, 2000)]  # "000" to "999"


def quoted(text: str) -> str:
    """Return printable text as a JSON string."""
    if "\\" in text:
        text = text.replace("\\", "\\\\")
    if '"' in text:
        text = text.replace('"', '\\"')
    return f'"{text}"'


def seconds(value_s: float) -> str:
    """Format seconds with six decimals; a negative value gives 0."""
    micros: i64 = i64(value_s * 1e6 + 0.5) if value_s > 0.0 else 0
    millis: i64 = micros // 1000
    rest = _THREE_DIGITS[micros - millis * 1000]
    if millis < 1000:
        return "0." + _THREE_DIGITS[millis] + rest
    whole: i64 = millis // 1000
    return f"{whole}.{_THREE_DIGITS[millis - whole * 1000]}{rest}"


@final
class _Caller:
    """Pieces of the last line of one client address, which its next request usually shares."""

    def __init__(self, client_ip: str) -> None:
        self.client_text: str = quoted(without_zone(client_ip))
        self.method: bytes = b""
        self.authority: bytes = b""
        self.start: str = ""  # the text of client, method and host
        self.target: bytes = b""
        self.protocol: str = ""
        self.status: int = 0
        self.opening: str = ""  # `start`, and the text of target, protocol and status
        self.block: bytes = b"-"  # all headers, up to the value of the request id if there is one
        self.headers: str = ""  # the text of these headers


@final
class JsonLine:
    """The formatter of JSON lines, with caches; each log has its own."""

    def __init__(self) -> None:
        self._callers: dict[str, _Caller] = {}
        self._pods: dict[str, tuple[str, str, str, str]] = {}  # by identity: revision, address, protocol, and the text

    def line(self, exchange: Exchange, client: ClientStream, time_text: str) -> str:
        """Return the line of a request that has ended, including the line end."""
        lease = exchange.last_lease
        key = exchange.revision_key()
        caller = self._caller(client.client_ip())
        pod = "" if not key else _revision(key) if lease is None else self._pod(key, lease, exchange.pod_protocol)
        duration_text = seconds(exchange.done_s - exchange.arrived_s)
        opening = _opening(caller, exchange.head, client.protocol(), status_of(exchange))
        access = exchange.access
        user = "" if access is None else f',"user":"{access.name()}"'
        usage = "" if exchange.usage is None else _usage(exchange.usage, exchange.arrived_s)
        return (
            f'{{"time":"{time_text}",{opening},"duration_s":{duration_text}{user}{_reason(exchange)}{pod}{_counts(exchange)}'
            f"{_phases(exchange, duration_text)}{usage}{_header_fields(caller, exchange.head)}}}\n"
        )

    def _caller(self, client_ip: str) -> _Caller:
        """Return the cached pieces of a client address."""
        caller = self._callers.get(client_ip)
        if caller is None:
            caller = _Caller(client_ip)
            if len(self._callers) >= ACCESS_LOG_MEMO_MAX:
                self._callers.clear()
            self._callers[client_ip] = caller
        return caller

    def _pod(self, key: str, lease: Lease, protocol: str) -> str:
        """Return the text of revision and pod."""
        identity = lease.identity
        cached = self._pods.get(identity)
        if cached is not None and cached[0] == key and cached[1] == lease.address and cached[2] == protocol:
            return cached[3]
        text = f'{_revision(key)},"pod":{quoted(identity)},"address":{quoted(lease.address)}'
        if protocol:
            text += f',"pod_protocol":"{protocol}"'
        if len(self._pods) >= ACCESS_LOG_MEMO_MAX:
            self._pods.clear()
        self._pods[identity] = (key, lease.address, protocol, text)
        return text


def _opening(caller: _Caller, head: RequestHead, protocol: str, status: int) -> str:
    """Return the text from `client` to `status`."""
    start = _start(caller, head)
    target = head.target
    if caller.opening and caller.status == status and caller.target == target and caller.protocol == protocol:
        return caller.opening
    caller.target = target
    caller.protocol = protocol
    caller.status = status
    caller.opening = f'{start},"target":{quoted(shown_target(target))},"protocol":"{protocol}","status":{status}'
    return caller.opening


def _start(caller: _Caller, head: RequestHead) -> str:
    """Return the text of client, method and host."""
    method = head.method
    authority = head.authority
    if caller.method != method or caller.authority != authority:
        caller.method = method
        caller.authority = authority
        names = f'"method":{quoted(printable(method))},"host":{quoted(printable(authority))}'
        caller.start = f'"client":{caller.client_text},{names}'
        caller.opening = ""
    return caller.start


def _revision(key: str) -> str:
    slash = key.find("/")
    return f',"namespace":{quoted(key[:slash])},"revision":{quoted(key[slash + 1 :])}'


def _header_fields(caller: _Caller, head: RequestHead) -> str:
    """Return the text of the fields from headers: request id, trace id, user agent and referer."""
    block = head.headers.block
    if block.startswith(caller.block):
        request_id = block[len(caller.block) :]
        if is_valid_request_id(request_id):  # so no other field follows
            return _request_id_field(request_id) + caller.headers
    start, name, request_id = block.rpartition(_REQUEST_ID)
    is_own_id = bool(name) and is_valid_request_id(request_id)  # False if request ids are switched off
    logged = LoggedHeaders(start if is_own_id else block)
    text = _headers(logged)
    if logged.request_id or not is_own_id:
        return _header("request_id", logged.request_id) + text
    if len(start) <= ACCESS_LOG_FIELD_MAX and not head.traceparent:  # the headers of a trace do not repeat
        caller.block = start + name
        caller.headers = text
    return _request_id_field(request_id) + text


def _request_id_field(value: bytes) -> str:
    return f',"request_id":"{value.decode()}"'


def _reason(exchange: Exchange) -> str:
    reason = reason_of(exchange)
    text = f',"reason":"{reason}"' if reason else ""
    return text if exchange.grpc_status < 0 else f',"grpc_status":"{grpc_status_of(exchange)}"{text}'


def _counts(exchange: Exchange) -> str:
    text = ""
    first = exchange.first_throttler
    if first is not None:
        text = f',"first_revision":{quoted(first.key)}'
    retries = exchange.retries()
    if retries:
        text += f',"retries":{retries}'
    request_bytes = exchange.request_bytes
    if request_bytes:
        text += f',"request_bytes":{request_bytes}'
    response_bytes = exchange.response_bytes
    if response_bytes:
        text += f',"response_bytes":{response_bytes}'
    return text


def _phases(exchange: Exchange, duration_text: str) -> str:
    """Return the text of the phases. `duration_text` is the text of the duration, often also that of the first byte."""
    arrived_s = exchange.arrived_s
    granted_s = exchange.granted_s
    connected_s = exchange.connected_s
    first_byte_s = exchange.first_byte_s
    is_connected = connected_s > 0.0 and granted_s > 0.0
    if is_connected and first_byte_s > 0.0 and exchange.queued_s == 0.0:  # the most common case
        first = duration_text if first_byte_s == exchange.done_s else seconds(first_byte_s - arrived_s)
        connect = _NO_TIME if connected_s == granted_s else seconds(connected_s - granted_s)
        return f',"first_byte_s":{first},"connect_s":{connect}'
    text = ""
    if first_byte_s > 0.0:
        text = f',"first_byte_s":{seconds(first_byte_s - arrived_s)}'
    if exchange.queued_s > 0.0:
        text += f',"wait_s":{seconds((granted_s if granted_s > 0.0 else exchange.done_s) - exchange.queued_s)}'
    if is_connected:
        text += f',"connect_s":{seconds(connected_s - granted_s)}'
    start = exchange.start
    if start is not None:
        text += ',"cold":true'
        if first_byte_s > 0.0:
            phases = start.phases(arrived_s, granted_s, connected_s, first_byte_s)
            text += f',"start_s":{seconds(phases.start_s)},"ready_s":{seconds(phases.ready_s)}'
    return text


def _usage(usage: Usage, arrived_s: float) -> str:
    text = ""
    tokens = usage.tokens
    if tokens is not None:
        text = (
            f',"prompt_tokens":{tokens.prompt},"completion_tokens":{tokens.completion},"cached_tokens":{tokens.cached}'
        )
    if usage.first_event_s > 0.0:
        text += f',"first_token_s":{seconds(usage.first_event_s - arrived_s)}'
    per_s = usage.tokens_per_s()
    if per_s > 0.0:
        text += f',"tokens_per_s":{per_s:.3f}'
    return text


def _headers(logged: LoggedHeaders) -> str:
    trace_id = trace_id_of(logged.traceparent)
    text = f',"trace_id":"{trace_id}"' if trace_id else ""
    return text + _header("user_agent", logged.user_agent) + _header("referer", logged.referer)


def _header(name: str, value: bytes) -> str:
    return f',"{name}":{quoted(printable(value))}' if value else ""
