"""Pages of other origins (`cors`): preflights are answered, and responses name the origin (fetch.spec.whatwg.org, 3.3).

Rules
  1. A browser sends a preflight without a key and without cookies. It is answered before keys, authorisers and routes
     are considered: it starts nothing, and the response does not depend on what exists.
  2. Any client can send a preflight, so none is passed on without a key: a program could take it for a request.
  3. Each response to an allowed origin, also a refusal, names that origin in place of the origins that the pod names.
  4. A request of another origin is an ordinary one: its page cannot read the response.
"""

from __future__ import annotations

import re
from typing import Final, final

from activator.codec.message import Headers, ResponseHead
from activator.data_plane.exchange import Exchange
from activator.data_plane.filters.filter import Filter
from activator.data_plane.streams import ClientStream, ClientWrapper
from activator.runtime.units import KIB

ANY_ORIGIN: Final = "*"
PREFLIGHT_MAX_AGE_S: Final = 7_200  # a browser repeats a preflight after this time; Chrome's upper bound
REQUESTED_FIELDS_BYTES_MAX: Final = 4 * KIB  # a request with longer names is no preflight

_ALLOW_ORIGIN: Final = b"Access-Control-Allow-Origin"
# Fields of the pod that are removed:
_REPLACED: Final = frozenset((b"access-control-allow-origin", b"access-control-allow-credentials"))
_TOKEN: Final = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_TOKEN_LIST: Final = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~, -]*")
_VARY: Final = (b"Vary", b"Origin")


@final
class Cors(Filter):
    """The filter of all requests if pages of other origins are allowed."""

    def __init__(self, origins: tuple[str, ...]) -> None:
        self._allows_any: bool = ANY_ORIGIN in origins
        self._origins: frozenset[bytes] = frozenset([origin.encode() for origin in origins])

    def on_arrival(self, request: Exchange) -> None:
        head = request.head
        origin = head.headers.get(b"origin")
        if origin is None or not (self._allows_any or origin in self._origins):
            return
        allowed: Headers = (
            [(_ALLOW_ORIGIN, ANY_ORIGIN.encode())] if self._allows_any else [(_ALLOW_ORIGIN, origin), _VARY]
        )
        preflight = _preflight(request) if head.method == b"OPTIONS" else None
        if preflight is not None:
            request.answer(204, b"", [*allowed, *preflight])
        elif not head.upgrade:
            request.wrap_client(_ReadableResponse(request.client(), allowed))


@final
class _ReadableResponse(ClientWrapper):
    """The wrapper of a client, which adds the fields that let a page of its origin read the response."""

    def __init__(self, client: ClientStream, fields: Headers) -> None:
        super().__init__(client)
        self._fields = fields

    def send_head(self, head: ResponseHead) -> None:
        headers = head.headers.without(_REPLACED)
        for name, value in self._fields:
            headers = headers.with_line(name, value)
        readable = ResponseHead(head.status, head.reason_phrase, headers, head.content_length, head.has_body)
        readable.upgrade = head.upgrade
        self.client.send_head(readable)


def _preflight(request: Exchange) -> Headers | None:
    """Return the fields that allow what a preflight asks for; None if the request is not a preflight."""
    headers = request.head.headers
    method = headers.get(b"access-control-request-method")
    names = headers.get(b"access-control-request-headers") or b""
    if method is None or _TOKEN.fullmatch(method) is None:
        return None
    if len(names) > REQUESTED_FIELDS_BYTES_MAX or _TOKEN_LIST.fullmatch(names) is None:
        return None
    fields: Headers = [
        (b"Access-Control-Allow-Methods", method),
        (b"Access-Control-Max-Age", b"%d" % PREFLIGHT_MAX_AGE_S),
    ]
    return [*fields, (b"Access-Control-Allow-Headers", names)] if names else fields
