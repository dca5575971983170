"""Responses that the activator generates itself: refusals and complete short responses."""

from __future__ import annotations

from typing import Final

from activator.codec.message import RequestHead, ResponseHead
from activator.data_plane.filters.filter import Failure
from activator.data_plane.headers import grpc
from activator.data_plane.refusals import POSITION_HEADER, refusal_head, refusal_text
from activator.data_plane.streams import ClientStream
from activator.data_plane.throttle.revision import RevisionThrottler
from activator.runtime.reasons import Reason

PENDING_RETRY_AFTER_S: Final = 1  # the request has no revision yet; it may have one later, or at another replica


def retry_after_s(reason: Reason, throttler: RevisionThrottler | None) -> int:
    """Return the number of seconds after which a refused request may be repeated; 0 if that would not help."""
    if throttler is None:
        return PENDING_RETRY_AFTER_S if reason is Reason.SOURCES_PENDING or reason is Reason.DRAINING else 0
    return throttler.queue.retry_after_s() if reason.status == 503 else 0


def send_refusal(client: ClientStream, request: RequestHead, failure: Failure, waiting: int = -1) -> None:
    """Send `request` the refusal `failure`, as a gRPC status or as text.

    `waiting`: the length of the full queue, which is sent in a header field; -1 sends no such field.
    """
    body = failure.text or refusal_text(failure.reason, failure.detail)
    if request.takes_trailers and grpc.is_grpc(request):
        client.send_head(grpc.refusal(failure.reason, body, failure.retry_after_s))
        client.send_end([])
        return
    head = refusal_head(failure.reason, body, failure.retry_after_s, failure.content_type, failure.status)
    if waiting >= 0:
        head.headers = head.headers.with_line(POSITION_HEADER, str(waiting).encode())
    for name, value in failure.fields:
        head.headers = head.headers.with_line(name, value)
    send_whole(client, request, head, body)


def send_whole(client: ClientStream, request: RequestHead, head: ResponseHead, body: bytes) -> None:
    """Send a complete response; without its body if the method is HEAD."""
    if request.method == b"HEAD":
        head.has_body = False
    client.send_head(head)
    if head.has_body and body:
        client.send_body(body)
    client.send_end([])
