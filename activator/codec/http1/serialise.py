"""Serialisation of heads and bodies as HTTP/1.1.

Rules
  1. Framing fields are written only here: from (content_length, has_body), never from a received field.
  2. A head is joined once, from few pieces, many of which are precomputed. Compiled, a format string that contains only
     %b is one call and needs no list or tuple of the pieces.
  3. Fields are written unchanged: the parsers refuse CR, LF and NUL, and code that adds a field must not use them.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from activator.codec.message import Fields, Headers, RequestHead, ResponseHead

PHRASES: Final[dict[int, bytes]] = {int(status): status.phrase.encode() for status in HTTPStatus}
_LINE_STARTS: Final[list[bytes]] = [b"HTTP/1.1 %d " % status for status in range(1000)]
_END: Final = b"\r\n\r\n"
_CLOSE_END: Final = b"\r\nConnection: close\r\n\r\n"
_KEEP_ALIVE_END: Final = b"\r\nConnection: keep-alive\r\n\r\n"
_UPGRADE: Final = b"\r\nConnection: upgrade\r\nUpgrade: %b"
_CHUNKED: Final = b"\r\nTransfer-Encoding: chunked"
_LENGTHS: Final[list[bytes]] = [b"\r\nContent-Length: %d" % length for length in range(1024)]
_CHUNK_SIZES: Final[list[bytes]] = [b"%x\r\n" % size for size in range(1024)]
_TEXT: Final = (b"Content-Type", b"text/plain; charset=utf-8")


def request_bytes(head: RequestHead, default_host: bytes = b"") -> bytes:
    """Return a request to a pod, on a connection that is kept alive; `default_host` is used if it has no authority."""
    framing = _framing(head.content_length, head.has_body)
    if default_host and not head.authority:
        framing = b"\r\nHost: %b%b" % (default_host, framing)
    if head.upgrade:
        framing += _UPGRADE % head.upgrade
    return b"%b %b HTTP/1.1%b%b%b" % (head.method, head.target, head.headers.block, framing, _END)


def response_bytes(head: ResponseHead, http_1_0: bool, close: bool) -> bytes:
    """Return the head of a response to a client.

    In HTTP/1.0 the connection's end delimits a body of unknown length, so `close` must then be true.
    """
    framing = _framing(head.content_length, head.has_body and not http_1_0)
    end = _END
    if head.upgrade:
        end = _UPGRADE % head.upgrade + _END
    elif close:
        end = _CLOSE_END
    elif http_1_0:
        end = _KEEP_ALIVE_END
    return b"%b%b%b%b%b" % (_LINE_STARTS[head.status], head.reason_phrase, head.headers.block, framing, end)


def interim_bytes(head: ResponseHead) -> bytes:
    """Return a 1xx response, which must not be sent to an HTTP/1.0 client."""
    return b"%b%b%b%b" % (_LINE_STARTS[head.status], head.reason_phrase, head.headers.block, _END)


def chunk(data: bytes) -> bytes:
    """Return one chunk; b"" for no data, because an empty chunk would end the body."""
    size = len(data)
    if size == 0:
        return b""
    start = _CHUNK_SIZES[size] if size < 1024 else b"%x\r\n" % size
    return b"".join((start, data, b"\r\n"))


def last_chunk(trailers: Headers) -> bytes:
    """Return the end of a chunked body."""
    if not trailers:
        return b"0\r\n\r\n"
    return b"0%b\r\n\r\n" % Fields.from_pairs(trailers).block


def plain_response(
    status: int, body: bytes, headers: Headers, close: bool, http_1_0: bool, head_request: bool
) -> bytes:
    """Return a complete response of the program itself."""
    fields = Fields.from_pairs([_TEXT, *headers])
    head = ResponseHead(status, PHRASES.get(status, b""), fields, len(body), not head_request)
    start = response_bytes(head, http_1_0, close)
    return start if head_request else start + body


def _framing(length: int, chunked: bool) -> bytes:
    """Return the framing field, if any; `chunked` matters only if the length is unknown."""
    if length < 0:
        return _CHUNKED if chunked else b""
    return _LENGTHS[length] if length < 1024 else b"\r\nContent-Length: %d" % length
