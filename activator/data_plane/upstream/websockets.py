"""The one thing in a WebSocket's handshake that a proxy between two versions of HTTP has to compute."""

from __future__ import annotations

import base64
import hashlib
from typing import Final

_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455 1.3


def accept_of(key: bytes) -> bytes:
    """The Sec-WebSocket-Accept for a Sec-WebSocket-Key (RFC 6455 4.2.2)."""
    return base64.b64encode(hashlib.sha1(key.strip() + _GUID, usedforsecurity=False).digest())
