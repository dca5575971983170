"""The connections over TLS of a pod that may speak either HTTP version; ALPN on the first connection decides.

Rules
  1. The pool is an HTTP/2 pool until the pod negotiates HTTP/1.1. Then the connection and the waiting exchanges are
     handed over to an HTTP/1.1 pool, which is used from then on (`PodPool.in_use`).
  2. The negotiated version applies until the pod is removed or its address changes; then its tracker gets a new pool.
"""

from __future__ import annotations

from mypy_extensions import mypyc_attr

from activator.data_plane.upstream.dial import Dial
from activator.data_plane.upstream.http1_pool import Http1Pool
from activator.data_plane.upstream.http2_pool import Http2Pool
from activator.runtime.reasons import Reason


@mypyc_attr(allow_interpreted_subclasses=True)
class AlpnPool(Http2Pool):
    """The pool of a pod whose protocol is unknown until the first connection."""

    def _dial_failed(self, dial: Dial, reason: Reason) -> None:
        """Hand over to an HTTP/1.1 pool if the pod has negotiated HTTP/1.1."""
        address = self._address.http1
        transport, dial.http1 = dial.http1, None
        if transport is None or address is None:
            super()._dial_failed(dial, reason)
            return
        self._end_dial(dial)
        pool = Http1Pool(self._context, self._now, address, self._connect_timeout_s, self._expected_identity)
        pool.adopt(transport, dial.bare)
        self.hand_over(pool)
