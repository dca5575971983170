"""The gRPC protocol as it concerns a proxy: deadlines, refusals and statuses (the gRPC project's PROTOCOL-HTTP2.md).

Rules
  1. A request is gRPC if it uses HTTP/2, accepts trailers and has the content type. gRPC-Web is not, because its
     clients read HTTP statuses and cannot read trailers.
  2. `grpc-timeout` is the client's deadline, counted from the arrival of the request. It bounds the wait in the queue,
     and the pod receives the remainder.
  3. A refusal is a trailers-only response with status 200. Clients evaluate `grpc-status`: UNAVAILABLE allows a retry,
     which is correct if no pod has seen the request; DEADLINE_EXCEEDED means a timeout; a missing route is
     UNIMPLEMENTED, as in gRPC's mapping of 404 (http-grpc-status-mapping.md). `grpc-retry-pushback-ms` is the delay of
     the retry.
  4. The status of a call is the `grpc-status` of its trailers, or of its head if it is trailers-only; without one, the
     status that clients derive from the HTTP status (http-grpc-status-mapping.md).
"""

from __future__ import annotations

from typing import Final

from activator.codec.message import UNKNOWN_LENGTH, Fields, Headers, RequestHead, ResponseHead
from activator.data_plane.headers.edits import HeadEdits
from activator.runtime.reasons import GrpcStatus, Reason

STATUS_NAMES: Final[tuple[str, ...]] = tuple(status.name for status in GrpcStatus)
NO_STATUS: Final = -1  # not a gRPC call, or not ended
_STATUS_OF_HTTP: Final[dict[int, int]] = {
    400: GrpcStatus.INTERNAL,
    401: GrpcStatus.UNAUTHENTICATED,
    403: GrpcStatus.PERMISSION_DENIED,
    404: GrpcStatus.UNIMPLEMENTED,
    429: GrpcStatus.UNAVAILABLE,
    502: GrpcStatus.UNAVAILABLE,
    503: GrpcStatus.UNAVAILABLE,
    504: GrpcStatus.UNAVAILABLE,
}

_STATUS_NAME: Final = b"grpc-status"
_CONTENT_TYPE: Final = b"application/grpc"
_DIGITS_MAX: Final = 8
_UNITS_S: Final[dict[bytes, float]] = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_VALUE_MAX: Final = 99_999_999
_TIMEOUT_NAME: Final = b"grpc-timeout"


def is_grpc(head: RequestHead) -> bool:
    """Return True if the content type is that of gRPC, with or without a message format."""
    value = (head.headers.get(b"content-type") or b"").lower()
    return value.startswith(_CONTENT_TYPE) and value[len(_CONTENT_TYPE) :][:1] in {b"", b"+", b";"}


def status_of(head: ResponseHead | None, trailers: Headers) -> int:
    """Return the status of a pod's complete response, an index of STATUS_NAMES; unknown numbers become UNKNOWN."""
    for name, value in trailers:
        if len(name) == len(_STATUS_NAME) and name.lower() == _STATUS_NAME:
            return _parsed_status(value)
    if head is None:
        return GrpcStatus.UNKNOWN
    status = head.headers.get(_STATUS_NAME)
    return _STATUS_OF_HTTP.get(int(head.status), GrpcStatus.UNKNOWN) if status is None else _parsed_status(status)


def _parsed_status(value: bytes) -> int:
    """Return the number in a `grpc-status` field; UNKNOWN if it is not one of STATUS_NAMES."""
    value = value.strip()
    if not value.isdigit() or len(value) > 2:
        return GrpcStatus.UNKNOWN
    number = int(value)
    return number if number < len(STATUS_NAMES) else GrpcStatus.UNKNOWN


def timeout_of(head: RequestHead) -> float | None:
    """Return the client's deadline in seconds from the request's arrival; None if it is missing or invalid."""
    value = head.headers.get(_TIMEOUT_NAME)
    if value is None:
        return None
    digits = value[:-1]
    unit_s = _UNITS_S.get(value[-1:])
    if unit_s is None or not digits.isdigit() or len(digits) > _DIGITS_MAX:
        return None
    return int(digits) * unit_s


def edit_timeout(edits: HeadEdits, left_s: float) -> None:
    """Set the remaining deadline for the pod, at least one microsecond."""
    micros = max(int(left_s * 1e6), 1)
    value = b"%du" % micros if micros <= _VALUE_MAX else b"%dm" % min(micros // 1000, _VALUE_MAX)
    edits.set(_TIMEOUT_NAME, value)


def refusal(reason: Reason, message: bytes, retry_after_s: int) -> ResponseHead:
    """Return a trailers-only response. `message`: human-readable; `retry_after_s` 0: a retry would not help."""
    fields: Headers = [
        (b"content-type", _CONTENT_TYPE),
        (b"grpc-status", b"%d" % reason.grpc_status),
        (b"grpc-message", _percent_encoded(message.strip())),
        (b"activator-reason", reason.value.encode()),
    ]
    if retry_after_s > 0 and reason.grpc_status == GrpcStatus.UNAVAILABLE:
        fields.append((b"grpc-retry-pushback-ms", b"%d" % (retry_after_s * 1000)))
    return ResponseHead(200, b"OK", Fields.from_pairs(fields), UNKNOWN_LENGTH, False)


def _percent_encoded(message: bytes) -> bytes:
    """Percent-encode a message; printable ASCII except the percent sign stays (PROTOCOL-HTTP2.md, Status-Message)."""
    if all(0x20 <= byte <= 0x7E and byte != 0x25 for byte in message):
        return message
    return b"".join([bytes((byte,)) if 0x20 <= byte <= 0x7E and byte != 0x25 else b"%%%02X" % byte for byte in message])
