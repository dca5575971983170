"""The time limits of a request with a slot.

Rules
  1. Limits concern the pod: the total counts from the grant, the first byte from the connection, idle time from the
     last byte. With `from_arrival`, as in Knative, all of them count from the arrival. While the body is gathered
     before a slot is requested, the total counts from the arrival and concerns the client.
  2. A tunnel has only its own idle limit.
  3. 0.0 means no limit. While the pod is not read because the client is slow, the pod's silence does not count.
  4. A client with a backlog of its response must take some of it within the send timeout, which is a setting of the
     worker. After the pod has finished, this is the only limit.
  5. Time in which the event loop did not run is not counted (`paused_s`, runtime/clock.py).
  6. A limit counts against the pod only if the pod had most of the time and the whole request.
"""

from __future__ import annotations

from typing import Final

from activator.config.specs import TimeoutsSpec
from activator.data_plane.exchange import Exchange
from activator.data_plane.phases import CONNECTING, DELIVERING, GATHERING, SENT, TUNNEL
from activator.data_plane.throttle.leases import Lease
from activator.runtime.clock import NEVER
from activator.runtime.reasons import Reason

TRIAL_EXCLUSIVE_S: Final = 0.5  # how long a trial request reserves its pod; then another trial may run beside it


def next_limit_s(request: Exchange, timeouts: TimeoutsSpec, send_timeout_s: float) -> float:
    """Return when the next of the request's limits could be reached; NEVER if it has none."""
    if request.phase >= TUNNEL:
        return request.progress_s + timeouts.tunnel_idle_s if timeouts.tunnel_idle_s > 0.0 else NEVER
    deadline_s = NEVER
    if request.blocked_s > 0.0 and send_timeout_s > 0.0:
        deadline_s = request.blocked_s + send_timeout_s
    if request.phase == DELIVERING:
        return deadline_s
    if timeouts.total_s > 0.0:
        deadline_s = min(deadline_s, _total_from_s(request, timeouts) + timeouts.total_s)
    if _silence_counts(request, timeouts):
        if timeouts.first_byte_s > 0.0 and request.phase <= SENT:
            deadline_s = min(deadline_s, _first_byte_from_s(request, timeouts) + timeouts.first_byte_s)
        if timeouts.idle_s > 0.0 and not request.is_client_slow:
            deadline_s = min(deadline_s, _idle_from_s(request) + timeouts.idle_s)
    lease = request.lease
    if lease is not None and lease.bars_trials:
        deadline_s = min(deadline_s, lease.granted_s + TRIAL_EXCLUSIVE_S)
    return deadline_s


def limit_reached(request: Exchange, timeouts: TimeoutsSpec, send_timeout_s: float, now_s: float) -> Reason | None:
    """Return the reason of the limit that the request has reached; None if it has reached none."""
    if request.phase >= TUNNEL:
        return Reason.IDLE_TIMEOUT if 0.0 < timeouts.tunnel_idle_s <= now_s - request.progress_s else None
    if request.blocked_s > 0.0 and 0.0 < send_timeout_s <= now_s - request.blocked_s:
        return Reason.SEND_TIMEOUT
    if request.phase == DELIVERING:
        return None
    if 0.0 < timeouts.total_s <= now_s - _total_from_s(request, timeouts):
        return Reason.REQUEST_TIMEOUT if request.phase == GATHERING else Reason.TOTAL_TIMEOUT
    if _silence_counts(request, timeouts):
        if request.phase <= SENT and 0.0 < timeouts.first_byte_s <= now_s - _first_byte_from_s(request, timeouts):
            return Reason.FIRST_BYTE_TIMEOUT
        if not request.is_client_slow and 0.0 < timeouts.idle_s <= now_s - _idle_from_s(request):
            return Reason.IDLE_TIMEOUT
    return None


def trial_takes_long(lease: Lease, now_s: float) -> bool:
    """Return True if the lease is a trial that has reserved its pod for TRIAL_EXCLUSIVE_S."""
    return lease.bars_trials and now_s - lease.granted_s >= TRIAL_EXCLUSIVE_S


def pod_had_its_time(request: Exchange, reason: Reason, timeouts: TimeoutsSpec, now_s: float) -> bool:
    """Return True if a failure for `reason` may count against the pod, as far as time is concerned."""
    if reason is Reason.FIRST_BYTE_TIMEOUT:
        limit_s = timeouts.first_byte_s
    elif reason is Reason.TOTAL_TIMEOUT:
        limit_s = timeouts.total_s
    elif reason is Reason.IDLE_TIMEOUT:
        limit_s = timeouts.idle_s
    else:
        return True
    return request.phase >= SENT and request.request_done and now_s - request.connected_s >= 0.5 * limit_s


def _silence_counts(request: Exchange, timeouts: TimeoutsSpec) -> bool:
    """Return True if the pod's silence counts: a pod has the request, or all limits count from the arrival."""
    return request.phase >= SENT or timeouts.from_arrival


def _total_from_s(request: Exchange, timeouts: TimeoutsSpec) -> float:
    """Return the time from which the total limit counts."""
    from_s = request.arrived_s if timeouts.from_arrival or request.phase == GATHERING else request.granted_s
    return from_s + request.paused_s


def _first_byte_from_s(request: Exchange, timeouts: TimeoutsSpec) -> float:
    return (request.arrived_s if timeouts.from_arrival else request.connected_s) + request.paused_s


def _idle_from_s(request: Exchange) -> float:
    return (request.arrived_s + request.paused_s) if request.phase <= CONNECTING else request.progress_s
