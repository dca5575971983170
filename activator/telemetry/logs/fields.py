"""The printable fields of a request for the access logs."""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from activator.codec.http1.field_names import is_field
from activator.codec.http1.fields import end_of_line, value_of
from activator.data_plane.exchange import Exchange
from activator.data_plane.headers.grpc import STATUS_NAMES
from activator.runtime.errors import one_line
from activator.runtime.masking import masked_target
from activator.runtime.reasons import Reason
from activator.runtime.units import KIB

ACCESS_LOG_FIELD_MAX: Final = 2 * KIB  # a client's data in one field are truncated to this size

CLIENT_GONE_STATUS: Final = 499

# The first letters of the names below, as bits: letter & 31 is its place in the alphabet.
_FIRST_LETTERS: Final = 1 << 18 | 1 << 20 | 1 << 21 | 1 << 24


@final
class LoggedHeaders:
    """The header fields that a log shows, found in one pass; if a name occurs several times, the first."""

    def __init__(self, block: bytes) -> None:
        self.request_id: bytes = b""
        self.traceparent: bytes = b""
        self.user_agent: bytes = b""
        self.referer: bytes = b""
        self._found_bits: i64 = 0  # one bit for each name that has occurred
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
        """Return True at the first call with this bit."""
        if self._found_bits & bit:
            return False
        self._found_bits |= bit
        return True


def printable(value: bytes) -> str:
    """Return a peer's data as printable text, truncated to ACCESS_LOG_FIELD_MAX."""
    text = value[:ACCESS_LOG_FIELD_MAX].decode("utf-8", "backslashreplace")
    return text if text.isprintable() else one_line(text)


def shown_target(target: bytes) -> str:
    """Return a target as printable text, with the values of secret parameters masked if it has a query."""
    text = printable(target)
    return masked_target(text) if "?" in text else text


def status_of(exchange: Exchange) -> int:
    """Return the status of the response; CLIENT_GONE_STATUS if the client disconnected before there was one."""
    status = int(exchange.status)
    return CLIENT_GONE_STATUS if status == 0 and exchange.reason is Reason.CLIENT_GONE else status


def grpc_status_of(exchange: Exchange) -> str:
    """Return the name of a gRPC call's status; empty for any other request."""
    status = exchange.grpc_status
    return "" if status < 0 else STATUS_NAMES[status]


def reason_of(exchange: Exchange) -> str:
    """Return the reason why the request did not end with its pod's response; empty if it did."""
    reason = exchange.reason
    return "" if reason is None else reason.value


def without_zone(client_ip: str) -> str:
    """Remove the zone of an IPv6 address, which may be any text."""
    return client_ip[: client_ip.index("%")] if "%" in client_ip else client_ip


def header_of(block: bytes, start: bytes) -> bytes:
    """Return the value of the first field with a name; `start` is CRLF, the lowered name and a colon."""
    value_pos = block.lower().find(start)
    if value_pos < 0:
        return b""
    value_pos += len(start)
    end = block.find(b"\r\n", value_pos)
    return block[value_pos : end if end >= 0 else len(block)].strip(b" \t")
