"""gRPC's health-checking protocol (health-checking.md of the gRPC project): `grpc.health.v1.Health/Check`.

The messages are encoded here, because one field each does not need a code generator: the service's name as field 1,
with one byte of length (config/probe_checks.py bounds it), and the status as field 1, a varint that is 1 for SERVING.
"""

from __future__ import annotations

from typing import Final

from activator.codec.message import Fields, Headers, RequestHead
from activator.control_plane.probes.http2_exchange import Http2Answer
from activator.runtime.streams import authority_of

_PATH: Final = b"/grpc.health.v1.Health/Check"
_SERVING: Final = b"\x08\x01"
_PREFIX_BYTES: Final = 5  # A gRPC message begins with a flag and its length in 4 bytes.
_STATUS_NAMES: Final = {b"\x08\x02": "NOT_SERVING", b"\x08\x03": "SERVICE_UNKNOWN"}


def check_request(address: str, service: str) -> tuple[RequestHead, bytes]:
    """Return the head and body of a Health/Check call; an empty `service` asks about the whole server."""
    name = service.encode()
    message = b"\x0a%c%b" % (len(name), name) if name else b""
    body = b"\0" + len(message).to_bytes(4, "big") + message
    fields: Headers = [
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
        (b"user-agent", b"activator-probe"),
    ]
    return RequestHead(b"POST", _PATH, authority_of(address).encode(), Fields.from_pairs(fields), len(body), True), body


def problem_with(answer: Http2Answer) -> str:
    """Return why the answer is not SERVING; empty if it is."""
    if answer.problem:
        return answer.problem
    head = answer.head
    if head is None or head.status != 200:
        return f"it answered the probe with {'nothing' if head is None else head.status}"
    trailers: dict[bytes, bytes] = dict(answer.trailers)
    status = trailers.get(b"grpc-status") or head.headers.get(b"grpc-status") or b"2"
    if status != b"0":
        message = (trailers.get(b"grpc-message") or head.headers.get(b"grpc-message") or b"").decode("latin-1")
        hint = " (it has no health service)" if status == b"12" else ""
        return f"grpc-status {status.decode('latin-1')}{hint}{': ' + message if message else ''}"
    response = answer.body[_PREFIX_BYTES:]
    return "" if response == _SERVING else f"it is {_STATUS_NAMES.get(response, 'not SERVING')}"
