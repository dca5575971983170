"""Routing of requests for hosts with rules: from the head or the body of a request to its revision."""

from __future__ import annotations

from typing import TYPE_CHECKING

from activator.data_plane.phases import SCANNING
from activator.data_plane.proxy.routing import routing_host
from activator.data_plane.proxy.rules import HostRules
from activator.data_plane.proxy.selection import SCAN_TIMEOUT_S, Selection
from activator.runtime.reasons import Reason

if TYPE_CHECKING:  # import cycle
    from activator.data_plane.proxy.exchange import ProxiedExchange


def route_by(rules: HostRules, exchange: ProxiedExchange) -> Selection:
    """Answer a request for the list of models, or route it; `resume_routing` does that if its body is needed first."""
    selection = Selection(rules, exchange.head, exchange.edit(), exchange.context.bodies.held_body_bytes)
    answer = selection.list_of_models()
    if answer is not None:
        exchange.respond(answer[0], answer[1])
        return selection
    body = None if exchange.upgrade else exchange.upload
    if not selection.begin(body, exchange.request_done):
        _choose(selection, exchange)
    elif exchange.enter(SCANNING):
        exchange.context.wheel.arm(exchange, exchange.time() + SCAN_TIMEOUT_S)
        exchange.client().ask_for_body()
    return selection


def resume_routing(selection: Selection, exchange: ProxiedExchange) -> None:
    """Route a request after enough of its body has arrived; called in another turn."""
    context = exchange.context
    context.wheel.cancel(exchange)
    exchange.asked_for_slot_s = context.now()
    rules = context.router.rules_of(routing_host(exchange.head))
    if rules is None:  # its last revision was removed in the meantime
        exchange.unrouted(Reason.NO_ROUTE, exchange.head.authority.decode("latin-1"))
        return
    selection.renew(rules)
    try:
        _choose(selection, exchange)
    except Exception as error:  # a policy or a filter has raised it
        exchange.end_with_error(error)


def _choose(selection: Selection, exchange: ProxiedExchange) -> None:
    throttler = selection.revision(exchange.client())
    if throttler is None:
        exchange.unrouted(selection.reason, selection.detail)
    elif not selection.rewrite(throttler, exchange.upload):
        exchange.fail(Reason.HELD_BYTES_FULL, "")
    else:
        exchange.routed(throttler)
