"""The messages that are streams, and are never buffered because their peers interact while they are sent.

A response is always forwarded as it arrives, and the buffer holds what the client has not read yet. In a stream,
buffered data would be outdated, so its pod waits for the client instead.
"""

from __future__ import annotations

from typing import Final

from activator.codec.message import RequestHead, ResponseHead

_STREAMED_RESPONSES: Final = (b"text/event-stream", b"application/grpc", b"multipart/x-mixed-replace")
_STREAMED_REQUESTS: Final = (b"application/grpc",)


def is_request_streamed(head: RequestHead) -> bool:
    """Return True if the pod responds while the body is sent: gRPC."""
    return (head.headers.get(b"content-type") or b"").lower().startswith(_STREAMED_REQUESTS)


def is_response_streamed(head: ResponseHead) -> bool:
    """Return True for event streams, camera frames, gRPC, and responses with `X-Accel-Buffering: no`, as in nginx."""
    headers = head.headers
    if (headers.get(b"content-type") or b"").lower().startswith(_STREAMED_RESPONSES):
        return True
    return (headers.get(b"x-accel-buffering") or b"").lower() == b"no"
