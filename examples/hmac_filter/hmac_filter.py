"""hmac: only requests whose body is signed with a shared secret start anything, as GitHub signs its webhooks.

Options: `secret`, and `header` (default X-Hub-Signature-256), which has `sha256=` and the HMAC of the body in hex.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from typing import Final

from activator.filters import Exchange, Filter, HeadEdits

BODY_BYTES_MAX: Final = 1 << 20


class HmacFilter(Filter):
    """Receives the whole body first, and tells pods by a header that the signature was right."""

    def __init__(self, options: Mapping[str, str]) -> None:
        if not options.get("secret") or options.keys() - {"secret", "header"}:
            raise ValueError("the options are `secret`, which is required, and `header`")
        self._secret = options["secret"].encode()
        self._header = options.get("header", "X-Hub-Signature-256").lower().encode()

    def on_request(self, request: Exchange) -> None:
        signature = request.head.headers.get(self._header)
        if signature is None:
            request.answer(401, b"the request is not signed\n")
        elif request.gather(BODY_BYTES_MAX):  # if not, this is called again when the body is here
            self._judge(request, signature)

    def _judge(self, request: Exchange, signature: bytes) -> None:
        body = request.body()
        if body is None or not request.request_done:
            request.answer(413, b"the body is too large to be checked\n")
            return
        expected = b"sha256=" + hmac.new(self._secret, body, hashlib.sha256).hexdigest().encode()
        if not hmac.compare_digest(expected, signature):
            request.answer(403, b"the signature does not fit the body\n")

    def on_attempt(self, request: Exchange, edits: HeadEdits) -> None:
        edits.remove(frozenset([self._header]))
        edits.set(b"X-Signed", b"yes")
