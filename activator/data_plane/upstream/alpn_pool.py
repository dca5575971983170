"""The connections of a pod over TLS that may speak either version of HTTP: ALPN says which, on its first connection.

Rules
  1. It is an HTTP/2 pool until a pod agrees on HTTP/1.1. Then the connection, and the exchanges that wait, are handed
     over to an HTTP/1.1 pool, which is the one in use from then on (`PodPool.in_use`).
  2. What a pod has agreed on holds until it leaves, or until its address changes: then the tracker gets a new pool.
"""

from __future__ import annotations

from mypy_extensions import mypyc_attr

from activator.data_plane.upstream.dial import Dial
from activator.data_plane.upstream.http1_pool import Http1Pool
from activator.data_plane.upstream.http2_pool import Http2Pool
from activator.runtime.reasons import Reason


@mypyc_attr(allow_interpreted_subclasses=True)
class AlpnPool(Http2Pool):
    """The pool of a pod whose protocol is not known before it has been asked."""

    def _dial_failed(self, dial: Dial, reason: Reason) -> None:
        address = self._address.http1
        transport, dial.http1 = dial.http1, None
        if transport is None or address is None:
            super()._dial_failed(dial, reason)
            return
        self._end_dial(dial)
        pool = Http1Pool(self._context, self._now, address, self._connect_timeout_s, self._expected_identity)
        pool.adopt(transport, dial.bare)
        self.hand_over(pool)
