"""The addresses that the program serves on: those of the file, and those that a cluster asks for."""

from __future__ import annotations

import logging
from collections.abc import Callable

from activator.config.model.file import Config
from activator.config.model.listeners import Listener, address_of_listener, resolve_redirects
from activator.runtime.errors import StartError
from activator.runtime.sockets import join_address, split_address
from activator.runtime.unix_address import is_unix
from activator.workers.workers import ListenerPlan, Workers

log = logging.getLogger("activator")


def listeners(config: Config) -> list[str | Listener]:
    """Return the listeners of a configuration, with all settings of redirects."""
    return resolve_redirects(config.listen if isinstance(config.listen, list) else [config.listen])


class ServedAddresses:
    """The addresses that the activator listens on. `config()` returns the configuration in effect."""

    def __init__(self, workers: Workers, config: Callable[[], Config]) -> None:
        self._workers = workers
        self._config = config
        self._asked_by_cluster: list[Listener] = []
        self._entries: list[str] = []  # ports that each lead to one revision
        self._unbound_entries: set[str] = set()  # entries that cannot be bound; each is logged once

    def plan(self, config: Config) -> ListenerPlan:
        """Plan the listeners of a new configuration, with those that the cluster asks for. Raises StartError."""
        return self._workers.plan([*listeners(config), *self._asked_by_cluster, *self._entries])

    def all(self, *bound: str) -> list[str]:
        """Return the addresses as configured and as bound. `bound`: addresses of ports that are no listeners."""
        config, kubernetes = self._config(), self._config().kubernetes
        configured = [*map(address_of_listener, listeners(config)), config.admin_address]
        configured += [config.push.listen, config.members.listen]
        if kubernetes is not None:
            configured.append(kubernetes.external_scaler.listen)
        return [one for one in (*configured, *self._workers.addresses, *bound) if one]

    def serve_tls(self, listener: Listener) -> None:
        """Serve on a listener that the cluster asks for, or with a new certificate for it."""
        self._asked_by_cluster = [listener]
        try:
            self._workers.change(self.plan(self._config()))
        except StartError as error:
            log.error("%s", error)

    def serve_entries(self, ports: frozenset[int]) -> frozenset[int]:
        """Serve on these ports, each for one revision, and on no other entries. Return those that cannot be bound."""
        host = self._entry_host()
        fixed = [*listeners(self._config()), *self._asked_by_cluster]
        wanted = [join_address(host, port) for port in sorted(ports)]
        try:
            self._workers.change(self._workers.plan([*fixed, *wanted]))
            self._entries = wanted
            self._unbound_entries.clear()
            return frozenset()
        except StartError:
            self._entries = [address for address in self._entries if address in wanted]
            for address in wanted:
                if address not in self._entries:
                    self._serve_entry(address)
            self._unbound_entries &= {*wanted}
            return frozenset(port for port in ports if join_address(host, port) not in self._entries)

    def families(self) -> frozenset[str]:
        """Return the address families by which entries are reached."""
        host = self._entry_host()
        return frozenset({"IPv4", "IPv6"} if host == "::" else {"IPv6" if ":" in host else "IPv4"})

    def _entry_host(self) -> str:
        """Return the host to bind entries to: that of the first TCP listener in `listen`, or 0.0.0.0 without one."""
        addresses = [address_of_listener(listener) for listener in listeners(self._config())]
        return split_address(next((one for one in addresses if not is_unix(one)), "0.0.0.0:0"))[0]

    def _serve_entry(self, address: str) -> None:
        """Serve on one more entry."""
        wanted = [*listeners(self._config()), *self._asked_by_cluster, *self._entries, address]
        try:
            self._workers.change(self._workers.plan(wanted))
        except StartError as error:
            if address not in self._unbound_entries:  # it is tried again each second
                self._unbound_entries.add(address)
                log.error("%s; the Service that used this port gets another", error)
            return
        self._entries.append(address)
