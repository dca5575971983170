"""`Prefer: respond-async` (RFC 7240): the client gets a 202 at once, and the response is stored for it."""

from __future__ import annotations

from typing import final

from activator.codec.message import RequestHead
from activator.config.specs import AsyncSpec
from activator.data_plane.exchange import Exchange
from activator.data_plane.filters.filter import Filter
from activator.data_plane.headers.edits import HeadEdits
from activator.data_plane.headers.prefer import PREFER, RESPOND_ASYNC, is_preference, prefers
from activator.data_plane.stored_responses.store import ResponseStore, path_of
from activator.data_plane.streams import ClientWrapper


@final
class StoredResponses(Filter):
    """The filter of one revision that accepts such requests, each when it has arrived completely."""

    def __init__(self, spec: AsyncSpec, response_store: ResponseStore) -> None:
        self._spec = spec
        self._response_store = response_store

    def on_request(self, request: Exchange) -> None:
        throttler = request.throttler
        head = request.head
        if throttler is None or request.is_detached or request.upgrade or request.is_grpc or request.is_quiet:
            return
        if throttler.queue.failure is not None or not prefers(head, RESPOND_ASYNC):
            return
        if isinstance(request.client(), ClientWrapper):  # the wrapper edits responses; a stored one would be unedited
            return
        if not request.request_done:
            if head.content_length > self._spec.body_bytes_max or not request.gather(self._spec.body_bytes_max):
                return
            if not request.request_done:  # too large: its client waits, as for any other request
                return
        stored = self._response_store.accept(throttler, request.client())
        if stored is None:
            return
        edit_prefer(head, request.edit())
        stored.exchange = request.detach(stored)
        stored.exchange.begin()
        if stored.is_done:  # refused at once: this is the client's response, and already logged
            refusal, body = stored.head, bytes(stored.body)
            assert refusal is not None
            self._response_store.withdraw(stored)
            request.reason = stored.exchange.reason
            request.respond(refusal, body, is_logged=False)
            return
        accepted, body = self._response_store.pending_response(stored)
        headers = accepted.headers.with_line(b"Location", path_of(stored))
        accepted.headers = headers.with_line(b"Preference-Applied", b"respond-async")
        request.respond(accepted, body)


def edit_prefer(head: RequestHead, edits: HeadEdits) -> None:
    """Remove `respond-async`, because a pod that supports it would respond with its own 202."""
    edits.remove(frozenset({PREFER}))
    for name, value in head.headers.pairs():
        if name.lower() == PREFER:
            kept = [element.strip() for element in value.split(b",") if not is_preference(element, RESPOND_ASYNC)]
            if kept:
                edits.append(name, b", ".join(kept))
