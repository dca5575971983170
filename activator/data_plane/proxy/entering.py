"""The ways into a revision: a request is routed by its header, host, rules or body, and enters its revision.

The ways out are in leaving.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from activator.codec.http1.fields import internal_names
from activator.codec.json_edit import BodyEditor, EditorPair, ObjectEditor
from activator.codec.message import RequestHead
from activator.data_plane.buffering import is_request_streamed
from activator.data_plane.filters.filter import FilterChain
from activator.data_plane.headers.prefer import IF_AVAILABLE, prefers
from activator.data_plane.phases import SCANNING, WAITING
from activator.data_plane.proxy.filter_run import FilterRun
from activator.data_plane.proxy.model_guard import (
    DIGESTS,
    guard_problem,
    guarding_editor,
    is_guarded,
    is_identity,
    model_of,
    scan_for_model,
)
from activator.data_plane.proxy.queue_place import QueuePlace
from activator.data_plane.proxy.request_body import RequestBody
from activator.data_plane.proxy.routing import routing_host
from activator.data_plane.proxy.rules import HostRules
from activator.data_plane.proxy.selection import SCAN_TIMEOUT_S, Selection
from activator.data_plane.proxy.tunnel import accepted_upgrades
from activator.data_plane.throttle.revision import RevisionThrottler
from activator.runtime.reasons import Reason

if TYPE_CHECKING:  # import cycle
    from activator.data_plane.proxy.exchange import ProxiedExchange


def route(exchange: ProxiedExchange) -> None:
    """Find the revision of a request, and let it enter; `resume_routing` does so later if its body is needed first."""
    if exchange.filters is not None:
        exchange.filters.arrive()
        if exchange.over:
            return
    head = exchange.head
    router = exchange.context.router
    key = exchange.destination
    if key:
        throttler = router.named(key)
        if throttler is None:
            _refuse_unknown(exchange)
            return
    elif key is not None:
        throttler = router.by_host(head.authority)
    else:
        throttler = router.resolve(head)
        # A client has sent these fields: no pod may take them for fields of the activator or of Knative.
        if head.has_internal and not router.trusts_revision_headers:
            exchange.edit().remove(internal_names(head))
    if throttler is not None:
        enter(exchange, throttler)
        return
    rules = router.rules_of(routing_host(head))
    if rules is None:
        _refuse_unknown(exchange)
    else:
        _route_by(rules, exchange)


def resume_routing(exchange: ProxiedExchange, selection: Selection) -> None:
    """Route a request after enough of its body has arrived; called in another turn."""
    context = exchange.context
    context.wheel.cancel(exchange)
    exchange.asked_for_slot_s = context.now()
    rules = context.router.rules_of(routing_host(exchange.head))
    if rules is None:  # its last revision was removed in the meantime
        _refuse_unknown(exchange)
        return
    selection.replace_rules(rules)
    try:
        _enter_selected(selection, exchange)
    except Exception as error:  # a policy or a filter has raised it
        exchange.end_with_error(error)


def enter(exchange: ProxiedExchange, throttler: RevisionThrottler, model: str = "") -> None:
    """Assign the request to a revision, the first one or a fallback, and ask for a slot.

    `model`: the model that selected the revision, as the pod receives it; empty: none.
    """
    chain = throttler.filters
    filters = exchange.filters
    place = exchange.place = QueuePlace(exchange)
    exchange.throttler = throttler
    exchange.is_quiet = exchange.is_unverified = False
    if isinstance(chain, FilterChain):
        if filters is None:
            filters = exchange.filters = FilterRun(exchange, chain)
        try:
            filters.route(chain)
        except Exception:
            exchange.throttler = None  # the revision has not counted it
            raise
    elif filters is not None:
        filters.route(None)
    head = exchange.head
    exchange.is_quiet = exchange.is_quiet or _must_not_start_pod(head, throttler)
    exchange.context.count_routed(exchange, throttler)
    if exchange.fallbacks == 0 and head.takes_trailers:
        exchange.read_grpc_timeout()
    if exchange.grpc_timeout_s > 0.0:
        place.own_deadline_s = exchange.grpc_timeout_s
    if _refuse_unguardable(exchange, throttler) or not _accepts_upgrade(exchange, throttler):
        return
    body = exchange.upload
    if body is not None:
        if exchange.fallbacks == 0 and not (
            _edit_body(exchange, throttler, body, model) and body.assign(throttler.held)
        ):
            exchange.fail(Reason.HELD_BYTES_FULL, body.refused_for)
            return
        if exchange.fallbacks != 0 and not body.move(throttler.held):
            exchange.fail(Reason.HELD_BYTES_FULL, "for this revision")
            return
    affinity = throttler.affinity
    if affinity is not None:
        place.pick_key = affinity.key_of(head, exchange.client().client_ip() if affinity.on_client_ip else "")
    exchange.call_filters(throttler)


def _edit_body(exchange: ProxiedExchange, throttler: RevisionThrottler, body: RequestBody, model: str) -> bool:
    """Begin the edits of the body: set and remove members of its JSON object, and then apply the edit of a filter.

    Return False if the budget does not allow it.
    """
    edit, editor, head = throttler.object_edit, exchange.body_editor, exchange.head
    if edit is not None:
        editor = _chained(ObjectEditor(edit), editor)
    if is_guarded(exchange.access, throttler.routing):
        # A header or a port may have selected the revision.
        model = model or model_of(throttler.routing, scan_for_model(body.pieces()))
        editor = _chained(guarding_editor(exchange.edit(), model), editor)
    if editor is None or exchange.upgrade or not is_identity(head) or is_request_streamed(head):
        return True
    exchange.edit().remove(DIGESTS)
    return body.edit(editor)


def _accepts_upgrade(exchange: ProxiedExchange, throttler: RevisionThrottler) -> bool:
    """Limit the protocols that a client offers to those of the revision; refuse a request with none of them."""
    if not exchange.head.upgrade:
        return True
    accepted = accepted_upgrades(exchange.head, throttler.spec)
    if accepted is None:
        exchange.fail(Reason.UPGRADE_NOT_SUPPORTED, "")
        return False
    if accepted != exchange.upgrade:
        exchange.upgrade = accepted
        exchange.edit().set_upgrade(accepted)
    return True


def _chained(first: BodyEditor, second: BodyEditor | None) -> BodyEditor:
    """Return an editor that applies `first` and then `second`, if there is one."""
    return first if second is None else EditorPair(first, second)


def _refuse_unguardable(exchange: ProxiedExchange, throttler: RevisionThrottler) -> bool:
    """Refuse a request that may name a model that its user may not use; return True if it was refused."""
    if not is_guarded(exchange.access, throttler.routing):
        return False
    problem = guard_problem(exchange.head, exchange.upload is not None)
    if not problem and exchange.fallbacks > 0 and exchange.upload is not None:
        first = exchange.first_throttler
        if first is None or not is_guarded(exchange.access, first.routing):
            problem = "with this key a request without a model does not fall back to a model"
    if problem:
        exchange.fail(Reason.BAD_REQUEST, problem)
    return problem != ""


def _must_not_start_pod(head: RequestHead, throttler: RevisionThrottler) -> bool:
    """Return True if no pod is ready and the client would not wait for one."""
    return throttler.table.capacity == 0 and prefers(head, IF_AVAILABLE)


def gather_if_needed(exchange: ProxiedExchange, throttler: RevisionThrottler, body: RequestBody) -> bool:
    """Gather the body before the request asks for a slot, if its revision wants that.

    Return True if the request waits for the body, or has ended.
    """
    bytes_max = throttler.buffers.request_bytes
    if exchange.request_done or bytes_max <= exchange.gathered_max or throttler.queue.failure is not None:
        return False
    if exchange.phase == WAITING or exchange.upgrade or is_request_streamed(exchange.head):
        return False
    if prefers(exchange.head, IF_AVAILABLE):
        return False
    return exchange.gather_body(throttler, body, bytes_max) or exchange.over


def _route_by(rules: HostRules, exchange: ProxiedExchange) -> None:
    """Answer a request for the list of models, or route it by the rules of its host."""
    access = exchange.access
    if access is not None and not rules.allows(access):
        _refuse_unrouted(exchange, Reason.KEY_NOT_ALLOWED if access.has_key else Reason.KEY_REQUIRED, "")
        return
    selection = Selection(rules, exchange.head, exchange.edit(), exchange.context.bodies.held_body_bytes)
    answer = selection.list_of_models(access, exchange.time())
    if answer is not None:
        exchange.respond(answer[0], answer[1])
        return
    body = None if exchange.upgrade else exchange.upload
    if not selection.begin_scan_if_needed(body, exchange.request_done):
        _enter_selected(selection, exchange)
    elif exchange.enter(SCANNING):
        exchange.selection = selection
        exchange.context.wheel.arm(exchange, exchange.time() + SCAN_TIMEOUT_S)
        exchange.client().ask_for_body()


def _enter_selected(selection: Selection, exchange: ProxiedExchange) -> None:
    """Let the request enter the revision that the rules select; refuse it if there is none."""
    throttler = selection.select_revision(exchange.client())
    if throttler is None:
        _refuse_unrouted(exchange, selection.reason, selection.detail)
    elif not selection.rewrite_model(throttler, exchange.upload):
        exchange.fail(Reason.HELD_BYTES_FULL, "")
    else:
        enter(exchange, throttler, selection.model_for_pod(throttler))


def _refuse_unknown(exchange: ProxiedExchange) -> None:
    _refuse_unrouted(exchange, Reason.NO_ROUTE, exchange.head.authority.decode("latin-1"))


def _refuse_unrouted(exchange: ProxiedExchange, reason: Reason, detail: str) -> None:
    """Refuse a request that no revision serves; its reason is temporary while a source is not listed.

    Without a key a client gets 401 instead, so that it cannot enumerate hosts and models.
    """
    exchange.context.unrouted_total += 1
    if reason is Reason.NO_ROUTE and exchange.access is not None and not exchange.access.has_key:
        reason, detail = Reason.KEY_REQUIRED, ""
    if reason is Reason.NO_ROUTE and exchange.context.is_pending:
        reason = Reason.SOURCES_PENDING
    exchange.fail(reason, detail)
