"""The retry policy: whether a failed request goes to another pod, goes to another revision, or ends.

A request goes to another pod of its revision if the first one provably did nothing with it:

| evidence    | what happened                                                             | which requests           |
|-------------|---------------------------------------------------------------------------|--------------------------|
| `NOT_SENT`  | no connection was made                                                    | all                      |
| `REFUSED`   | the pod states that it did nothing (RFC 9113 8.7), or the connection ended | whose body is still held |
|             | before the request was written                                            |                          |
| `UNTOUCHED` | a kept connection closed without a byte of a response                     | the same, if idempotent  |
| `TOUCHED`   | anything else                                                             | none                     |

Rules
  1. A request is sent to at most ATTEMPTS_MAX pods (plane.py). The retry of a request that was written to a pod spends
     from the revision's retry budget (throttle/budget.py).
  2. Attempts after the first use a new connection. A request that is not idempotent uses no connection that was idle
     for RISKY_IDLE_S or longer, because the pod may be closing it.
  3. Another revision (`fallback: {revision: …}`) takes only a request that can be sent in full: no byte was sent to a
     pod, or the request is idempotent and its body is still held. The same holds for a response of a pod whose status
     the fallback replaces (`fallback.statuses`); with `fallback.any_method` the request need not be idempotent. That
     revision applies its own queue, limits and timeouts.
  4. A request falls back at most FALLBACKS_MAX times: `activator check` rejects cycles, but a reload may create one for
     a moment.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from activator.data_plane.exchange import Exchange
from activator.data_plane.headers.grpc import NO_STATUS
from activator.data_plane.phases import CONNECTING, SENT
from activator.data_plane.proxy.request_body import RequestBody
from activator.runtime.clock import NEVER
from activator.runtime.reasons import Reason, Substitute

AGAIN: Final = 0  # to another pod, at the same position of the queue
FALL_BACK: Final = 1  # to another revision, if there is one
END: Final = 2

NOT_SENT: Final = 0
REFUSED: Final = 1
UNTOUCHED: Final = 2
TOUCHED: Final = 3

FALLBACKS_MAX: Final = 8
RISKY_IDLE_S: Final = 1.0
# RFC 9110 9.2.2: idempotent methods may be repeated if the connection closed before a response.
_IDEMPOTENT: Final = frozenset({b"GET", b"HEAD", b"OPTIONS", b"PUT", b"DELETE", b"TRACE"})


def decide(request: Exchange, body: RequestBody | None, reason: Reason, evidence: i64, attempts_max: i64) -> i64:
    """Return AGAIN, FALL_BACK or END for a request that fails with `reason`.

    AGAIN spends from the revision's retry budget. FALL_BACK takes effect only if a filter names another revision.
    """
    if evidence != TOUCHED and reason.is_retriable and _claim_retry(request, body, evidence, attempts_max):
        return AGAIN
    return FALL_BACK if may_fall_back(request, body, reason) else END


def may_fall_back(request: Exchange, body: RequestBody | None, reason: Reason, any_method: bool = False) -> bool:
    """Return True if another revision can be sent the whole request."""
    if not reason.substitute & Substitute.REVISION or request.fallbacks >= FALLBACKS_MAX:
        return False
    phase: i64 = request.phase
    if phase <= CONNECTING:
        return True
    return phase == SENT and (any_method or is_idempotent(request)) and request.request_done and _is_held(body)


def is_idempotent(request: Exchange) -> bool:
    return request.head.method in _IDEMPOTENT


def idle_limit_s(request: Exchange, body: RequestBody | None) -> float:
    """Return how long the connection of this attempt may have been idle; 0.0: it must be a new one."""
    if request.attempts > 0:
        return 0.0
    if request.head.method not in _IDEMPOTENT or (body is not None and body.has_overflow()):
        return RISKY_IDLE_S
    return NEVER


def reset_revision_fields(request: Exchange) -> None:
    """Reset the fields of the request that belong to its revision and its pods."""
    request.attempts = 0
    request.queued_s = request.granted_s = request.connected_s = request.blocked_s = 0.0
    request.start = None
    request.last_lease = None
    request.pod_protocol = ""
    request.reason = None
    request.grpc_status = NO_STATUS


def _claim_retry(request: Exchange, body: RequestBody | None, evidence: i64, attempts_max: i64) -> bool:
    """Return True if the request may go to another pod; if it was sent to one, spend from the retry budget."""
    throttler = request.throttler
    if throttler is None or request.lease is None or request.attempts + 1 >= attempts_max:
        return False
    if evidence == NOT_SENT:
        return True
    if evidence == UNTOUCHED and not is_idempotent(request):
        return False
    return request.phase == SENT and _is_held(body) and throttler.retry_budget.spend(throttler.counters.requests_total)


def _is_held(body: RequestBody | None) -> bool:
    """Return True if the body can be sent again from its beginning."""
    return body is None or body.is_repeatable()
