"""The interface of filters, which implement features that act on requests, and the chain of one revision's filters.

    on_arrival     the request's turn has come, and its revision is unknown; only for filters of all requests
    on_routed      its revision is known, and nothing has been counted
    on_request     the request is about to ask for a slot
    on_attempt     edits of the head for a pod, before each attempt
    on_pod_status  the head of the pod's response has arrived, and may be replaced
    on_response    the head of the pod's response, before it is sent to the client
    on_failure     the request is about to be refused; no byte of a response has been sent to the client
    on_end         the request has ended, and all its figures are known

Rules
  1. Each reload creates new filters for a revision, and a request keeps the filters that it began with. State of
     one request belongs to wrappers of its client (`wrap_client`) or to watchers of its bodies (`watch`).
  2. Hooks are plain functions that return at once. A filter that has to wait calls `hold` in `on_request`, and later
     `proceed`, `respond` or `refused`.
  3. An exception ends its own request only, with 500 (`internal`). In `on_failure` the refusal is still sent, and in
     `on_end` the request has ended already. The exception is counted and logged.
  4. A hook that a class does not override costs nothing. A revision without filters pays one check for None per hook.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from mypy_extensions import mypyc_attr

from activator.codec.message import Headers, ResponseHead
from activator.data_plane.exchange import Exchange
from activator.data_plane.headers.edits import HeadEdits, addition
from activator.data_plane.refusals import TEXT
from activator.runtime.reasons import Reason


@final
class Failure:
    """A refusal that is about to be sent, and its reason; filters may edit it."""

    def __init__(self, reason: Reason, detail: str, retry_after_s: int, may_fall_back: bool) -> None:
        self.reason = reason
        self.status: int = reason.status  # not sent with gRPC
        self.detail = detail
        self.retry_after_s = retry_after_s  # whole seconds; 0: a retry would not help
        self.may_fall_back = may_fall_back  # the whole request can be sent to another revision
        self.text: bytes = b""  # the body, or the gRPC message; empty: generated from reason and detail
        self.content_type: bytes = TEXT
        self.fields: Headers = []  # further fields; not sent with gRPC

    def check_or_reset(self) -> None:
        """Raise an error and reset the edits if the edited refusal cannot be sent."""
        try:
            self.text = bytes(self.text)
            if not 400 <= self.status <= 599:
                raise ValueError(f"{self.status} is not the status of a refusal (400 to 599)")
            addition(b"Content-Type", self.content_type)
            for name, value in self.fields:
                addition(name, value)
        except Exception:
            self.text, self.content_type, self.fields = b"", TEXT, []
            self.status = self.reason.status
            raise


@mypyc_attr(allow_interpreted_subclasses=True)
class Filter:
    """One feature, applied to the requests of one revision or to all requests."""

    # True: a request that is not idempotent may go to another revision after its pod has responded.
    repeats_any_method: bool = False

    def on_arrival(self, request: Exchange) -> None:
        """Handle a request before routing: may call `respond`, `edit` or `route_to`."""

    def on_routed(self, request: Exchange) -> None:
        """Handle a request that has been routed and is not counted yet."""

    def on_request(self, request: Exchange) -> None:
        """Handle a request before it requests a slot.

        May call `respond`, `hold`, `gather`, `wrap_client`, `edit` or `fall_back`.
        """

    def on_attempt(self, request: Exchange, edits: HeadEdits) -> None:
        """Edit the head that this attempt sends to the pod; `edits` begins with the edits that all attempts share."""

    def on_pod_status(self, request: Exchange, head: ResponseHead) -> None:
        """Respond in place of the pod, whose final head has arrived: may call `respond` or `fall_back`."""

    def on_response(self, request: Exchange, head: ResponseHead) -> None:
        """Edit the head of the response by setting its `headers`, or `watch` the bodies."""

    def on_failure(self, request: Exchange, failure: Failure) -> None:
        """Respond in place of the refusal (`respond`, `fall_back`), or edit it."""

    def on_end(self, request: Exchange) -> None:
        """Observe a request that has ended."""


@final
class FilterChain:
    """The filters of one revision, by hook, in their order; `shared` filters of all requests come first.

    In `on_failure` the shared ones come last, so that they see the refusal that the client will get.
    """

    def __init__(self, filters: Sequence[Filter], shared: Sequence[Filter] = ()) -> None:
        self.filters: tuple[Filter, ...] = (*shared, *filters)
        self.on_arrival = _overriding("on_arrival", self.filters)
        self.on_routed = _overriding("on_routed", self.filters)
        self.on_request = _overriding("on_request", self.filters)
        self.on_attempt = _overriding("on_attempt", self.filters)
        self.on_pod_status = _overriding("on_pod_status", self.filters)
        self.on_response = _overriding("on_response", self.filters)
        self.on_failure = _overriding("on_failure", (*filters, *shared))
        self.on_end = _overriding("on_end", self.filters)
        self.repeats_any_method: bool = any(candidate.repeats_any_method for candidate in self.filters)


def _overriding(hook: str, filters: tuple[Filter, ...]) -> tuple[Filter, ...]:
    """Return the filters that override `hook`."""
    inherited = getattr(Filter, hook)
    return tuple([candidate for candidate in filters if getattr(type(candidate), hook) is not inherited])
