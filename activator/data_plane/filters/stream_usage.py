"""The token reports of event streams that clients have not asked for (`record.include_usage`).

Rules
  1. The requests are POSTs of JSON to a path that ends with /completions, as in OpenAI's API: other APIs refuse the
     option. The body has the option on each attempt and at a fallback. Pods are not offered content codings, because
     the report could not be found in them.
  2. Watchers of the response, which count tokens, see the report; the client does not.
  3. Only responses with the status 200, an event stream and no content coding are changed. They have no length then.
"""

from __future__ import annotations

from typing import Final, final

from activator.codec.message import UNKNOWN_LENGTH, Headers, RequestHead, ResponseHead
from activator.codec.usage_report import UsageEventRemoval, UsageOption
from activator.data_plane.exchange import Exchange
from activator.data_plane.filters.filter import Filter
from activator.data_plane.streams import ClientStream, ClientWrapper

_PATH_END: Final = b"/completions"
_JSON: Final = b"application/json"
_ENCODINGS: Final = frozenset([b"accept-encoding"])
_EVENT_STREAM: Final = b"text/event-stream"


@final
class StreamUsage(Filter):
    """The filter of one revision: after stored responses, which take requests from clients, and before fallbacks."""

    def on_routed(self, request: Exchange) -> None:
        if request.fallbacks == 0 and _may_stream(request.head):
            request.body_editor = UsageOption()
            request.edit().remove(_ENCODINGS)

    def on_request(self, request: Exchange) -> None:
        option = request.body_editor
        if isinstance(option, UsageOption) and not option.is_wrapped:
            option.is_wrapped = True
            request.wrap_client(_WithoutReport(request.client(), option))


@final
class _WithoutReport(ClientWrapper):
    """The wrapper of a client that removes the report from the response."""

    def __init__(self, client: ClientStream, option: UsageOption) -> None:
        super().__init__(client)
        self._option = option
        self._removal: UsageEventRemoval | None = None

    def send_head(self, head: ResponseHead) -> None:
        if self._option.is_added and _is_event_stream(head):
            self._removal = UsageEventRemoval()
            head = ResponseHead(head.status, head.reason_phrase, head.headers, UNKNOWN_LENGTH, True)
        self.client.send_head(head)

    def send_body(self, data: bytes) -> None:
        if self._removal is not None:
            data = self._removal.feed(data)
        if data:
            self.client.send_body(data)

    def send_end(self, trailers: Headers) -> None:
        rest = b"" if self._removal is None else self._removal.finish()
        if rest:
            self.client.send_body(rest)
        self.client.send_end(trailers)


def _may_stream(head: RequestHead) -> bool:
    """Return True if the response may be an event stream with a token report (rule 1)."""
    return (
        head.method == b"POST"
        and head.target.partition(b"?")[0].endswith(_PATH_END)
        and _media_type(head.headers.get(b"content-type")) == _JSON
    )


def _is_event_stream(head: ResponseHead) -> bool:
    """Return True for a 200 with an event stream without a content coding."""
    coding = head.headers.get(b"content-encoding") or b"identity"
    return (
        head.status == 200
        and head.has_body
        and _media_type(head.headers.get(b"content-type")) == _EVENT_STREAM
        and coding.lower() == b"identity"
    )


def _media_type(value: bytes | None) -> bytes:
    """Return the value of Content-Type without its parameters, in lower case; b"" for None."""
    return (value or b"").partition(b";")[0].strip().lower()
