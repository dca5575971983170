"""The place of a request in the queue of its revision; a request that falls back gets a new one."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from activator.codec.message import RequestHead
from activator.data_plane.throttle.leases import Lease
from activator.data_plane.throttle.waiters import Waiter
from activator.runtime.reasons import Reason

if TYPE_CHECKING:  # import cycle
    from activator.data_plane.proxy.exchange import ProxiedExchange


@final
class QueuePlace(Waiter):
    """The waiter of one exchange; the exchange drops its reference to it at the end."""

    def __init__(self, exchange: ProxiedExchange) -> None:
        super().__init__()
        self._exchange = exchange

    def request(self) -> RequestHead:
        return self._exchange.head

    def granted(self, lease: Lease) -> None:
        self._exchange.granted(lease)

    def refused(self, reason: Reason, detail: str) -> None:
        self._exchange.fail(reason, detail)

    def revoked(self, reason: Reason, detail: str) -> None:
        self._exchange.revoked(reason, detail)
