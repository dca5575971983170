"""Which messages are streams, that no buffer holds back: by rule, since their peers talk while they go on.

A response is written to its client as it comes in any case; the buffer takes what the client does not. Of a stream that
would be the past, so its pod waits for the client instead.
"""

from __future__ import annotations

from typing import Final

from activator.codec.message import RequestHead, ResponseHead

_STREAMED_RESPONSES: Final = (b"text/event-stream", b"application/grpc", b"multipart/x-mixed-replace")
_STREAMED_REQUESTS: Final = (b"application/grpc",)


def is_request_streamed(head: RequestHead) -> bool:
    """True if the pod answers while the body comes: gRPC."""
    return (head.headers.get(b"content-type") or b"").lower().startswith(_STREAMED_REQUESTS)


def is_response_streamed(head: ResponseHead) -> bool:
    """Events, frames of a camera, gRPC; or the pod says so as it says it to nginx: `X-Accel-Buffering: no`."""
    headers = head.headers
    if (headers.get(b"content-type") or b"").lower().startswith(_STREAMED_RESPONSES):
        return True
    return (headers.get(b"x-accel-buffering") or b"").lower() == b"no"
