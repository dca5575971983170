"""The reasons why a request ends without its pod's complete response, with their properties, in one table.

Rules
  1. `Reason` is a closed set: each cause of a refusal or a failure has exactly one member. The client
     (`Activator-Reason`), the metrics and the log show its word.
  2. The HTTP status distinguishes availability (503, retry later), contention or time (504), the pod's fault (502) and
     the client's fault (4xx). The gRPC status follows http-grpc-status-mapping.md; UNAVAILABLE means that the client
     may retry, which is safe for a request that no pod has received.
  3. Other modules use these properties and have no lists of reasons of their own, except for the texts of one peer
     (headers/knative.py).
"""

# ruff: noqa: E501  (a table)

from __future__ import annotations

from enum import Enum, IntEnum, IntFlag
from typing import Final, Self


class GrpcStatus(IntEnum):
    """The status codes of gRPC (statuscodes.md)."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class PodFault(IntEnum):
    """The effect of a failed request on the passive health check of its pod (throttle/verdict.py)."""

    NOTHING = 0
    STRUCK = 1  # the pod accepted the request, and broke the connection or was silent
    UNREACHED = 2  # no connection was made, and the cause is uncertain: no picks until the state worker has decided
    DEAD = 3  # no process listens there
    STRUCK_ON_TRIAL = 4  # STRUCK if the pod was on trial, NOTHING if it was in service


class Substitute(IntFlag):
    """The substitutes for a refusal that `fallback` may provide."""

    NONE = 0
    RESPONSE = 1  # a fixed response or a redirect
    REVISION = 2  # another revision serves the request
    ANY = 3


# The columns of the table below.
_CANCELLED: Final = GrpcStatus.CANCELLED
_DEADLINE_EXCEEDED: Final = GrpcStatus.DEADLINE_EXCEEDED
_INTERNAL: Final = GrpcStatus.INTERNAL
_RESOURCE_EXHAUSTED: Final = GrpcStatus.RESOURCE_EXHAUSTED
_UNAVAILABLE: Final = GrpcStatus.UNAVAILABLE
_UNIMPLEMENTED: Final = GrpcStatus.UNIMPLEMENTED
_UNAUTHENTICATED: Final = GrpcStatus.UNAUTHENTICATED
_PERMISSION_DENIED: Final = GrpcStatus.PERMISSION_DENIED
_NONE: Final = Substitute.NONE
_RESPONSE: Final = Substitute.RESPONSE
_REVISION: Final = Substitute.REVISION
_ANY: Final = Substitute.ANY
_NOTHING: Final = PodFault.NOTHING
_STRUCK: Final = PodFault.STRUCK
_UNREACHED: Final = PodFault.UNREACHED
_DEAD: Final = PodFault.DEAD
_STRUCK_ON_TRIAL: Final = PodFault.STRUCK_ON_TRIAL


class Reason(Enum):
    """A reason; the value is the word that users see."""

    _value_: str
    status: int
    grpc_status: GrpcStatus
    sentence: str
    substitute: Substitute
    verdict: PodFault
    is_retriable: bool

    def __new__(
        cls,
        word: str,
        status: int,
        grpc_status: GrpcStatus,
        sentence: str,
        substitute: Substitute = Substitute.NONE,
        verdict: PodFault = PodFault.NOTHING,
        is_retriable: bool = False,
    ) -> Self:
        """Make a member of the table below.

        `status` is that of the response; 499 is only counted, because the client has disconnected. `sentence` is the
        response body, and the gRPC message. `is_retriable`: the request may be sent to another pod if this one has
        provably not processed it (proxy/retry_policy.py).
        """
        reason = object.__new__(cls)
        reason._value_ = word
        reason.status = status
        reason.grpc_status = grpc_status
        reason.sentence = sentence
        reason.substitute = substitute
        reason.verdict = verdict
        reason.is_retriable = is_retriable
        return reason

    # fmt: off
    # The client's fault: refused before any pod received a byte.
    BAD_REQUEST = "bad_request", 400, _INTERNAL, "the request is malformed"
    HEADERS_TOO_LARGE = "headers_too_large", 431, _RESOURCE_EXHAUSTED, "the header fields exceed the size limit"
    TARGET_TOO_LONG = "target_too_long", 414, _RESOURCE_EXHAUSTED, "the request target exceeds the length limit"
    BODY_TOO_LARGE = "body_too_large", 413, _RESOURCE_EXHAUSTED, "the request body exceeds the size limit"
    METHOD_NOT_SUPPORTED = "method_not_supported", 501, _UNIMPLEMENTED, "the method is not supported"
    CODING_NOT_SUPPORTED = "coding_not_supported", 501, _UNIMPLEMENTED, "the transfer coding is not supported; only chunked is"
    UPGRADE_NOT_SUPPORTED = "upgrade_not_supported", 501, _UNIMPLEMENTED, "the revision does not accept upgraded connections"
    VERSION_NOT_SUPPORTED = "version_not_supported", 505, _UNIMPLEMENTED, "the HTTP version of the request is not supported"
    REQUEST_TIMEOUT = "request_timeout", 408, _DEADLINE_EXCEEDED, "the request took too long to arrive"
    SEND_TIMEOUT = "send_timeout", 408, _DEADLINE_EXCEEDED, "the client did not read the response in time"
    NO_ROUTE = "no_route", 404, _UNIMPLEMENTED, "no route matches the request"
    KEY_REQUIRED = "key_required", 401, _UNAUTHENTICATED, "a valid key is required"
    KEY_NOT_ALLOWED = "key_not_allowed", 403, _PERMISSION_DENIED, "this key may not use this revision"
    ADDRESS_NOT_ALLOWED = (
        "address_not_allowed", 403, _PERMISSION_DENIED, "this revision is not open to the client's address"
    )  # fmt: skip
    AUTH_DENIED = "auth_denied", 403, _PERMISSION_DENIED, "the authoriser of the revision has refused the request"
    QUOTA_EXCEEDED = "quota_exceeded", 429, _RESOURCE_EXHAUSTED, "the user has reached a limit"
    RATE_LIMITED = "rate_limited", 429, _RESOURCE_EXHAUSTED, "the client's address has sent too many requests"
    NOT_AVAILABLE = "not_available", 412, _UNAVAILABLE, "no slot is free now, and the request prefers not to wait", _REVISION
    CLIENT_GONE = "client_gone", 499, _CANCELLED, "the client left"
    # Availability and contention: nothing is wrong with the request.
    QUEUE_FULL = "queue_full", 503, _UNAVAILABLE, "the queue of the revision is full", _ANY
    QUEUE_TIMEOUT = "queue_timeout", 504, _DEADLINE_EXCEEDED, "no pod of the revision had free capacity within the queue timeout", _ANY
    REVISION_FAILED = "revision_failed", 503, _UNAVAILABLE, "the revision cannot start", _ANY
    REVISION_REMOVED = "revision_removed", 503, _UNAVAILABLE, "the revision was removed", _REVISION
    HELD_BYTES_FULL = "held_bytes_full", 503, _UNAVAILABLE, "the proxy has reached its limit of buffered request bodies", _RESPONSE
    HELD_REQUESTS_FULL = "held_requests_full", 503, _UNAVAILABLE, "the proxy has reached its limit of queued requests", _ANY
    DEADLINE_TOO_SHORT = "deadline_too_short", 503, _DEADLINE_EXCEEDED, "the request could not be served in time even in the best case", _ANY
    QUEUE_OVERLOADED = "queue_overloaded", 503, _UNAVAILABLE, "the revision is overloaded, and the request has waited longer than the target", _ANY
    OVERLOADED = "overloaded", 503, _UNAVAILABLE, "the proxy is overloaded", _RESPONSE
    QUOTA_UNKNOWN = "quota_unknown", 503, _UNAVAILABLE, "the quota of the user could not be checked"
    AUTH_UNAVAILABLE = "auth_unavailable", 503, _UNAVAILABLE, "the authoriser of the revision gave no valid response"
    DRAINING = "draining", 503, _UNAVAILABLE, "this proxy is shutting down"
    FILTER_TIMEOUT = "filter_timeout", 504, _DEADLINE_EXCEEDED, "a filter of this proxy held the request for too long"
    FAULT_INJECTED = "fault_injected", 503, _UNAVAILABLE, "this request was refused on purpose"
    STARTING = "starting", 503, _UNAVAILABLE, "the revision is starting", _REVISION
    SOURCES_PENDING = "sources_pending", 503, _UNAVAILABLE, "the revisions have not been listed completely yet, and no known one matches the request"
    ASLEEP = "asleep", 503, _UNAVAILABLE, "no pod is ready, and requests of this kind do not start one"
    # Stored responses of asynchronous requests.
    NO_ANSWER = "no_answer", 404, _UNIMPLEMENTED, "there is no stored response with this name"
    ANSWER_GONE = "answer_gone", 410, _UNIMPLEMENTED, "the stored response is no longer available"
    ANSWER_UNREACHABLE = "answer_unreachable", 503, _UNAVAILABLE, "the process that stores the response cannot be reached; retry later"
    ANSWER_TOO_LARGE = "answer_too_large", 502, _RESOURCE_EXHAUSTED, "the response exceeds the size limit for stored responses"
    # The pod's fault.
    CONNECT_FAILED = "connect_failed", 502, _UNAVAILABLE, "no pod of the revision accepted a connection", _ANY, _DEAD, True
    CONNECT_TIMEOUT = "connect_timeout", 504, _UNAVAILABLE, "connecting to the pods of the revision timed out", _ANY, _UNREACHED, True
    TLS_FAILED = "tls_failed", 502, _UNAVAILABLE, "the TLS handshake with the pod failed", _ANY, _UNREACHED, True
    POD_CLOSED = "pod_closed", 502, _UNAVAILABLE, "the pod closed the connection before the response was complete", _ANY, _STRUCK, True
    POD_REMOVED = "pod_removed", 502, _UNAVAILABLE, "the pod was removed before the response was complete", _ANY
    BAD_RESPONSE = "bad_response", 502, _INTERNAL, "the pod sent a malformed response", _ANY, _STRUCK_ON_TRIAL
    FIRST_BYTE_TIMEOUT = "first_byte_timeout", 504, _DEADLINE_EXCEEDED, "the pod did not send the first byte of the response in time", _ANY, _STRUCK
    IDLE_TIMEOUT = "idle_timeout", 504, _DEADLINE_EXCEEDED, "the response of the pod stalled (idle timeout)", _NONE, _STRUCK_ON_TRIAL
    TOTAL_TIMEOUT = "total_timeout", 504, _DEADLINE_EXCEEDED, "the request exceeded its total timeout", _ANY, _STRUCK_ON_TRIAL
    UPSTREAM_STATUS = "upstream_status", 502, _UNAVAILABLE, "the pod responded with a status that a fallback replaces", _ANY
    # The proxy's own fault.
    INTERNAL = "internal", 500, _INTERNAL, "internal error of the proxy"
    # fmt: on


_BY_WORD: Final[dict[str, Reason]] = {reason.value: reason for reason in Reason}

# The words of reasons that are the client's own, its departure included: they are no trouble of the revision.
CLIENTS_OWN: Final = frozenset([reason.value for reason in Reason if reason.status < 500])


def reason_named(word: str) -> Reason:
    """Return the reason that users see as `word`. Raises KeyError."""
    return _BY_WORD[word]
