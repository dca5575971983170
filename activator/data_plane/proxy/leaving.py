"""The ways a request leaves a revision: refusal, fallback, or another exchange continues it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from activator.data_plane.filters.filter import Failure
from activator.data_plane.filters.openai_errors import format_refusal, is_api
from activator.data_plane.phases import ANSWERING, CONNECTING, DELIVERING, ROUTING, TUNNEL, WAITING
from activator.data_plane.proxy.entering import enter
from activator.data_plane.proxy.own_answers import retry_after_s, send_refusal
from activator.data_plane.proxy.queue_place import QueuePlace
from activator.data_plane.proxy.retry_policy import may_fall_back, reset_revision_fields
from activator.data_plane.proxy.routing import routing_host
from activator.data_plane.streams import ClientStream
from activator.data_plane.throttle.revision import RevisionThrottler
from activator.runtime.reasons import Reason

if TYPE_CHECKING:  # import cycle
    from activator.data_plane.proxy.exchange import ProxiedExchange

# With these reasons the rest of a response is not delivered: its client takes nothing, or its buffer may be wrong.
_ENDS_DELIVERY: Final = frozenset({Reason.SEND_TIMEOUT, Reason.INTERNAL})
# These refusals state the length of the queue, because that length has caused them.
_SENDS_QUEUE_LENGTH: Final = frozenset({Reason.QUEUE_FULL, Reason.DEADLINE_TOO_SHORT})


def fall_back(exchange: ProxiedExchange, key: str, reason: Reason, any_method: bool = False) -> bool:
    """Move a request that its revision cannot serve to the revision `key`; return False if that is not possible."""
    context = exchange.context
    first = exchange.throttler
    second = context.router.named(key)
    if first is None or second is None or second is first:
        return False
    if not may_fall_back(exchange, exchange.upload, reason, any_method):
        return False
    if exchange.access is not None and not exchange.access.allows(second.key):
        return False
    _release_all_of(exchange, first)
    context.count_fallback(exchange, first, second.key, context.now())
    reset_revision_fields(exchange)
    exchange.fallbacks += 1
    if exchange.first_throttler is None:
        exchange.first_throttler = first
    if exchange.phase <= ROUTING or exchange.phase == WAITING or exchange.enter(WAITING):
        exchange.asked_for_slot_s = context.now()
        try:
            enter(exchange, second)
        except Exception as error:  # a policy or a filter has raised it
            exchange.end_with_error(error)
    return True


def _release_all_of(exchange: ProxiedExchange, throttler: RevisionThrottler) -> None:
    """Release all that the request holds of the revision that it leaves; its body can be sent again."""
    if exchange.filters is not None:
        exchange.filters.cancel_hold()
    exchange.gathered_max = 0
    exchange.context.wheel.cancel(exchange)
    if exchange.upload is not None:
        exchange.upload.pod_failed()
    release_place_or_slot(exchange, throttler, exchange.phase, exchange.context.now(), False)


def release_place_or_slot(
    exchange: ProxiedExchange, throttler: RevisionThrottler, phase: i64, now_s: float, succeeded: bool
) -> None:
    """Release the queue position or the slot that a request had in `phase`."""
    pod, exchange.pod = exchange.pod, None
    attempt, exchange.attempt = exchange.attempt, None
    lease = exchange.lease
    if exchange.place.is_queued:
        throttler.queue.cancel(exchange.place)
    elif exchange.is_gathering:
        exchange.is_gathering = False
        throttler.gathering -= 1
    elif phase == DELIVERING:
        throttler.delivering -= 1
    if lease is not None and attempt is not None:
        if phase == CONNECTING:
            attempt.stop_waiting(lease)
        # The duration of a tunnel is not a latency.
        latency_s = 0.0 if phase >= TUNNEL else now_s - exchange.granted_s
        attempt.give_back(throttler, lease, pod, latency_s, succeeded)
    elif pod is not None:
        pod.abort()


def hand_over(exchange: ProxiedExchange, successor: ProxiedExchange, client: ClientStream) -> None:
    """Move a request to the exchange `successor`, which continues it for `client`."""
    successor.is_detached = True
    successor.throttler = exchange.throttler
    successor.arrived_s = exchange.arrived_s
    successor.place = QueuePlace(successor)
    successor.place.pick_key = exchange.place.pick_key
    successor.place.user = exchange.place.user
    successor.access = exchange.access
    successor.admission, exchange.admission = exchange.admission, None
    successor.request_bytes = exchange.request_bytes
    successor.request_done = True
    successor.trace, exchange.trace = exchange.trace, None
    successor.upgrade = exchange.upgrade
    successor.edits = exchange.edits
    successor.body_editor = exchange.body_editor
    successor.fallbacks = exchange.fallbacks
    successor.first_throttler = exchange.first_throttler
    successor.gathered_max = exchange.gathered_max
    if exchange.filters is not None:
        successor.filters = exchange.filters.continued(successor)
    successor.upload = body = exchange.upload
    if body is not None:
        body.hand_over(client)
        exchange.upload = None
    exchange.is_handed_over = True


def refuse(exchange: ProxiedExchange, reason: Reason, detail: str, may_fall_back: bool) -> None:
    """End the request: send the client the reason, or cut the response if it has begun."""
    client, throttler = exchange.client(), exchange.throttler
    exchange.note_reason(reason)
    if exchange.phase >= ANSWERING:
        delivery = exchange.delivery
        if exchange.phase == ANSWERING and delivery is not None and reason not in _ENDS_DELIVERY:
            delivery.pod_ended([], False)  # the client gets what the pod sent, and is then cut off
            return
        exchange.end(succeeded=False, is_request=True)
        client.abort()
        return
    failure = Failure(reason, detail, retry_after_s(reason, throttler), may_fall_back)
    if exchange.filters is not None and exchange.filters.replace_refusal(failure):
        return
    if not failure.text and is_api(exchange.head) and _serves_models(exchange, reason):
        format_refusal(failure)
    exchange.status = failure.status
    exchange.end(succeeded=False, is_request=True)
    waiting = throttler.queue.waiting() if throttler is not None and reason in _SENDS_QUEUE_LENGTH else -1
    send_refusal(client, exchange.head, failure, waiting)


def _serves_models(exchange: ProxiedExchange, reason: Reason) -> bool:
    """Return True if keys are required, or models select the revisions of the request's host."""
    if exchange.access is not None or reason is Reason.KEY_REQUIRED:
        return True
    rules = exchange.context.router.rules_of(routing_host(exchange.head))
    return rules is not None and rules.has_models
