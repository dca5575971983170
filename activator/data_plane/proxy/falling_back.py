"""A request that its revision fails, and another revision takes (`fallback: {revision: …}`): whether it may, and what
is forgotten of the first one.

Rules
  1. Only what a second pod can be sent in full: no byte of the request has gone to a pod; or all of it is here still,
     and its method says that it may be repeated (RFC 9110 9.2.2).
  2. The second revision has its own line, limits and time-outs, from the moment when the request comes to it.
  3. A request goes on FALLBACKS_MAX times at most. `activator check` refuses circles; a reload may close one for a
     moment.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from activator.data_plane.proxy.phases import CONNECTING, GATHERING, ROUTING, SCANNING, SENT, WAITING
from activator.data_plane.proxy.record import RequestRecord
from activator.data_plane.proxy.request_body import RequestBody
from activator.runtime.clock import NEVER
from activator.runtime.errors import Reason

FALLBACKS_MAX: Final = 8

# `held_bytes_full` is not among them: a part of the body has come that could not be kept.
_FALLS_BACK: Final = frozenset(
    {
        Reason.QUEUE_FULL, Reason.QUEUE_TIMEOUT, Reason.REVISION_FAILED, Reason.REVISION_REMOVED,
        Reason.HELD_REQUESTS_FULL, Reason.DEADLINE_TOO_SHORT, Reason.CONNECT_FAILED, Reason.CONNECT_TIMEOUT,
        Reason.TLS_FAILED, Reason.POD_CLOSED, Reason.POD_REMOVED, Reason.BAD_RESPONSE, Reason.FIRST_BYTE_TIMEOUT,
        Reason.TOTAL_TIMEOUT, Reason.STARTING,
    }
)  # fmt: skip
_BEFORE_A_POD: Final = (ROUTING, SCANNING, GATHERING, WAITING, CONNECTING)


def may_fall_back(it: RequestRecord, reason: Reason, body: RequestBody | None, is_idempotent: bool) -> bool:
    """Whether another revision can be sent the request, in the place of a refusal for `reason`."""
    if reason not in _FALLS_BACK or it.fallbacks >= FALLBACKS_MAX:
        return False
    phase: i64 = it.phase
    if phase in _BEFORE_A_POD:
        return True
    return phase == SENT and is_idempotent and it.request_done and (body is None or body.is_repeatable())


def forget_revision(it: RequestRecord) -> None:
    """What the line and the pods of its first revision have left on it."""
    it.attempts = 0
    it.arrival = 0
    it.line_number = 0
    it.avoided = None
    it.sorted = False
    it.exempt = False
    it.level = 0
    it.share = b""
    it.charge = 1
    it.own_timeout_s = NEVER
    it.own_deadline_s = it.grpc_timeout_s if it.grpc_timeout_s > 0.0 else NEVER
    it.queued_s = it.granted_s = it.connected_s = it.blocked_s = 0.0
    it.start = None
    it.last_lease = None
    it.pod_protocol = ""
