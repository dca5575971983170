"""The redirect of every request of a listener to https (`redirect`)."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, final

from activator.codec.message import Fields, RequestHead, ResponseHead
from activator.data_plane.exchange import Exchange
from activator.data_plane.filters.filter import Filter
from activator.data_plane.refusals import PHRASES
from activator.runtime.reasons import Reason

HTTPS_PORT: Final = 443
HOST_BYTES_MAX: Final = 253  # as DNS allows
# The codecs accept no other characters either. A name has no empty label.
_HOST: Final = re.compile(rb"[a-z0-9_~-]+(\.[a-z0-9_~-]+)*\.?|\[[0-9a-f:.]+\]")


@final
class HttpsRedirect(Filter):
    """The filter of one listener's requests, which never reach a revision.

    `on_redirect` is called for each redirect. A request for which no https address can be built gets 400.
    """

    def __init__(self, port: int, status: int, on_redirect: Callable[[], None]) -> None:
        self._port = port
        self._status = status
        self._on_redirect = on_redirect

    def on_arrival(self, request: Exchange) -> None:
        location = https_location(request.head, self._port)
        if not location:
            request.fail(Reason.BAD_REQUEST, "it has no host or path that https could serve")
            return
        self._on_redirect()
        fields = Fields.from_pairs([(b"Location", location)])
        request.respond(ResponseHead(self._status, PHRASES[self._status], fields, 0, True), b"")


def https_location(head: RequestHead, port: int) -> bytes:
    """Return the address of the same resource by https; empty if there is none.

    The host is the client's, without its port. An HTTP/1.0 client may name none, and `OPTIONS *` has no path.
    """
    authority = head.authority
    host = authority if authority.endswith(b"]") or b":" not in authority else authority[: authority.rindex(b":")]
    if len(host) > HOST_BYTES_MAX or _HOST.fullmatch(host) is None or not head.target.startswith(b"/"):
        return b""
    suffix = b"" if port == HTTPS_PORT else b":%d" % port
    return b"https://%b%b%b" % (host, suffix, head.target)
