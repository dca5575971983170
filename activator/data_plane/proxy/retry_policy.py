"""The retry rule: whether a request that fails goes to another pod, to another revision, or ends.

To another pod of its revision, if the first one provably did nothing with the request:

| evidence    | what happened                                                             | which requests           |
|-------------|---------------------------------------------------------------------------|--------------------------|
| `NOT_SENT`  | no connection was made                                                    | all                      |
| `REFUSED`   | the pod states that it did nothing (RFC 9113 8.7), or the connection ended | whose body is still held |
|             | before the request was written                                            |                          |
| `UNTOUCHED` | a kept connection closed without a byte of a response                     | the same, if idempotent  |
| `TOUCHED`   | anything else                                                             | none                     |

Rules
  1. A request has `limits.attempts` pods at most, and what was written to a pod counts against the revision's retry
     budget (throttle/budget.py).
  2. An attempt after the first uses no kept connection, and a request that may not be repeated uses none that was idle
     for RISKY_IDLE_S: the pod may be closing it.
  3. Another revision (`fallback: {revision: …}`) takes only what can be sent to it in full: no byte has gone to a pod,
     or the request is idempotent and still held. It has its own queue, limits and timeouts from then on.
  4. A request falls back FALLBACKS_MAX times at most: `activator check` refuses cycles, but a reload may close one for
     a moment.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from activator.data_plane.headers.grpc import NO_STATUS
from activator.data_plane.phases import CONNECTING, SENT
from activator.data_plane.proxy.request_body import RequestBody
from activator.data_plane.request import RequestRecord
from activator.runtime.clock import NEVER
from activator.runtime.reasons import Reason, Substitute

AGAIN: Final = 0  # to another pod, in the same place of the queue
FALL_BACK: Final = 1  # to another revision, if there is one
END: Final = 2

NOT_SENT: Final = 0
REFUSED: Final = 1
UNTOUCHED: Final = 2
TOUCHED: Final = 3

FALLBACKS_MAX: Final = 8
RISKY_IDLE_S: Final = 1.0
# RFC 9110 9.2.2: these may be repeated if the connection closed before a response.
_IDEMPOTENT: Final = frozenset({b"GET", b"HEAD", b"OPTIONS", b"PUT", b"DELETE", b"TRACE"})


def decide(request: RequestRecord, body: RequestBody | None, reason: Reason, evidence: i64, attempts_max: i64) -> i64:
    """Return what may become of a request that fails for `reason`: AGAIN, FALL_BACK or END.

    AGAIN spends from the revision's retry budget. FALL_BACK depends on whether a filter names another revision.
    """
    if evidence != TOUCHED and reason.is_retriable and _may_be_repeated(request, body, evidence, attempts_max):
        return AGAIN
    return FALL_BACK if may_fall_back(request, body, reason) else END


def may_fall_back(request: RequestRecord, body: RequestBody | None, reason: Reason) -> bool:
    """True if another revision can be sent the whole request."""
    if not reason.substitute & Substitute.REVISION or request.fallbacks >= FALLBACKS_MAX:
        return False
    phase: i64 = request.phase
    if phase <= CONNECTING:
        return True
    return phase == SENT and is_idempotent(request) and request.request_done and _is_held(body)


def is_idempotent(request: RequestRecord) -> bool:
    return request.head.method in _IDEMPOTENT


def idle_limit_s(request: RequestRecord, body: RequestBody | None) -> float:
    """Return for how long a connection may have been idle that this attempt uses; 0.0: only a new one will do."""
    if request.attempts > 0:
        return 0.0
    if request.head.method not in _IDEMPOTENT or (body is not None and body.has_more()):
        return RISKY_IDLE_S
    return NEVER


def forget_revision(request: RequestRecord) -> None:
    """Reset what the queue and the pods of its revision have left on the request."""
    request.attempts = 0
    request.arrival = 0
    request.line_number = 0
    request.avoided = None
    request.sorted = False
    request.exempt = False
    request.level = 0
    request.share = b""
    request.charge = 1
    request.own_timeout_s = NEVER
    request.own_deadline_s = request.grpc_timeout_s if request.grpc_timeout_s > 0.0 else NEVER
    request.queued_s = request.granted_s = request.connected_s = request.blocked_s = 0.0
    request.start = None
    request.last_lease = None
    request.pod_protocol = ""
    request.reason = None
    request.grpc_status = NO_STATUS


def _may_be_repeated(request: RequestRecord, body: RequestBody | None, evidence: i64, attempts_max: i64) -> bool:
    throttler = request.throttler
    if throttler is None or request.lease is None or request.attempts + 1 >= attempts_max:
        return False
    if evidence == NOT_SENT:
        return True
    if evidence == UNTOUCHED and not is_idempotent(request):
        return False
    return request.phase == SENT and _is_held(body) and throttler.retry_budget.spend(throttler.counters.requests_total)


def _is_held(body: RequestBody | None) -> bool:
    return body is None or body.is_repeatable()
