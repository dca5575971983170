"""Which revision a request is for: by the revision headers where they are trusted, else by host, and where revisions of
a host say more (`match`, `weight`, `default`), by that.

A port of its own (`RevisionSpec.ports`) leads to one revision whatever the host. Exact hosts come first, then the
longest `*.suffix`, then `*`. The port in `Host` does not matter. Written by `apply` only. A host that leads to one
revision whatever the request is costs one look at what is known of late, and allocates nothing; rules of a host
(rules.py) are made when they are first asked for.
"""

from __future__ import annotations

from typing import Final

from activator.codec.message import RequestHead
from activator.config.specs import RevisionSpec
from activator.data_plane.proxy.rules import HostRules
from activator.data_plane.throttle.revision import RevisionThrottler

NAMESPACE_HEADER: Final = b"knative-serving-namespace"
REVISION_HEADER: Final = b"knative-serving-revision"


_KNOWN_MAX: Final = 1024  # clients choose the authorities
_EVERY: Final = b"*"
_ENTRY: Final = b"port "


def entry_of(port: int) -> bytes:
    """What stands for a port among the hosts. No client can name it: a host has no space."""
    return b"port %d" % port


def sought(head: RequestHead) -> bytes:
    """What says the revision that this request is for: the port that it came to, or its host."""
    return head.entry or head.authority


class Router:
    """`trust_revision_headers`: Knative's two headers name the revision, as its ingress sets them."""

    def __init__(self, trust_revision_headers: bool) -> None:
        self.trusts_revision_headers: bool = trust_revision_headers
        self._hosts: dict[bytes, list[RevisionThrottler]] = {}  # exact, with a leading dot for a suffix, or `*`
        self._suffixes: int = 0  # how many of these are suffixes
        self._by_key: dict[str, RevisionThrottler] = {}
        self._names: dict[str, list[bytes]] = {}  # the hosts of each revision
        # authorities of late, as clients spelt them
        self._known: dict[bytes, RevisionThrottler] = {}
        self._known_rules: dict[bytes, HostRules] = {}
        self._rules: dict[bytes, HostRules] = {}  # by host, as far as they were asked for

    def set(self, throttler: RevisionThrottler) -> None:
        """Route the hosts of this revision to it, and no others."""
        self.drop(throttler.key)
        hosts = throttler.spec.hosts
        names = [host.lower().encode("ascii" if host.isascii() else "idna") for host in hosts]
        names = [name[1:] if name.startswith(b"*.") else name for name in names]
        names += [entry_of(port) for port in throttler.spec.ports]
        self._by_key[throttler.key] = throttler
        self._names[throttler.key] = names
        for name in names:
            listed = self._hosts.get(name)
            if listed is None:
                self._suffixes += name.startswith(b".")
                self._hosts[name] = [throttler]
            elif throttler not in listed:
                listed.insert(0, throttler)  # of those that the file does not order, the last one set is the first
                listed.sort(key=_order)

    def drop(self, key: str) -> None:
        """No host leads to this revision any more; costs its own hosts, however many others there are."""
        old = self._by_key.pop(key, None)
        self._known.clear()
        self._known_rules.clear()
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
        """The throttler of the revision that this request is for, as far as its headers or its host alone say it."""
        if head.entry:
            return self.by_host(head.entry)
        if self.trusts_revision_headers:
            named = self.named(_key_named(head))
            if named is not None:
                return named
        return self.by_host(head.authority)

    def named(self, key: str) -> RevisionThrottler | None:
        """The same by namespace/name."""
        return self._by_key.get(key)

    def by_host(self, authority: bytes) -> RevisionThrottler | None:
        """The same by host alone; None where more than the host decides, too."""
        throttler = self._known.get(authority)
        if throttler is None:
            throttler = self._find(authority)
            if throttler is not None:
                if len(self._known) >= _KNOWN_MAX:
                    self._known.clear()
                self._known[authority] = throttler
        return throttler

    def rules_of(self, authority: bytes) -> HostRules | None:
        """What decides about requests for this host; None: no revision serves it."""
        rules = self._known_rules.get(authority)
        if rules is None:
            for name in reversed(self._levels(authority)):
                rules = self._rules_at(name, rules)
            if rules is not None:
                if len(self._known_rules) >= _KNOWN_MAX:
                    self._known_rules.clear()
                self._known_rules[authority] = rules
        return rules

    # --- within ---

    def _find(self, authority: bytes) -> RevisionThrottler | None:
        for name in self._levels(authority):
            first = self._hosts[name][0]
            return first if _takes_every(first.spec) else None
        return None

    def _levels(self, authority: bytes) -> list[bytes]:
        """What leads from this authority to revisions, the most specific first."""
        found: list[bytes] = []
        if authority.startswith(_ENTRY):  # no wildcard is meant by a port
            return [authority] if authority in self._hosts else found
        host = _without_port(authority)
        if not host.startswith(b"."):  # a dot is the mark of a suffix
            if authority in self._hosts:
                found.append(authority)
            elif host in self._hosts:
                found.append(host)
        dot = host.find(b".") if self._suffixes else -1
        while dot >= 0:
            if host[dot:] in self._hosts:
                found.append(host[dot:])
            dot = host.find(b".", dot + 1)
        if _EVERY in self._hosts:
            found.append(_EVERY)
        return found

    def _rules_at(self, name: bytes, parent: HostRules | None) -> HostRules:
        """The rules of a host; those that are less specific follow from its name alone."""
        rules = self._rules.get(name)
        if rules is None:
            rules = self._rules[name] = HostRules(self._hosts[name], parent)
        return rules


def _order(throttler: RevisionThrottler) -> int:
    return throttler.spec.order


def _takes_every(spec: RevisionSpec) -> bool:
    """A request for its hosts can mean no other revision that comes later."""
    return spec.match.is_every() and spec.weight < 0 and not spec.default and not spec.aliases


def _key_named(head: RequestHead) -> str:
    """namespace/name out of the revision headers; empty where not both are there."""
    name = head.received(REVISION_HEADER)
    namespace = head.received(NAMESPACE_HEADER) if name else None
    if not name or not namespace:
        return ""
    return (namespace + b"/" + name).decode("latin-1")


def _without_port(authority: bytes) -> bytes:
    colon = authority.rfind(b":")
    if colon < 0 or authority.endswith(b"]"):
        host = authority
    else:
        host = authority[:colon]
    return host[:-1] if host.endswith(b".") else host  # a fully qualified name may end in a dot
