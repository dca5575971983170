"""What an access log says of a request, field by field, made fit to be seen."""

from __future__ import annotations

from typing import Final

from activator.config import ACCESS_LOG_FIELD_MAX
from activator.errors import Reason, one_line
from activator.proxy import ProxiedExchange

CLIENT_GONE_STATUS: Final = 499


def printable(value: bytes) -> str:
    """What a peer sent, as text without anything that does more than to be seen."""
    text = value[:ACCESS_LOG_FIELD_MAX].decode("utf-8", "backslashreplace")
    return text if text.isprintable() else one_line(text)


def status_of(exchange: ProxiedExchange) -> int:
    """Of the answer; CLIENT_GONE_STATUS where the client had gone before there was one."""
    status = int(exchange.status)
    return CLIENT_GONE_STATUS if status == 0 and exchange.reason is Reason.CLIENT_GONE else status


def reason_of(exchange: ProxiedExchange) -> str:
    """Why it ended otherwise than with its pod's answer; empty where it did."""
    reason = exchange.reason
    return "" if reason is None else reason.value


def without_zone(client_ip: str) -> str:
    """An IPv6 zone may be any text."""
    return client_ip[: client_ip.index("%")] if "%" in client_ip else client_ip


def header_of(block: bytes, lowered: bytes, start: bytes) -> bytes:
    """Fields.get, for several of one block that has been lowered once; `start`: CRLF, the lowered name, a colon."""
    place = lowered.find(start)
    if place < 0:
        return b""
    place += len(start)
    end = block.find(b"\r\n", place)
    return block[place : end if end >= 0 else len(block)].strip(b" \t")
