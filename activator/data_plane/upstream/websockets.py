"""The parts of a WebSocket handshake that a proxy between two HTTP versions computes."""

from __future__ import annotations

import base64
import hashlib
from typing import Final

from activator.codec.message import UNKNOWN_LENGTH, Fields, RequestHead, ResponseHead

_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455 1.3


def accept_of(key: bytes) -> bytes:
    """Return the Sec-WebSocket-Accept for a Sec-WebSocket-Key (RFC 6455 4.2.2)."""
    return base64.b64encode(hashlib.sha1(key.strip() + _GUID, usedforsecurity=False).digest())


def is_accepted(request: RequestHead, answer: ResponseHead) -> bool:
    """Return True if a 101 to a WebSocket proves that the pod has read the handshake (RFC 6455 4.1).

    An HTTP/2 client cannot check this, because the proxy has made the key.
    """
    key = request.headers.get(b"sec-websocket-key")
    return key is None or (answer.headers.get(b"sec-websocket-accept") or b"").strip() == accept_of(key)


def switched(request: RequestHead, head: ResponseHead) -> ResponseHead:
    """Return the 101 that HTTP/1.1 would have in place of this response to an extended CONNECT."""
    lines = head.headers.block
    key = request.headers.get(b"sec-websocket-key")
    if key:
        lines += b"\r\nSec-WebSocket-Accept: " + accept_of(key)
    switching = ResponseHead(101, b"Switching Protocols", Fields(lines), UNKNOWN_LENGTH, False)
    switching.upgrade = b"websocket"
    return switching
