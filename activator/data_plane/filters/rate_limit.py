"""The rate limit of each client address of a revision (`rate_limit`), in one worker."""

from __future__ import annotations

import ipaddress
import math
from typing import Final, final

from activator.config.specs import RateLimitSpec
from activator.data_plane.exchange import Exchange
from activator.data_plane.filters.filter import Failure, Filter
from activator.data_plane.quotas.address_rates import AddressRates
from activator.runtime.clock import Now
from activator.runtime.networks import canonical
from activator.runtime.reasons import Reason

NO_ADDRESS: Final = "none"  # one bucket for clients whose address is unknown
_NETWORK_BYTES: Final = 8  # the /64 of an IPv6 address, which is one client
_DOTTED_DIGITS: Final = frozenset("0123456789.")


@final
class RateLimit(Filter):
    """The filter that refuses the requests of an address beyond its rate; they start no pod and are no load.

    A request counts for each revision that it is routed to, unless `allow` refuses it: clients outside the networks use
    no memory for addresses. Clients of a Unix socket without an address are exempt: one of them could otherwise use up
    the requests of all.
    """

    def __init__(self, spec: RateLimitSpec, seed: bytes, now: Now) -> None:
        self.spec = spec
        self.follows_allow: bool = False  # `Allow` comes before it, and marks the requests that it refuses
        self._rates = AddressRates(spec.requests, spec.period_s, spec.burst, seed)
        self._now = now

    def on_routed(self, request: Exchange) -> None:
        request.rate_wait_s = 0.0
        if self.follows_allow and request.is_quiet:
            return
        client = request.client()
        ip = client.client_ip()
        if ip or not client.is_local():
            request.rate_wait_s = self._rates.admit(network_of(ip), self._now())
        if request.rate_wait_s > 0.0:
            request.is_quiet = True

    def on_request(self, request: Exchange) -> None:
        if request.rate_wait_s > 0.0:
            request.fail(Reason.RATE_LIMITED, "")

    def on_failure(self, request: Exchange, failure: Failure) -> None:
        if failure.reason is Reason.RATE_LIMITED:
            failure.retry_after_s = max(math.ceil(request.rate_wait_s), 1)


def network_of(ip: str) -> str:
    """Return the key of a client's bucket: an IPv4 address, the /64 of an IPv6 address in hex digits, or NO_ADDRESS."""
    if ":" not in ip:
        return ip if ip and _DOTTED_DIGITS.issuperset(ip) else NO_ADDRESS
    try:
        address = canonical(ipaddress.ip_address(ip.partition("%")[0]))
    except ValueError:
        return NO_ADDRESS
    return str(address) if address.version == 4 else address.packed[:_NETWORK_BYTES].hex()
