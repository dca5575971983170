"""Makes the connection pool of each pod from the settings of its revision, and renews the pools if those change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from activator.codec.probe_request import probe_head
from activator.config.model.pods import PodTls
from activator.config.specs import ConnectionSpec, ForwardAuthSpec, ProbeSpec, RevisionSpec
from activator.data_plane.throttle.revision import RevisionThrottler
from activator.data_plane.upstream.alpn_pool import AlpnPool
from activator.data_plane.upstream.dial import DialContext, PodAddress
from activator.data_plane.upstream.http1_pool import Http1Pool
from activator.data_plane.upstream.http2_pool import Http2Pool
from activator.data_plane.upstream.identity_check import ExpectedIdentity
from activator.data_plane.upstream.pod_figures import PodFigures
from activator.data_plane.upstream.pool import PodPool
from activator.data_plane.upstream.proxy_protocol_pool import ProxyProtocolPool
from activator.runtime.certificates import TLS_CONTEXTS_MAX
from activator.runtime.clock import Now
from activator.runtime.sockets import split_address
from lb.tracker import PodTracker

if TYPE_CHECKING:
    import ssl

FIGURES_KEPT_MAX: Final = 1_000  # pods that continue their figures if they return, in each worker

# The protocols offered to pods by ALPN, and the pool for each `protocol` of a revision.
_HTTP1: Final = ("http/1.1",)
_HTTP2: Final = ("h2",)
_EITHER: Final = ("h2", "http/1.1")
_POOLS: Final[dict[str, type[PodPool]]] = {"h1": Http1Pool, "h2c": Http2Pool, "h2": Http2Pool, "alpn": AlpnPool}


class PoolFactory:
    """The factory of the pools of one data plane. Pods with the same TLS settings share a context."""

    def __init__(self, dials: DialContext, now: Now) -> None:
        self._dials = dials
        self._now = now
        self._contexts: dict[tuple[PodTls, tuple[str, ...]], ssl.SSLContext] = {}
        self._settings: dict[str, ConnectionSpec] = {}  # by revision
        self._figures: dict[tuple[str, str], PodFigures] = {}  # by revision and identity, the newest last

    def pool_of(self, tracker: PodTracker, spec: RevisionSpec) -> PodPool:
        """Return a new pool of connections to a pod, which continues the figures of a pod that has returned."""
        settings = spec.connection
        pool_class = ProxyProtocolPool if settings.proxy_protocol else _POOLS[settings.protocol]
        address = self._address_of(tracker, settings)
        expected = _expected_identity(spec.probing.probe, tracker)
        pool = pool_class(self._dials, self._now, address, spec.timeouts.connect_s, expected)
        pod = spec.key, tracker.identity
        pool.figures = self._figures[pod] = self._figures.pop(pod, pool.figures)
        if len(self._figures) > FIGURES_KEPT_MAX:
            del self._figures[next(iter(self._figures))]
        return pool

    def authoriser_pool(self, spec: ForwardAuthSpec) -> PodPool:
        """Return a new pool of connections to an authoriser."""
        context = self._context_of(PodTls() if spec.tls else None, _HTTP1)
        return Http1Pool(self._dials, self._now, PodAddress(spec.host, spec.port, context), spec.timeout_s)

    def revision_set(self, throttler: RevisionThrottler) -> None:
        """Move or replace the pools of a revision whose connection settings have changed."""
        settings = throttler.spec.connection
        former = self._settings.get(throttler.key)
        if settings == former:
            return
        self._settings[throttler.key] = settings
        is_other_protocol = former is not None and (
            former.protocol != settings.protocol or former.proxy_protocol != settings.proxy_protocol
        )
        for tracker in throttler.table.slots[: throttler.table.length]:
            attachment = tracker.attachment
            if not isinstance(attachment, PodPool):
                continue
            pool = attachment.in_use()
            if pool is attachment and not is_other_protocol:
                pool.change_address(self._address_of(tracker, settings))
            elif not pool.is_closed():  # another protocol, or the result of ALPN is to be renewed
                successor = self.pool_of(tracker, throttler.spec)
                tracker.attachment = successor
                pool.hand_over(successor)

    def revision_dropped(self, key: str) -> None:
        """Forget a revision; its pools are closed by their owner."""
        self._settings.pop(key, None)
        for pod in [pod for pod in self._figures if pod[0] == key]:
            del self._figures[pod]

    def _address_of(self, tracker: PodTracker, settings: ConnectionSpec) -> PodAddress:
        """Return the address of a pod, with the settings for a connection to it."""
        host, port = split_address(tracker.address)
        server_name = "" if settings.tls is None else settings.tls.server_name
        lenient = settings.lenient
        if settings.proxy_protocol:
            return PodAddress(host, port, lenient=lenient, proxy_protocol=settings.proxy_protocol)
        if settings.protocol == "h1":
            return PodAddress(host, port, self._context_of(settings.tls, _HTTP1), server_name, lenient)
        if settings.protocol != "alpn":
            return PodAddress(host, port, self._context_of(settings.tls, _HTTP2), server_name, lenient, "h2")
        http1 = PodAddress(host, port, self._context_of(settings.tls, _HTTP1), server_name, lenient)
        return PodAddress(host, port, self._context_of(settings.tls, _EITHER), server_name, lenient, "h2", http1)

    def _context_of(self, tls: PodTls | None, protocols: tuple[str, ...]) -> ssl.SSLContext | None:
        """Return the context for pods with these settings; None without TLS."""
        if tls is None:
            return None
        context = self._contexts.get((tls, protocols))
        if context is None:
            from activator.runtime.certificates import pod_context

            if len(self._contexts) >= TLS_CONTEXTS_MAX:  # most of them are for authorities that have been replaced
                self._contexts.clear()
            context = self._contexts[tls, protocols] = pod_context(tls, protocols)
        return context


def _expected_identity(probe: ProbeSpec, tracker: PodTracker) -> ExpectedIdentity | None:
    if not probe.identity_header:
        return None
    head = probe_head(probe, tracker.address, keep_alive=True)
    return ExpectedIdentity(head, probe.identity_header.lower().encode(), tracker.identity.encode())
