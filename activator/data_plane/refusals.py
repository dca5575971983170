"""The program's own answers: one plain sentence, the reason as a word, and when to come again."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from activator.codec.message import Fields, Headers, ResponseHead
from activator.runtime.errors import Reason, status_of

REFUSALS_PER_TURN_MAX: Final = 256  # waiters that are rejected before the loop is given a turn

PHRASES: Final[dict[int, bytes]] = {int(status): status.phrase.encode() for status in HTTPStatus}

_SENTENCES: dict[Reason, str] = {
    Reason.BAD_REQUEST: "the request is malformed",
    Reason.HEADERS_TOO_LARGE: "the header fields are larger than this proxy takes",
    Reason.TARGET_TOO_LONG: "the request target is longer than this proxy takes",
    Reason.BODY_TOO_LARGE: "the request body is larger than this proxy takes",
    Reason.METHOD_NOT_SUPPORTED: "this proxy does not support what the request asks for",
    Reason.CODING_NOT_SUPPORTED: "this proxy knows no transfer coding but chunked",
    Reason.UPGRADE_NOT_SUPPORTED: "the revision does not take upgraded connections",
    Reason.VERSION_NOT_SUPPORTED: "this proxy speaks HTTP/1.1 and HTTP/1.0",
    Reason.REQUEST_TIMEOUT: "the request took too long to arrive",
    Reason.NO_ROUTE: "no revision serves this host",
    Reason.QUEUE_FULL: "too many requests wait for this revision already",
    Reason.QUEUE_TIMEOUT: "no pod of the revision had room in time",
    Reason.REVISION_FAILED: "the revision cannot start",
    Reason.REVISION_REMOVED: "the revision was removed",
    Reason.HELD_BYTES_FULL: "this proxy holds as many request bodies as it may",
    Reason.HELD_REQUESTS_FULL: "as many requests wait in this proxy as may",
    Reason.DEADLINE_TOO_SHORT: "the request could not be served in time even in the best case",
    Reason.OVERLOADED: "this proxy has as many connections as it may",
    Reason.DRAINING: "this proxy is shutting down",
    Reason.STARTING: "the revision is starting",
    Reason.SOURCES_PENDING: "the revisions are still being listed, and none is known yet for this request",
    Reason.ASLEEP: "no pod is ready, and this request starts none",
    Reason.NO_ANSWER: "no answer of this name is kept",
    Reason.ANSWER_GONE: "the answer is not kept any more",
    Reason.ANSWER_UNREACHABLE: "the process that keeps the answer does not say it now",
    Reason.ANSWER_TOO_LARGE: "the pod's answer is larger than may be kept",
    Reason.CONNECT_FAILED: "no pod of the revision took the connection",
    Reason.CONNECT_TIMEOUT: "no pod of the revision took the connection in time",
    Reason.TLS_FAILED: "the pod and this proxy could not agree on TLS",
    Reason.POD_CLOSED: "the pod closed the connection before its answer was complete",
    Reason.POD_REMOVED: "the pod was removed before its answer was complete",
    Reason.BAD_RESPONSE: "the pod's answer is malformed",
    Reason.FIRST_BYTE_TIMEOUT: "the pod did not begin its answer in time",
    Reason.IDLE_TIMEOUT: "the pod's answer stalled",
    Reason.TOTAL_TIMEOUT: "the request took longer than it may",
    Reason.INTERNAL: "an error of the proxy's own",
}


def refusal_text(reason: Reason, detail: str) -> bytes:
    """The body: `sentence: detail`, one line."""
    sentence = _SENTENCES.get(reason, reason.value)
    line = f"{sentence}: {detail}" if detail else sentence
    return " ".join(line.split()).encode("utf-8", "replace") + b"\n"


def refusal_head(reason: Reason, body: bytes, retry_after_s: int) -> ResponseHead:
    """`retry_after_s` 0 means that coming again later would not help."""
    headers: Headers = [
        (b"Content-Type", b"text/plain; charset=utf-8"),
        (b"Activator-Reason", reason.value.encode()),
    ]
    if retry_after_s > 0:
        headers.append((b"Retry-After", str(retry_after_s).encode()))
    status = status_of(reason)
    return ResponseHead(status, PHRASES.get(status, b""), Fields.from_pairs(headers), len(body), True)


def json_head(length: int) -> ResponseHead:
    """Of an answer of our own in JSON."""
    return ResponseHead(200, b"OK", Fields.from_pairs([(b"Content-Type", b"application/json")]), length, True)
