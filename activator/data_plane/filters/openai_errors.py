"""Refusals as errors of OpenAI's API, which its clients can show and handle.

Rules
  1. A refusal has this form if the path has a segment `v1` before the last one, and keys are required or models select
     the revisions of the host. All other refusals are texts, or statuses for gRPC.
  2. `code` is the word that clients of OpenAI know for the reason; without one it is the reason itself.

Source: platform.openai.com/docs/guides/error-codes.
"""

from __future__ import annotations

import json
from typing import Final

from activator.codec.message import RequestHead
from activator.data_plane.filters.filter import Failure
from activator.data_plane.headers.grpc import is_grpc
from activator.data_plane.refusals import refusal_text
from activator.runtime.reasons import Reason

_SEGMENT: Final = b"/v1/"
_CODES: Final = {
    Reason.KEY_REQUIRED: "invalid_api_key",
    Reason.KEY_NOT_ALLOWED: "model_not_allowed",
    Reason.NO_ROUTE: "model_not_found",
    Reason.QUOTA_EXCEEDED: "rate_limit_exceeded",
    Reason.RATE_LIMITED: "rate_limit_exceeded",
}
_SERVER_ERROR: Final = "server_error"
_TYPES: Final = {403: "permission_error", 429: "requests", 501: "invalid_request_error"}


def is_api(head: RequestHead) -> bool:
    """Return True if the client of this request may use OpenAI's API."""
    return _SEGMENT in head.target.partition(b"?")[0] and not is_grpc(head)


def format_refusal(failure: Failure, error_type: str = "") -> None:
    """Set the body of a refusal to an error of the API. `error_type`: its type; empty: derived from the status."""
    reason = failure.reason
    default = "invalid_request_error" if reason.status < 500 else _SERVER_ERROR
    error = {
        "message": refusal_text(reason, failure.detail).decode().rstrip("\n"),
        "type": error_type or _TYPES.get(reason.status, default),
        "param": None,
        "code": _CODES.get(reason, reason.value),
    }
    failure.text = json.dumps({"error": error}).encode()
    failure.content_type = b"application/json"
