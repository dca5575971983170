"""The networks of clients that may use a revision (`allow`)."""

from __future__ import annotations

import ipaddress
from typing import Final, final

from activator.data_plane.exchange import Exchange
from activator.data_plane.filters.filter import Filter
from activator.runtime.networks import is_within
from activator.runtime.reasons import Reason

UNIX: Final = "unix"  # the clients of a Unix socket, which have no address
KEPT_MAX: Final = 4_096  # addresses whose result is cached


@final
class Allow(Filter):
    """The filter that refuses clients outside the networks; their requests start no pod and are no load."""

    def __init__(self, networks: tuple[str, ...]) -> None:
        self._networks = [ipaddress.ip_network(network) for network in networks if network != UNIX]
        self._allows_unix: bool = UNIX in networks
        self._cached: dict[str, bool] = {}  # by address: if it is allowed

    def on_routed(self, request: Exchange) -> None:
        if not self._allows(request):
            request.is_quiet = True

    def on_request(self, request: Exchange) -> None:
        if not self._allows(request):
            request.fail(Reason.ADDRESS_NOT_ALLOWED, "")

    def _allows(self, request: Exchange) -> bool:
        """Return True if the client of a request is in the networks."""
        client = request.client()
        ip = client.client_ip()
        if not ip:
            return self._allows_unix and client.is_local()
        is_allowed = self._cached.get(ip)
        if is_allowed is None:
            if len(self._cached) >= KEPT_MAX:
                self._cached.clear()
            is_allowed = self._cached[ip] = is_within(ip, self._networks)
        return is_allowed
