"""What an access log says of a request, field by field, made printable."""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from activator.codec.http1.fields import end_of_line, is_field, value_of
from activator.data_plane.headers.grpc import STATUS_NAMES
from activator.data_plane.request import RequestRecord
from activator.runtime.errors import one_line
from activator.runtime.reasons import Reason
from activator.runtime.units import KIB

ACCESS_LOG_FIELD_MAX: Final = 2 * KIB  # of what a client sent: more of one field is cut off

CLIENT_GONE_STATUS: Final = 499

# Of the names that are looked for, as bits: letter & 31 is its place in the alphabet.
_FIRST_LETTERS: Final = 1 << 18 | 1 << 20 | 1 << 21 | 1 << 24


@final
class LoggedHeaders:
    """The header fields that a log shows, found in one walk; of several of a name, the first."""

    def __init__(self, block: bytes) -> None:
        self.request_id: bytes = b""
        self.traceparent: bytes = b""
        self.user_agent: bytes = b""
        self.referer: bytes = b""
        self._seen: i64 = 0  # bits
        stop: i64 = len(block)
        pos: i64 = 2
        while pos < stop:
            end = end_of_line(block, pos, stop)
            if end < 0:
                end = stop
            if _FIRST_LETTERS >> (block[pos] & 31) & 1:
                self._take(block, pos, end)
            pos = end + 2

    def _take(self, block: bytes, pos: i64, end: i64) -> None:
        if is_field(block, pos, end, b"user-agent"):
            if self._is_first(1):
                self.user_agent = value_of(block[pos:end])
        elif is_field(block, pos, end, b"referer"):
            if self._is_first(2):
                self.referer = value_of(block[pos:end])
        elif is_field(block, pos, end, b"x-request-id"):
            if self._is_first(4):
                self.request_id = value_of(block[pos:end])
        elif is_field(block, pos, end, b"traceparent") and self._is_first(8):
            self.traceparent = value_of(block[pos:end])

    def _is_first(self, bit: i64) -> bool:
        if self._seen & bit:
            return False
        self._seen |= bit
        return True


def printable(value: bytes) -> str:
    """What a peer sent, as printable text."""
    text = value[:ACCESS_LOG_FIELD_MAX].decode("utf-8", "backslashreplace")
    return text if text.isprintable() else one_line(text)


def status_of(exchange: RequestRecord) -> int:
    """Of the answer; CLIENT_GONE_STATUS where the client had gone before there was one."""
    status = int(exchange.status)
    return CLIENT_GONE_STATUS if status == 0 and exchange.reason is Reason.CLIENT_GONE else status


def grpc_status_of(exchange: RequestRecord) -> str:
    """The name of a gRPC call's status; empty where it is none."""
    status = exchange.grpc_status
    return "" if status < 0 else STATUS_NAMES[status]


def reason_of(exchange: RequestRecord) -> str:
    """Why it ended otherwise than with its pod's answer; empty where it did."""
    reason = exchange.reason
    return "" if reason is None else reason.value


def without_zone(client_ip: str) -> str:
    """An IPv6 zone may be any text."""
    return client_ip[: client_ip.index("%")] if "%" in client_ip else client_ip


def header_of(block: bytes, start: bytes) -> bytes:
    """The first field of a name; `start`: CRLF, the lowered name, a colon."""
    place = block.lower().find(start)
    if place < 0:
        return b""
    place += len(start)
    end = block.find(b"\r\n", place)
    return block[place : end if end >= 0 else len(block)].strip(b" \t")
