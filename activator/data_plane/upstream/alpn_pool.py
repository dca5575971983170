"""The connections of a pod over TLS that may speak either version of HTTP: ALPN says which, on its first connection.

Rules
  1. It is an HTTP/2 pool until a pod agrees on HTTP/1.1. Then the connection, and the exchanges that wait, are given to
     an HTTP/1.1 pool, which does everything from then on.
  2. What a pod has agreed on holds until it leaves, or until its address changes.
"""

from __future__ import annotations

from mypy_extensions import mypyc_attr

from activator.data_plane.exchange import PodStream, PodUser
from activator.data_plane.upstream.dial import Dial, DialContext, PodAddress
from activator.data_plane.upstream.http1_pool import Http1Pool
from activator.data_plane.upstream.http2_pool import Http2Pool
from activator.data_plane.upstream.identity_check import ExpectedIdentity
from activator.runtime.clock import NEVER, Now
from activator.runtime.reasons import Reason


@mypyc_attr(allow_interpreted_subclasses=True)
class AlpnPool(Http2Pool):
    """Of a pod whose protocol is not known before it has been asked."""

    def __init__(
        self,
        context: DialContext,
        now: Now,
        address: PodAddress,
        connect_timeout_s: float,
        naming: ExpectedIdentity | None = None,
    ) -> None:
        super().__init__(context, now, address, connect_timeout_s, naming)
        self._http1: Http1Pool | None = None

    def checkout(self, exchange: PodUser, idle_max_s: float, now_s: float) -> PodStream | None:
        if self._http1 is not None:
            return self._http1.checkout(exchange, idle_max_s, now_s)
        return super().checkout(exchange, idle_max_s, now_s)

    def _dial_failed(self, dial: Dial, reason: Reason) -> None:
        address = self._address.http1
        transport, dial.http1 = dial.http1, None
        if transport is None or address is None:
            super()._dial_failed(dial, reason)
            return
        self._end_dial(dial)
        if self._closed:
            transport.abort()
            return
        if self._http1 is not None:
            self._http1.adopt(transport, dial.bare)
            return
        pool = self._http1 = Http1Pool(
            self._context, self._now, address, self._connect_timeout_s, self._expected_identity
        )
        waiting = self._waiting
        self._waiting = {}
        now_s = self._now()
        pool.adopt(transport, dial.bare)
        for exchange, fresh in waiting.items():
            pod = pool.checkout(exchange, 0.0 if fresh else NEVER, now_s)
            if pod is not None:
                exchange.connected(pod)

    def forget(self, exchange: PodUser) -> None:
        if self._http1 is not None:
            self._http1.forget(exchange)
        super().forget(exchange)

    def move(self, address: PodAddress) -> None:
        http1, self._http1 = self._http1, None
        super().move(address)
        if http1 is not None:  # what the pod agreed on is asked for again
            http1.hand_over(self)

    def close(self) -> None:
        if self._http1 is not None:
            self._http1.close()
        super().close()

    def watch(self) -> None:
        if self._http1 is not None:
            self._http1.watch()
        super().watch()

    def statistics(self) -> dict[str, int]:
        return super().statistics() if self._http1 is None else self._http1.statistics()

    def count_into(self, totals: list[int]) -> None:
        if self._http1 is not None:
            self._http1.count_into(totals)
        super().count_into(totals)

    def close_idle_one(self) -> bool:
        return (self._http1 is not None and self._http1.close_idle_one()) or super().close_idle_one()
