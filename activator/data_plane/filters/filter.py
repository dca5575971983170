"""The seam for features that a request can meet: a filter, and the chain of filters of one revision.

    on_arrival   its turn has come, and no revision is known: only for filters of all requests
    on_routed    its revision is known, and nothing has been counted
    on_request   it is about to ask for a slot
    on_attempt   a pod gets it: edits of the head, for each attempt
    on_response  the head of the pod's response, before the client gets it
    on_failure   it is about to be refused: no byte of a response has gone to the client
    on_end       it is over, and all its figures are known

Rules
  1. A filter is made for a revision at each reload, and a request keeps the filters that it began with. What belongs to
     one request is kept by the request: what wraps its client (`wrap_client`) and what watches its bodies (`watch`).
  2. Hooks are plain functions that return at once. A filter that has to wait calls `hold` in `on_request`, and later
     `proceed`, `respond` or `refused`.
  3. A filter that raises ends its own request with 500 (`internal`) and no other. In `on_failure` the refusal stands,
     in `on_end` the request is over already. The exception is counted and logged.
  4. A hook that a class does not override costs nothing. A revision without filters pays for one look at None per hook.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from mypy_extensions import mypyc_attr

from activator.codec.message import Headers, ResponseHead
from activator.data_plane.headers.edits import HeadEdits, addition
from activator.data_plane.request import RequestRecord
from activator.runtime.reasons import Reason


@final
class Failure:
    """Why a request is about to be refused, and the refusal, which filters may edit."""

    def __init__(self, reason: Reason, detail: str, retry_after_s: int, may_fall_back: bool) -> None:
        self.reason = reason
        self.detail = detail
        self.retry_after_s = retry_after_s  # whole seconds; 0: a repetition would not help
        self.may_fall_back = may_fall_back  # another revision can be sent the whole request
        self.text: bytes = b""  # the body, or the message of gRPC; empty: sentence and detail of the reason
        self.fields: Headers = []  # more fields; gRPC has none

    def check(self) -> None:
        """Raise an error, and take the edits back, if the refusal cannot be sent as it was edited."""
        try:
            self.text = bytes(self.text)
            for name, value in self.fields:
                addition(name, value)
        except Exception:
            self.text, self.fields = b"", []
            raise


@mypyc_attr(allow_interpreted_subclasses=True)
class Filter:
    """One feature, for the requests of one revision, or for all requests."""

    def on_arrival(self, request: RequestRecord) -> None:
        """Act before the revision is looked up: `respond`, `edit` or `route_to`."""

    def on_routed(self, request: RequestRecord) -> None:
        """Act on a request that has its revision and is not counted yet."""

    def on_request(self, request: RequestRecord) -> None:
        """Act before the request asks for a slot: `respond`, `hold`, `gather`, `wrap_client`, `edit` or `fall_back`."""

    def on_attempt(self, request: RequestRecord, edits: HeadEdits) -> None:
        """Edit what this attempt sends to the pod; `edits` begins with those that all attempts share."""

    def on_response(self, request: RequestRecord, head: ResponseHead) -> None:
        """Edit the head of the response by giving it other `headers`, or `watch` the bodies."""

    def on_failure(self, request: RequestRecord, failure: Failure) -> None:
        """Answer in the place of the refusal (`respond`, `fall_back`), or edit it."""

    def on_end(self, request: RequestRecord) -> None:
        """Observe a request that is over."""


@final
class FilterChain:
    """The filters of one revision, by hook, in their order; `shared`, which all requests meet, come first.

    When a request is about to be refused the shared ones come last: they see the refusal that the client will get.
    """

    def __init__(self, filters: Sequence[Filter], shared: Sequence[Filter] = ()) -> None:
        self.filters: tuple[Filter, ...] = (*shared, *filters)
        self.on_arrival = _with("on_arrival", self.filters)
        self.on_routed = _with("on_routed", self.filters)
        self.on_request = _with("on_request", self.filters)
        self.on_attempt = _with("on_attempt", self.filters)
        self.on_response = _with("on_response", self.filters)
        self.on_failure = _with("on_failure", (*filters, *shared))
        self.on_end = _with("on_end", self.filters)


def _with(hook: str, filters: tuple[Filter, ...]) -> tuple[Filter, ...]:
    """Return the filters that override `hook`."""
    inherited = getattr(Filter, hook)
    return tuple([one for one in filters if getattr(type(one), hook) is not inherited])
