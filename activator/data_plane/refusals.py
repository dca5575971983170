"""The program's own answers: one plain sentence, the reason as a word, and when to come again."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from activator.codec.message import Fields, Headers, ResponseHead
from activator.runtime.reasons import Reason

POSITION_HEADER: Final = b"Activator-Queue-Position"
REFUSALS_PER_TURN_MAX: Final = 256  # waiters that are rejected before the loop is given a turn

PHRASES: Final[dict[int, bytes]] = {int(status): status.phrase.encode() for status in HTTPStatus}


def refusal_text(reason: Reason, detail: str) -> bytes:
    """The body: `sentence: detail`, one line."""
    line = f"{reason.sentence}: {detail}" if detail else reason.sentence
    return " ".join(line.split()).encode("utf-8", "replace") + b"\n"


def refusal_head(reason: Reason, body: bytes, retry_after_s: int) -> ResponseHead:
    """`retry_after_s` 0 means that coming again later would not help."""
    headers: Headers = [
        (b"Content-Type", b"text/plain; charset=utf-8"),
        (b"Activator-Reason", reason.value.encode()),
    ]
    if retry_after_s > 0:
        headers.append((b"Retry-After", str(retry_after_s).encode()))
    return ResponseHead(reason.status, PHRASES.get(reason.status, b""), Fields.from_pairs(headers), len(body), True)


def json_head(length: int) -> ResponseHead:
    """Of an answer of our own in JSON."""
    return ResponseHead(200, b"OK", Fields.from_pairs([(b"Content-Type", b"application/json")]), length, True)
