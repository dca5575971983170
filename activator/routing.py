"""Which revision a request is for: by host, or by the revision headers where they are trusted.

Exact hosts come first, then the longest `*.suffix`, then the one revision that takes `*`. The port in `Host` does not
matter. Written by `apply` only; a lookup allocates nothing for a host that is served.
"""

from __future__ import annotations

from typing import Final

from activator.message import RequestHead
from activator.throttle.revision import RevisionThrottler

NAMESPACE_HEADER: Final = b"knative-serving-namespace"
REVISION_HEADER: Final = b"knative-serving-revision"


_KNOWN_MAX: Final = 1024  # authorities are the clients' to choose


class Router:
    """`trust_revision_headers`: Knative's two headers name the revision, as its ingress sets them."""

    def __init__(self, trust_revision_headers: bool) -> None:
        self._trust_revision_headers = trust_revision_headers
        self._exact: dict[bytes, RevisionThrottler] = {}
        self._suffixes: dict[bytes, RevisionThrottler] = {}  # with the leading dot
        self._fallback: RevisionThrottler | None = None
        self._by_key: dict[str, RevisionThrottler] = {}
        self._known: dict[bytes, RevisionThrottler] = {}  # authorities of late, as clients spelt them

    def set(self, throttler: RevisionThrottler) -> None:
        """Route the hosts of this revision to it, and no others."""
        self.drop(throttler.key)
        self._by_key[throttler.key] = throttler
        self._known.clear()
        for host in throttler.spec.hosts:
            name = host.lower().encode("idna" if not host.isascii() else "ascii")
            if name == b"*":
                self._fallback = throttler
            elif name.startswith(b"*."):
                self._suffixes[name[1:]] = throttler
            else:
                self._exact[name] = throttler

    def drop(self, key: str) -> None:
        """No host leads to this revision any more."""
        old = self._by_key.pop(key, None)
        self._known.clear()
        if old is None:
            return
        self._exact = {host: one for host, one in self._exact.items() if one.key != key}
        self._suffixes = {host: one for host, one in self._suffixes.items() if one.key != key}
        if self._fallback is not None and self._fallback.key == key:
            self._fallback = None

    def resolve(self, head: RequestHead) -> RevisionThrottler | None:
        """The throttler of the revision that this request is for, or None: then it is a 404."""
        if self._trust_revision_headers:
            named = self._named(head)
            if named is not None:
                return named
        throttler = self._known.get(head.authority)
        if throttler is None:
            throttler = self._find(head.authority)
            if throttler is not None:
                if len(self._known) >= _KNOWN_MAX:
                    self._known.clear()
                self._known[head.authority] = throttler
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

    def _named(self, head: RequestHead) -> RevisionThrottler | None:
        name = head.headers.get(REVISION_HEADER)
        namespace = head.headers.get(NAMESPACE_HEADER) if name else None
        if not name or not namespace:
            return None
        return self._by_key.get((namespace + b"/" + name).decode("latin-1"))

    def _longest_suffix(self, host: bytes) -> RevisionThrottler | None:
        dot = host.find(b".")
        while dot >= 0:
            throttler = self._suffixes.get(host[dot:])
            if throttler is not None:
                return throttler
            dot = host.find(b".", dot + 1)
        return None


def _without_port(authority: bytes) -> bytes:
    colon = authority.rfind(b":")
    if colon < 0 or authority.endswith(b"]"):
        host = authority
    else:
        host = authority[:colon]
    return host[:-1] if host.endswith(b".") else host  # a fully qualified name may end in a dot
