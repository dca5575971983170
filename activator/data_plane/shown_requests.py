"""The last requests and captures of one data plane as plain data, with secrets masked."""

from __future__ import annotations

from typing import Any

from activator.data_plane.captures import Capture
from activator.data_plane.throttle.last_requests import RequestRecord, newest
from activator.data_plane.throttle.revision import RevisionThrottler
from activator.runtime.masking import masked_body, masked_head, masked_target
from activator.runtime.reasons import Reason

CLIENT_GONE_STATUS = 499  # as in the access log


def describe_requests(throttlers: list[RevisionThrottler], count: int, now_s: float) -> dict[str, Any]:
    """Return the last `count` records of these revisions, the newest first; `age_s`: time since the end of the request.

    `evicted`: the greatest number of a record that was dropped for a newer one.
    """
    rings = [ring for ring in [throttler.counters.last_requests for throttler in throttlers] if ring is not None]
    records = [_record(record, now_s) for record in newest(rings, count)]
    return {"records": records, "evicted": max([ring.evicted for ring in rings], default=0)}


def _record(record: RequestRecord, now_s: float) -> dict[str, Any]:
    """Return a record as plain data."""
    fields: dict[str, Any] = record._asdict()
    fields["age_s"] = now_s - fields.pop("ended_s")
    fields["target"] = masked_target(record.target)
    if record.status == 0 and record.reason == Reason.CLIENT_GONE.value:
        fields["status"] = CLIENT_GONE_STATUS
    if record.tokens is not None:
        fields["tokens"] = record.tokens._asdict()
    return {name: round(value, 6) if isinstance(value, float) else value for name, value in fields.items()}


def describe_capture(capture: Capture) -> dict[str, Any]:
    """Return what one request sent and received."""
    return {
        "request": _message(capture.request_head, capture.request_body),
        "response": _message(capture.response_head, capture.response_body),
        "is_cut": capture.is_cut,
    }


def _message(head: bytes, body: bytearray) -> dict[str, str]:
    return {
        "head": _text(masked_head(head)),
        "body": _text(masked_body(bytes(body), _content_type(head))),
    }


def _content_type(head: bytes) -> bytes:
    """Return the value of Content-Type; empty if there is none."""
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.lower() == b"content-type":
            return value.strip()
    return b""


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")
