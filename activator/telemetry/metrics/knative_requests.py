"""Counts of each revision's requests by method, host, status and so on, for Knative's dashboards.

Knative's activator has these from OpenTelemetry's instrumentation of Go's HTTP server, with its names and bounds.

Rules
  1. Requests are counted only while Knative's metrics are enabled; our own metrics have none of these labels.
  2. The number of series is bounded. For each revision, the first KNATIVE_SERIES_MAX combinations are distinguished;
     later ones have the host `_other`, the method `_OTHER` and only the class of the status, which adds at most 24.
     Revisions beyond the limit are aggregated as `_other`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from typing import Final, final

from activator.data_plane.exchange import Exchange
from activator.data_plane.proxy.accounting import ExchangeObserver
from activator.data_plane.streams import ClientStream
from activator.runtime.histogram import Histogram
from activator.telemetry.logs.fields import printable, status_of
from activator.telemetry.metrics import METRICS_REVISIONS_MAX

KNATIVE_SERIES_MAX: Final = 100  # combinations of method, host, status and so on, per revision, in Knative's metrics

# The bounds of durations are those of the instrumentation, the bounds of sizes the default of OpenTelemetry's SDKs.
DURATION_BOUNDS_S: Final[tuple[float, ...]] = (
    0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0
)  # fmt: skip
SIZE_BOUNDS: Final[tuple[float, ...]] = (
    0.0, 5.0, 10.0, 25.0, 50.0, 75.0, 100.0, 250.0, 500.0, 750.0, 1000.0, 2500.0, 5000.0, 7500.0, 10000.0
)  # fmt: skip
OTHER: Final = "_other"
_OTHER_METHOD: Final = b"_OTHER"
_METHODS: Final = frozenset({b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"CONNECT", b"OPTIONS", b"TRACE", b"PATCH"})

Combination = tuple[bytes, bool, bytes, str, int]  # method, TLS, authority, protocol, status


@final
class RequestSeries:
    """The requests of one combination."""

    def __init__(self, combination: Combination) -> None:
        self.combination = combination
        self.duration = Histogram(DURATION_BOUNDS_S)
        self.request_size = Histogram(SIZE_BOUNDS)
        self.response_size = Histogram(SIZE_BOUNDS)
        self.has_changed: bool = False  # since the last `take_changed`

    def attributes(self) -> dict[str, str | int]:
        """Return the attributes by OpenTelemetry's names, without the default port."""
        return attributes_of(self.combination)


class KnativeRequests(ExchangeObserver):
    """The counts of one process, for at most `revisions_max` revisions with `series_max` combinations each."""

    def __init__(
        self,
        failed: Callable[[Exception], None],
        series_max: int = KNATIVE_SERIES_MAX,
        revisions_max: int = METRICS_REVISIONS_MAX,
    ) -> None:
        self._failed = failed
        self._series_max = series_max
        self._revisions_max = revisions_max
        self._revisions: dict[str, dict[Combination, RequestSeries]] = {}

    def ended(self, exchange: Exchange, client: ClientStream) -> None:
        try:
            series = self._series(exchange, client)
            series.duration.observe(exchange.done_s - exchange.arrived_s)
            series.request_size.observe(float(exchange.request_bytes))
            series.response_size.observe(float(exchange.response_bytes))
            series.has_changed = True
        except Exception as error:
            self._failed(error)

    def read(self, revisions: AbstractSet[str]) -> Iterator[tuple[str, RequestSeries]]:
        """Yield every series with its revision's key, which is empty for requests without a revision.

        The key of aggregated revisions is OTHER. `revisions` are the keys of the existing revisions; the counts of all
        others are deleted.
        """
        self.forget_others(revisions)
        for key, by_combination in list(self._revisions.items()):
            for series in list(by_combination.values()):
                yield key, series

    def take_changed(self) -> list[tuple[str, RequestSeries]]:
        """Return every series that has counted a request since the last call, with its key as in `read`."""
        changed: list[tuple[str, RequestSeries]] = []
        for key, by_combination in self._revisions.items():
            for series in by_combination.values():
                if series.has_changed:
                    series.has_changed = False
                    changed.append((key, series))
        return changed

    def forget_others(self, revisions: AbstractSet[str]) -> None:
        """Delete the counts of all revisions but these."""
        for key in [key for key in self._revisions if key and key != OTHER and key not in revisions]:
            del self._revisions[key]

    def _series(self, exchange: Exchange, client: ClientStream) -> RequestSeries:
        """Return the series that counts this request."""
        key = exchange.revision_key()
        by_combination = self._revisions.get(key)
        if by_combination is None:
            if len(self._revisions) >= self._revisions_max:
                key = OTHER
            by_combination = self._revisions.setdefault(key, {})
        head = exchange.head
        method = head.method if head.method in _METHODS else _OTHER_METHOD
        status = status_of(exchange)
        secure, protocol = client.secure(), client.protocol()
        combination = (method, secure, head.authority, protocol, status)
        series = by_combination.get(combination)
        if series is None and len(by_combination) >= self._series_max:
            combination = coarser(combination)
            series = by_combination.get(combination)
        if series is None:
            series = by_combination[combination] = RequestSeries(combination)
        return series


def attributes_of(combination: Combination) -> dict[str, str | int]:
    """Return the attributes of a combination by OpenTelemetry's names, without the default port."""
    method, secure, authority, protocol, status = combination
    host, port = _host_and_port(printable(authority))
    name, _, version = protocol.partition("/")
    attributes: dict[str, str | int] = {
        "http.request.method": method.decode("ascii"),
        "url.scheme": "https" if secure else "http",
        "server.address": host,
        "network.protocol.name": name.lower(),
        "network.protocol.version": "2.0" if version == "2" else version,  # the instrumentation's spelling
    }
    if port and port != (443 if secure else 80):
        attributes["server.port"] = port
    if status:
        attributes["http.response.status_code"] = status
    return attributes


def coarser(combination: Combination) -> Combination:
    """Return the combination under which those beyond KNATIVE_SERIES_MAX are counted."""
    _, secure, _, protocol, status = combination
    return _OTHER_METHOD, secure, OTHER.encode(), protocol, status // 100 * 100


def _host_and_port(authority: str) -> tuple[str, int]:
    """Split an authority into the host, without brackets, and the port, 0 if there is none."""
    host, colon, port = authority.rpartition(":")
    if not colon or not port.isdecimal() or (host.startswith("[") and not host.endswith("]")):
        return authority.strip("[]"), 0
    return host.strip("[]"), int(port)
