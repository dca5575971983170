"""The answers that requests get from the program itself: refusals, and answers to probes."""

from __future__ import annotations

from activator.codec.message import RequestHead, ResponseHead
from activator.data_plane.exchange import ClientStream
from activator.data_plane.headers import grpc
from activator.data_plane.headers.knative import KnativeDialect
from activator.data_plane.refusals import POSITION_HEADER, refusal_head, refusal_text
from activator.runtime.reasons import Reason


def send_refusal(
    client: ClientStream,
    request: RequestHead,
    reason: Reason,
    detail: str,
    retry_after_s: int,
    dialect: KnativeDialect | None,
    waiting: int = -1,
) -> None:
    """Answer `request` with the reason why it gets no other answer; `retry_after_s` 0: not said; `waiting`: how many
    are in the line that it could not join, -1: not said.
    """
    body = refusal_text(reason, detail) if dialect is None else dialect.refusal_text(reason, detail, request)
    if request.takes_trailers and grpc.is_grpc(request):
        client.send_head(grpc.refusal(reason, body, retry_after_s))
        client.send_end([])
        return
    head = refusal_head(reason, body, retry_after_s)
    if waiting >= 0:
        head.headers = head.headers.with_line(POSITION_HEADER, str(waiting).encode())
    if dialect is not None:
        head.headers = head.headers.with_line(b"X-Content-Type-Options", b"nosniff")
    send_whole(client, request, head, body)


def send_whole(client: ClientStream, request: RequestHead, head: ResponseHead, body: bytes) -> None:
    """Send an answer that is complete; to HEAD without its body."""
    if request.method == b"HEAD":
        head.has_body = False
    client.send_head(head)
    if head.has_body and body:
        client.send_body(body)
    client.send_end([])
