"""One DNS query: the addresses of a name, and how long they are valid.

Rules
  1. The hosts file (/etc/hosts) has precedence over DNS, as in most programs. The system's resolver functions are not
     used: they block a thread without a limit, and do not return the TTL.
  2. A name has its IPv4 addresses or, if there are none, its IPv6 addresses: a program with both would be two pods.
  3. A query ends within `timeout_s`, including retries and TCP. At most NAME_ADDRESSES_MAX addresses are taken from an
     answer, and SRV_RECORDS_MAX records.
  4. `NameGoneError`: the servers answer that the name does not exist or has no address. `ResolveError`: they do not
     answer validly, so the previous answer stays valid.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from dns.asyncresolver import Resolver
    from dns.nameserver import Nameserver
    from dns.resolver import Answer

NAME_ADDRESSES_MAX: Final = 1_000
SRV_RECORDS_MAX: Final = 100
SRV_WEIGHT_MAX: Final = 1_000  # the largest weight of a pod: larger ones are scaled down
TTL_MIN_S: Final = 1.0  # a TTL of 0 does not cause continuous queries
TTL_MAX_S: Final = 300.0  # a change of a record takes effect within this time
HOSTS_TTL_S: Final = 5.0
HOSTS_BYTES_MAX: Final = 1 << 20

HOSTS_FILE: Final = "/etc/hosts"
RESOLV_CONF: Final = "/etc/resolv.conf"


class ResolveError(Exception):
    """The servers gave no valid answer; the message is for people."""


class NameGoneError(Exception):
    """The name does not exist, or has no address."""


class Target(NamedTuple):
    """One address of a name; `port` and `weight` if SRV records give them."""

    ip: str
    port: int = 0
    weight: int = 1


class Resolved(NamedTuple):
    targets: tuple[Target, ...]  # sorted: the order of an answer has no meaning
    ttl_s: float
    cut: bool = False  # there were more addresses


class NameResolver:
    """A resolver. `servers`: each an `ip` or `ip:port`; empty: the system's servers."""

    def __init__(
        self,
        servers: list[str],
        timeout_s: float,
        hosts_file: str = HOSTS_FILE,
        resolv_conf: str = RESOLV_CONF,
    ) -> None:
        self._servers = servers
        self._timeout_s = timeout_s
        self._hosts_file = hosts_file
        self._resolv_conf = resolv_conf
        self._hosts: dict[str, list[str]] = {}
        self._read: dict[str, tuple[int, int, int]] = {}  # state of each file when it was read
        self._resolver: Resolver | None = None

    async def addresses(self, host: str) -> Resolved:
        """Resolve a name. Raises ResolveError, NameGoneError."""
        in_file = self._in_hosts_file(host)
        if in_file:
            return _resolved([Target(ip) for ip in in_file], HOSTS_TTL_S)
        try:
            async with asyncio.timeout(self._timeout_s):
                for kind in ("A", "AAAA"):
                    answer = await self._query(host, kind)
                    if answer.rrset:
                        targets = [Target(record.address) for record in answer.rrset]
                        return _resolved(targets, answer.chaining_result.minimum_ttl)
        except TimeoutError:
            raise ResolveError(f"the name servers did not answer in {self._timeout_s:g} s") from None
        raise NameGoneError("the name has no address")

    async def services(self, name: str) -> Resolved:
        """Return addresses, ports and weights of the SRV records with the lowest priority. Raises as `addresses`."""
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await self._query(name, "SRV")
        except TimeoutError:
            raise ResolveError(f"the name servers did not answer in {self._timeout_s:g} s") from None
        if not answer.rrset:
            raise NameGoneError("the name has no SRV records")
        records = sorted(answer.rrset, key=lambda record: (record.priority, record.target, record.port))
        first = [record for record in records if record.priority == records[0].priority]
        most = max(1, *(record.weight for record in first))
        targets: list[Target] = []
        ttl_s = float(answer.chaining_result.minimum_ttl)
        for record in first[:SRV_RECORDS_MAX]:
            try:
                resolved = await self.addresses(record.target.to_text(omit_final_dot=True))
            except NameGoneError:
                continue
            weight = record.weight if most <= SRV_WEIGHT_MAX else record.weight * SRV_WEIGHT_MAX // most
            targets.extend(Target(target.ip, record.port, max(weight, 1)) for target in resolved.targets)
            ttl_s = min(ttl_s, resolved.ttl_s)
        if not targets:
            raise NameGoneError("no target of its SRV records has an address")
        return _resolved(targets, ttl_s, len(first) > SRV_RECORDS_MAX)

    async def _query(self, name: str, kind: str) -> Answer:
        from dns.exception import DNSException  # dnspython is imported only if there are names
        from dns.resolver import NXDOMAIN, YXDOMAIN, LifetimeTimeout, NoNameservers

        try:
            resolver = self._current_resolver()
            return await resolver.resolve(name, kind, raise_on_no_answer=False, lifetime=self._timeout_s)
        except NXDOMAIN:
            raise NameGoneError("there is no such name (NXDOMAIN)") from None
        except LifetimeTimeout:
            raise ResolveError(f"the name servers did not answer in {self._timeout_s:g} s") from None
        except NoNameservers as error:
            raise ResolveError(_errors_of(error)) from None
        except (DNSException, YXDOMAIN, OSError, ValueError) as error:
            raise ResolveError(f"{type(error).__name__}: {error}") from None

    def _current_resolver(self) -> Resolver:
        """Return the resolver, with the system's file as it is now."""
        from dns.asyncresolver import Resolver

        if self._servers:
            if self._resolver is None:
                self._resolver = Resolver(configure=False)
                self._resolver.nameservers = [_server(server) for server in self._servers]
        elif self._has_changed(self._resolv_conf) or self._resolver is None:
            self._resolver = Resolver(self._resolv_conf)
        return self._resolver

    def _in_hosts_file(self, host: str) -> list[str]:
        if self._has_changed(self._hosts_file):
            self._hosts = _read_hosts(self._hosts_file)
        name = host.rstrip(".").lower()
        addresses = self._hosts.get(name, ["127.0.0.1"] if name == "localhost" else [])
        return [ip for ip in addresses if ":" not in ip] or addresses

    def _has_changed(self, path: str) -> bool:
        """Return True if the file has changed since the last call."""
        try:
            status = os.stat(path)
            state = (status.st_ino, status.st_size, status.st_mtime_ns)
        except OSError:
            state = (0, 0, 0)
        if self._read.get(path) == state:
            return False
        self._read[path] = state
        return True


def _resolved(targets: list[Target], ttl_s: float, cut: bool = False) -> Resolved:
    unique = tuple(sorted(dict.fromkeys(targets)))
    cut = cut or len(unique) > NAME_ADDRESSES_MAX
    return Resolved(unique[:NAME_ADDRESSES_MAX], min(max(float(ttl_s), TTL_MIN_S), TTL_MAX_S), cut)


def _server(text: str) -> Nameserver:
    from dns.nameserver import Do53Nameserver

    host, _, port = text.rpartition(":") if text.count(":") == 1 or text.startswith("[") else (text, "", "53")
    return Do53Nameserver(host.strip("[]"), int(port))


def _errors_of(error: Exception) -> str:
    """Return the errors of the servers as one short line."""
    answers = getattr(error, "kwargs", {}).get("errors", [])
    answered = sorted({str(answer[3]) for answer in answers if len(answer) > 3})
    return "the name servers answered " + ", ".join(answered)[:200] if answered else "no name server answered"


def _read_hosts(path: str) -> dict[str, list[str]]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read(HOSTS_BYTES_MAX)
    except OSError:
        return {}
    addresses: dict[str, list[str]] = {}
    for line in text.splitlines():
        words = line.partition("#")[0].split()
        if len(words) > 1 and _is_ip(words[0]):
            for name in words[1:]:
                addresses.setdefault(name.rstrip(".").lower(), []).append(words[0])
    return addresses


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
