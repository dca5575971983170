"""The addresses on which the activator itself listens: pods at them are left out.

A pod at the port for clients would send each request back in a loop. One at the admin port would open that port to
every client. This applies to the pods of every source.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from activator.messages import Change, ObservedPod, PodGone, PodsListed
from activator.runtime.sockets import split_address
from activator.runtime.unix_address import is_unix, path_of

LOGGED_MAX: Final = 1_000  # pods that were left out, each logged once
LOCAL_KNOWN_MAX: Final = 1_000  # cached answers whether an IP address is local

log = logging.getLogger("activator.state")


class OwnPorts:
    """The activator's own addresses. `addresses` returns those it listens on now: `host:port` or `unix:/path`."""

    def __init__(self, addresses: Callable[[], Iterable[str]] = tuple) -> None:
        self.addresses = addresses
        self._known: tuple[str, ...] = ()
        self._hosts: dict[int, set[str]] = {}  # by port
        self._paths: set[str] = set()
        self._local: dict[str, bool] = {}  # by host: whether it is an IP address of this machine
        self._logged: set[tuple[str, str, str]] = set()

    def without_own(self, change: Change) -> Change:
        """Return the change without pods at own ports: a list is shortened, a single pod becomes PodGone."""
        if type(change) is ObservedPod:
            return PodGone(change.key, change.source, change.identity) if self._is_left_out(change) else change
        if type(change) is PodsListed:
            kept = tuple([pod for pod in change.pods if not self._is_left_out(pod)])
            if len(kept) != len(change.pods):
                return msgspec.structs.replace(change, pods=kept)
        return change

    def is_own(self, address: str) -> bool:
        """Return True if a connection to `address` reaches a port of the activator."""
        self._refresh()
        if is_unix(address):
            return os.path.realpath(path_of(address)) in self._paths
        try:
            host, port = split_address(address)
        except ValueError:
            return False
        hosts = self._hosts.get(port)
        if hosts is None:
            return False
        canonical = _canonical(host)
        if canonical in hosts or _is_wildcard(canonical):
            return True
        return not hosts.isdisjoint({"0.0.0.0", "::"}) and self._is_local(canonical)

    def _is_left_out(self, pod: ObservedPod) -> bool:
        """Return True if the pod is at a port of the activator; log each such pod once."""
        if not self.is_own(pod.address):
            return False
        left_out = (pod.key, pod.identity, pod.address)
        if left_out not in self._logged and len(self._logged) < LOGGED_MAX:
            self._logged.add(left_out)
            log.warning(
                "revision %s: the pod %s is ignored: %s is a port of the activator itself; correct its address",
                *(pod.key, pod.identity, pod.address),
            )
        return True

    def _refresh(self) -> None:
        """Read the addresses again, and sort them by port if they have changed."""
        addresses = tuple(self.addresses())
        if addresses == self._known:
            return
        self._known = addresses
        self._hosts, self._paths = {}, set()
        for address in addresses:
            if is_unix(address):
                self._paths.add(os.path.realpath(path_of(address)))
                continue
            host, port = split_address(address)
            if port:
                self._hosts.setdefault(port, set()).add(_canonical(host) or "0.0.0.0")

    def _is_local(self, host: str) -> bool:
        """Return True if the IP address belongs to this machine: only then can it be bound."""
        known = self._local.get(host)
        if known is None:
            if len(self._local) >= LOCAL_KNOWN_MAX:
                self._local.clear()
            known = self._local[host] = _can_be_bound(host)
        return known


def _can_be_bound(host: str) -> bool:
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind((host, 0))
    except OSError:
        return False
    return True


def _is_wildcard(host: str) -> bool:
    """Return True for the address that reaches every port of this machine, whatever address the port is bound to."""
    return host in {"0.0.0.0", "::"}


def _canonical(host: str) -> str:
    """Return the one notation of an IP address; a name other than `localhost` stays as it is."""
    if host == "localhost":
        return "127.0.0.1"
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)
