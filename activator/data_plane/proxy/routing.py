"""The choice of a request's revision: by trusted revision headers, else by host, then by `match`, `weight`, `default`.

A dedicated port (`RoutingSpec.ports`) belongs to one revision and ignores the host. Exact hosts take precedence over
the longest `*.suffix`, and suffixes over `*`. The port in `Host` is ignored. Only `apply` changes the routes. A host
with one unconditional revision costs one lookup in a cache and no allocation; the rules of other hosts (rules.py) are
built on first use.
"""

from __future__ import annotations

from typing import Final

from activator.codec.message import RequestHead
from activator.config.specs import RoutingSpec
from activator.data_plane.proxy.rules import HostRules
from activator.data_plane.throttle.revision import RevisionThrottler

NAMESPACE_HEADER: Final = b"knative-serving-namespace"
REVISION_HEADER: Final = b"knative-serving-revision"


_CACHED_MAX: Final = 1024  # a bound, because clients choose the authorities
_ANY_HOST: Final = b"*"
_ENTRY: Final = b"port "


def entry_of(port: int) -> bytes:
    """Return the key of a port in the host table; it contains a space, so no client can send it as a host."""
    return b"port %d" % port


def routing_host(head: RequestHead) -> bytes:
    """Return the key of a request in the host table: its dedicated port, or its authority."""
    return head.entry or head.authority


class Router:
    """The routing table of one worker.

    `trust_revision_headers`: Knative's two headers, which its ingress sets, name the revision.
    """

    def __init__(self, trust_revision_headers: bool) -> None:
        self.trusts_revision_headers: bool = trust_revision_headers
        self._hosts: dict[bytes, list[RevisionThrottler]] = {}  # key: exact host, suffix with a leading dot, or `*`
        self._suffixes: int = 0  # how many of the keys are suffixes
        self._by_key: dict[str, RevisionThrottler] = {}
        self._names: dict[str, list[bytes]] = {}  # the keys in `_hosts` of each revision
        # Caches, keyed by the authority as the client spelled it
        self._cached: dict[bytes, RevisionThrottler] = {}
        self._cached_rules: dict[bytes, HostRules] = {}
        self._rules: dict[bytes, HostRules] = {}  # by host, built on first use

    def set(self, throttler: RevisionThrottler) -> None:
        """Route the hosts and ports of this revision, and no others, to it."""
        self.drop(throttler.key)
        hosts = throttler.routing.hosts
        names = [host.lower().encode("ascii" if host.isascii() else "idna") for host in hosts]
        names = [name[1:] if name.startswith(b"*.") else name for name in names]
        names += [entry_of(port) for port in throttler.routing.ports]
        self._by_key[throttler.key] = throttler
        self._names[throttler.key] = names
        for name in names:
            listed = self._hosts.get(name)
            if listed is None:
                self._suffixes += name.startswith(b".")
                self._hosts[name] = [throttler]
            elif throttler not in listed:
                listed.insert(0, throttler)  # without an order in the file, the latest revision comes first
                listed.sort(key=_order)

    def drop(self, key: str) -> None:
        """Remove the routes of a revision; the cost depends on the number of its own hosts only."""
        old = self._by_key.pop(key, None)
        self._cached.clear()
        self._cached_rules.clear()
        self._rules.clear()
        if old is None:
            return
        for name in self._names.pop(key):
            listed = self._hosts.get(name)
            if listed is not None and old in listed:
                listed.remove(old)
                if not listed:
                    del self._hosts[name]
                    self._suffixes -= name.startswith(b".")

    def resolve(self, head: RequestHead) -> RevisionThrottler | None:
        """Return the throttler that headers or host determine; None if rules decide, or no revision serves the host."""
        if head.entry:
            return self.by_host(head.entry)
        if self.trusts_revision_headers:
            named = self.named(_key_named(head))
            if named is not None:
                return named
        return self.by_host(head.authority)

    def named(self, key: str) -> RevisionThrottler | None:
        """Return the throttler of the revision `key` (namespace/name)."""
        return self._by_key.get(key)

    def by_host(self, authority: bytes) -> RevisionThrottler | None:
        """Return the throttler of a host with one unconditional revision; else None."""
        throttler = self._cached.get(authority)
        if throttler is None:
            throttler = self._find_by_host(authority)
            if throttler is not None:
                if len(self._cached) >= _CACHED_MAX:
                    self._cached.clear()
                self._cached[authority] = throttler
        return throttler

    def rules_of(self, authority: bytes) -> HostRules | None:
        """Return the rules for this host; None if no revision serves it."""
        rules = self._cached_rules.get(authority)
        if rules is None:
            for name in reversed(self._matching_keys(authority)):
                rules = self._rules_at(name, rules)
            if rules is not None:
                if len(self._cached_rules) >= _CACHED_MAX:
                    self._cached_rules.clear()
                self._cached_rules[authority] = rules
        return rules

    # --- within ---

    def _find_by_host(self, authority: bytes) -> RevisionThrottler | None:
        for name in self._matching_keys(authority):
            first = self._hosts[name][0]
            return first if _takes_all_requests(first.routing) else None
        return None

    def _matching_keys(self, authority: bytes) -> list[bytes]:
        """Return the matching keys of the host table, the most specific first."""
        keys: list[bytes] = []
        if authority.startswith(_ENTRY):  # wildcards do not match ports
            return [authority] if authority in self._hosts else keys
        host = _without_port(authority)
        if not host.startswith(b"."):  # a leading dot marks a suffix
            if authority in self._hosts:
                keys.append(authority)
            elif host in self._hosts:
                keys.append(host)
        dot = host.find(b".") if self._suffixes else -1
        while dot >= 0:
            if host[dot:] in self._hosts:
                keys.append(host[dot:])
            dot = host.find(b".", dot + 1)
        if _ANY_HOST in self._hosts:
            keys.append(_ANY_HOST)
        return keys

    def _rules_at(self, name: bytes, parent: HostRules | None) -> HostRules:
        """Return the rules of the host `name`. The first call builds them on `parent`, which depends only on `name`."""
        rules = self._rules.get(name)
        if rules is None:
            rules = self._rules[name] = HostRules(self._hosts[name], parent)
        return rules


def _order(throttler: RevisionThrottler) -> int:
    return throttler.routing.order


def _takes_all_requests(routing: RoutingSpec) -> bool:
    """Return True if the revision takes every request of its hosts, so that no later revision gets one."""
    return routing.match.is_every() and routing.weight < 0 and not routing.default and not routing.aliases


def _key_named(head: RequestHead) -> str:
    """Return namespace/name from the revision headers; "" unless both are present."""
    name = head.received(REVISION_HEADER)
    namespace = head.received(NAMESPACE_HEADER) if name else None
    if not name or not namespace:
        return ""
    return (namespace + b"/" + name).decode("latin-1")


def _without_port(authority: bytes) -> bytes:
    """Return the host of an authority, without its port and a final dot."""
    colon = authority.rfind(b":")
    if colon < 0 or authority.endswith(b"]"):
        host = authority
    else:
        host = authority[:colon]
    return host[:-1] if host.endswith(b".") else host  # a fully qualified name may end with a dot
