"""The time limits of a request that has a slot: which one is reached first, and which has been.

Rules
  1. Limits are counted from the pod's side: total from the grant, first byte from the connection, idle from the last
     byte. Where the revision's spec says so (`times_from_arrival`, as Knative counts), all of them from the arrival.
     While the body is gathered for a slot, the total counts from the arrival and is the client's.
  2. A tunnel has an idle limit of its own and no other.
  3. 0.0 in a spec means: no such limit. While the pod is not read, since the client is slow, its silence is our own.
  4. A client that has much of its answer to take must take some of it within the send timeout, which is the worker's.
     When the pod has finished that is the only limit.
  5. Time in which the event loop did not run counts for nothing (`paused_s`, runtime/clock.py).
  6. A limit that is reached counts against the pod only where the pod had most of the time and all of the request.
"""

from __future__ import annotations

from typing import Final

from activator.config.specs import RevisionSpec
from activator.data_plane.phases import CONNECTING, DELIVERING, GATHERING, SENT, TUNNEL
from activator.data_plane.request import RequestRecord
from activator.data_plane.throttle.leases import Lease
from activator.runtime.clock import NEVER
from activator.runtime.reasons import Reason

TRIAL_EXCLUSIVE_S: Final = 0.5  # how long one trial request keeps others from its pod; then another is tried beside it


def next_limit_s(it: RequestRecord, spec: RevisionSpec, send_timeout_s: float) -> float:
    """When the next of the request's limits could be reached; NEVER: it has none."""
    if it.phase >= TUNNEL:
        return it.progress_s + spec.tunnel_idle_timeout_s if spec.tunnel_idle_timeout_s > 0.0 else NEVER
    deadline_s = NEVER
    if it.blocked_s > 0.0 and send_timeout_s > 0.0:
        deadline_s = it.blocked_s + send_timeout_s
    if it.phase == DELIVERING:
        return deadline_s
    if spec.total_timeout_s > 0.0:
        deadline_s = min(deadline_s, _total_from_s(it, spec) + spec.total_timeout_s)
    if _silence_counts(it, spec):
        if spec.first_byte_timeout_s > 0.0 and it.phase <= SENT:
            deadline_s = min(deadline_s, _first_byte_from_s(it, spec) + spec.first_byte_timeout_s)
        if spec.idle_timeout_s > 0.0 and not it.is_client_slow:
            deadline_s = min(deadline_s, _idle_from_s(it) + spec.idle_timeout_s)
    lease = it.lease
    if lease is not None and lease.bars_trials:
        deadline_s = min(deadline_s, lease.granted_s + TRIAL_EXCLUSIVE_S)
    return deadline_s


def limit_reached(it: RequestRecord, spec: RevisionSpec, send_timeout_s: float, now_s: float) -> Reason | None:
    """The limit that the request has reached, as the reason that it ends for; None: none so far."""
    if it.phase >= TUNNEL:
        return Reason.IDLE_TIMEOUT if 0.0 < spec.tunnel_idle_timeout_s <= now_s - it.progress_s else None
    if it.blocked_s > 0.0 and 0.0 < send_timeout_s <= now_s - it.blocked_s:
        return Reason.SEND_TIMEOUT
    if it.phase == DELIVERING:
        return None
    if 0.0 < spec.total_timeout_s <= now_s - _total_from_s(it, spec):
        return Reason.REQUEST_TIMEOUT if it.phase == GATHERING else Reason.TOTAL_TIMEOUT
    if _silence_counts(it, spec):
        if it.phase <= SENT and 0.0 < spec.first_byte_timeout_s <= now_s - _first_byte_from_s(it, spec):
            return Reason.FIRST_BYTE_TIMEOUT
        if not it.is_client_slow and 0.0 < spec.idle_timeout_s <= now_s - _idle_from_s(it):
            return Reason.IDLE_TIMEOUT
    return None


def trial_takes_long(lease: Lease, now_s: float) -> bool:
    """It is a trial that has kept others from its pod for long enough."""
    return lease.bars_trials and now_s - lease.granted_s >= TRIAL_EXCLUSIVE_S


def pod_had_its_time(it: RequestRecord, reason: Reason, spec: RevisionSpec, now_s: float) -> bool:
    """Whether a failure for `reason` may be held against the pod, as far as time goes."""
    if reason is Reason.FIRST_BYTE_TIMEOUT:
        limit_s = spec.first_byte_timeout_s
    elif reason is Reason.TOTAL_TIMEOUT:
        limit_s = spec.total_timeout_s
    elif reason is Reason.IDLE_TIMEOUT:
        limit_s = spec.idle_timeout_s
    else:
        return True
    return it.phase >= SENT and it.request_done and now_s - it.connected_s >= 0.5 * limit_s


def _silence_counts(it: RequestRecord, spec: RevisionSpec) -> bool:
    """A pod has the request; or where all time counts, a connection to one is awaited."""
    return it.phase >= SENT or spec.times_from_arrival


def _total_from_s(it: RequestRecord, spec: RevisionSpec) -> float:
    from_s = it.arrived_s if spec.times_from_arrival or it.phase == GATHERING else it.granted_s
    return from_s + it.paused_s


def _first_byte_from_s(it: RequestRecord, spec: RevisionSpec) -> float:
    return (it.arrived_s if spec.times_from_arrival else it.connected_s) + it.paused_s


def _idle_from_s(it: RequestRecord) -> float:
    return (it.arrived_s + it.paused_s) if it.phase <= CONNECTING else it.progress_s
