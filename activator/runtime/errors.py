"""Why a request ended otherwise than with its pod's answer, and how the program itself fails.

Rules
  1. `Reason` is closed: each cause for which the program refuses, fails or gives up has exactly one member; the client
     (`Activator-Reason`), the metrics and the log all show its word.
  2. A reason has its status code; the code distinguishes *availability* (503, retry later), *contention* or *time*
     (504), the pod's fault (502) and the client's fault (4xx).
  3. Third-party exceptions are mapped to a reason once, at the border where they appear, and never travel further.
"""

from __future__ import annotations

from enum import Enum


class Reason(Enum):
    """One closed set of causes; the value is the word that users see."""

    # The client's fault: refused before any pod saw a byte.
    BAD_REQUEST = "bad_request"
    HEADERS_TOO_LARGE = "headers_too_large"
    TARGET_TOO_LONG = "target_too_long"
    BODY_TOO_LARGE = "body_too_large"
    METHOD_NOT_SUPPORTED = "method_not_supported"
    CODING_NOT_SUPPORTED = "coding_not_supported"
    UPGRADE_NOT_SUPPORTED = "upgrade_not_supported"
    VERSION_NOT_SUPPORTED = "version_not_supported"
    REQUEST_TIMEOUT = "request_timeout"
    SEND_TIMEOUT = "send_timeout"
    NO_ROUTE = "no_route"
    CLIENT_GONE = "client_gone"
    # Availability and contention: nothing is wrong with the request.
    QUEUE_FULL = "queue_full"
    QUEUE_TIMEOUT = "queue_timeout"
    REVISION_FAILED = "revision_failed"
    REVISION_REMOVED = "revision_removed"
    HELD_BYTES_FULL = "held_bytes_full"
    HELD_REQUESTS_FULL = "held_requests_full"
    DEADLINE_TOO_SHORT = "deadline_too_short"
    OVERLOADED = "overloaded"
    DRAINING = "draining"
    STARTING = "starting"  # a page is shown meanwhile
    SOURCES_PENDING = "sources_pending"  # no revision is known for the request, and a source has not listed its own yet
    ASLEEP = "asleep"  # said to a request that wakes nothing
    # Answers that are kept for clients who do not wait.
    NO_ANSWER = "no_answer"
    ANSWER_GONE = "answer_gone"
    ANSWER_UNREACHABLE = "answer_unreachable"
    ANSWER_TOO_LARGE = "answer_too_large"
    # The pod's fault.
    CONNECT_FAILED = "connect_failed"
    CONNECT_TIMEOUT = "connect_timeout"
    TLS_FAILED = "tls_failed"
    POD_CLOSED = "pod_closed"
    POD_REMOVED = "pod_removed"
    BAD_RESPONSE = "bad_response"
    FIRST_BYTE_TIMEOUT = "first_byte_timeout"
    IDLE_TIMEOUT = "idle_timeout"
    TOTAL_TIMEOUT = "total_timeout"
    # Ours.
    INTERNAL = "internal"


_STATUS: dict[Reason, int] = {
    Reason.BAD_REQUEST: 400,
    Reason.HEADERS_TOO_LARGE: 431,
    Reason.TARGET_TOO_LONG: 414,
    Reason.BODY_TOO_LARGE: 413,
    Reason.METHOD_NOT_SUPPORTED: 501,
    Reason.CODING_NOT_SUPPORTED: 501,
    Reason.UPGRADE_NOT_SUPPORTED: 501,
    Reason.VERSION_NOT_SUPPORTED: 505,
    Reason.REQUEST_TIMEOUT: 408,
    Reason.SEND_TIMEOUT: 408,
    Reason.NO_ROUTE: 404,
    Reason.CLIENT_GONE: 499,
    Reason.QUEUE_FULL: 503,
    Reason.QUEUE_TIMEOUT: 504,
    Reason.REVISION_FAILED: 503,
    Reason.REVISION_REMOVED: 503,
    Reason.HELD_BYTES_FULL: 503,
    Reason.HELD_REQUESTS_FULL: 503,
    Reason.DEADLINE_TOO_SHORT: 503,
    Reason.OVERLOADED: 503,
    Reason.DRAINING: 503,
    Reason.STARTING: 503,
    Reason.SOURCES_PENDING: 503,
    Reason.ASLEEP: 503,
    Reason.NO_ANSWER: 404,
    Reason.ANSWER_GONE: 410,
    Reason.ANSWER_UNREACHABLE: 503,
    Reason.ANSWER_TOO_LARGE: 502,
    Reason.CONNECT_FAILED: 502,
    Reason.CONNECT_TIMEOUT: 504,
    Reason.TLS_FAILED: 502,
    Reason.POD_CLOSED: 502,
    Reason.POD_REMOVED: 502,
    Reason.BAD_RESPONSE: 502,
    Reason.FIRST_BYTE_TIMEOUT: 504,
    Reason.IDLE_TIMEOUT: 504,
    Reason.TOTAL_TIMEOUT: 504,
    Reason.INTERNAL: 500,
}


def status_of(reason: Reason) -> int:
    """The HTTP status of the answer; 499 is only counted, since its client has gone."""
    return _STATUS[reason]


class ActivatorError(Exception):
    """Base of what the program raises on purpose; its text is one line that says what to do."""


def one_line(text: str) -> str:
    """The text with everything that cannot be printed replaced by an escape."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


class ConfigError(ActivatorError):
    """The configuration was refused; `problems` has one line per mistake, whatever stands in the values it quotes."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = [one_line(problem) for problem in problems]
        super().__init__("\n".join(self.problems))


class NoWorkerError(Exception):
    """There is no such worker process, or it does not answer; in words."""


class StartError(ActivatorError):
    """The program could not start (a port in use, a file not readable)."""


class WireError(Exception):
    """A peer's bytes were refused. Raised inside `http1/` only, and turned into a `Reason` there."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
