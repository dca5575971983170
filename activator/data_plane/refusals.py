"""Responses of the activator itself: a plain sentence, the reason code, and when to retry."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from activator.codec.message import Fields, Headers, ResponseHead
from activator.runtime.reasons import Reason

TEXT: Final = b"text/plain; charset=utf-8"
POSITION_HEADER: Final = b"Activator-Queue-Position"
REFUSALS_PER_TURN_MAX: Final = 256  # waiters that are rejected in one turn of the loop

PHRASES: Final[dict[int, bytes]] = {int(status): status.phrase.encode() for status in HTTPStatus}


def refusal_text(reason: Reason, detail: str) -> bytes:
    """Return the body: `sentence: detail`, as one line."""
    line = f"{reason.sentence}: {detail}" if detail else reason.sentence
    return " ".join(line.split()).encode("utf-8", "replace") + b"\n"


def refusal_head(
    reason: Reason, body: bytes, retry_after_s: int, content_type: bytes = TEXT, status: int = 0
) -> ResponseHead:
    """Return the head of a refusal. `retry_after_s` 0: a retry would not help; `status` 0: that of the reason."""
    status = status or reason.status
    headers: Headers = [
        (b"Content-Type", content_type),
        (b"Activator-Reason", reason.value.encode()),
    ]
    if retry_after_s > 0:
        headers.append((b"Retry-After", str(retry_after_s).encode()))
    return ResponseHead(status, PHRASES.get(status, b""), Fields.from_pairs(headers), len(body), True)


def json_head(length: int) -> ResponseHead:
    """Return the head of a JSON response with status 200."""
    return ResponseHead(200, b"OK", Fields.from_pairs([(b"Content-Type", b"application/json")]), length, True)
