"""Which revision a request is for: by host, or by the revision headers where they are trusted.

Exact hosts come first, then the longest `*.suffix`, then the one revision that takes `*`. The port in `Host` does not
matter. Written by `apply` only; a lookup allocates nothing for a host that is served.
"""

from __future__ import annotations

from typing import Final

from activator.codec.message import RequestHead
from activator.data_plane.throttle.revision import RevisionThrottler

NAMESPACE_HEADER: Final = b"knative-serving-namespace"
REVISION_HEADER: Final = b"knative-serving-revision"


_KNOWN_MAX: Final = 1024  # clients choose the authorities


class Router:
    """`trust_revision_headers`: Knative's two headers name the revision, as its ingress sets them."""

    def __init__(self, trust_revision_headers: bool) -> None:
        self._trust_revision_headers = trust_revision_headers
        self._exact: dict[bytes, RevisionThrottler] = {}
        self._suffixes: dict[bytes, RevisionThrottler] = {}  # with the leading dot
        self._fallback: RevisionThrottler | None = None
        self._by_key: dict[str, RevisionThrottler] = {}
        self._names: dict[str, list[bytes]] = {}  # the hosts of each revision
        self._known: dict[bytes, RevisionThrottler] = {}  # authorities of late, as clients spelt them

    def set(self, throttler: RevisionThrottler) -> None:
        """Route the hosts of this revision to it, and no others."""
        self.drop(throttler.key)
        hosts = throttler.spec.hosts
        names = [host.lower().encode("ascii" if host.isascii() else "idna") for host in hosts]
        self._by_key[throttler.key] = throttler
        self._names[throttler.key] = names
        self._known.clear()
        for name in names:
            if name == b"*":
                self._fallback = throttler
            elif name.startswith(b"*."):
                self._suffixes[name[1:]] = throttler
            else:
                self._exact[name] = throttler

    def drop(self, key: str) -> None:
        """No host leads to this revision any more; costs its own hosts, however many others there are."""
        old = self._by_key.pop(key, None)
        self._known.clear()
        if old is None:
            return
        for name in self._names.pop(key):
            if name == b"*":
                if self._fallback is old:
                    self._fallback = None
            elif name.startswith(b"*."):
                if self._suffixes.get(name[1:]) is old:
                    del self._suffixes[name[1:]]
            elif self._exact.get(name) is old:
                del self._exact[name]

    def resolve(self, head: RequestHead) -> RevisionThrottler | None:
        """The throttler of the revision that this request is for, or None: then it is a 404."""
        if self._trust_revision_headers:
            named = self.named(_key_named(head))
            if named is not None:
                return named
        return self.by_host(head.authority)

    def named(self, key: str) -> RevisionThrottler | None:
        """The same by namespace/name."""
        return self._by_key.get(key)

    def by_host(self, authority: bytes) -> RevisionThrottler | None:
        """The same by host alone."""
        throttler = self._known.get(authority)
        if throttler is None:
            throttler = self._find(authority)
            if throttler is not None:
                if len(self._known) >= _KNOWN_MAX:
                    self._known.clear()
                self._known[authority] = throttler
        return throttler

    def _find(self, authority: bytes) -> RevisionThrottler | None:
        throttler = self._exact.get(authority)
        if throttler is not None:
            return throttler
        host = _without_port(authority)
        throttler = self._exact.get(host)
        if throttler is None and self._suffixes:
            throttler = self._longest_suffix(host)
        return throttler if throttler is not None else self._fallback

    def _longest_suffix(self, host: bytes) -> RevisionThrottler | None:
        dot = host.find(b".")
        while dot >= 0:
            throttler = self._suffixes.get(host[dot:])
            if throttler is not None:
                return throttler
            dot = host.find(b".", dot + 1)
        return None


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
