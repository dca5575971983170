"""The hooks of telemetry on the request path: observers of requests, and the sampler of traces."""

from __future__ import annotations

from typing import Protocol

from activator.data_plane.headers.trace_context import Sampler
from activator.data_plane.proxy.accounting import ExchangeObserver


class RequestHooks(Protocol):
    """The hooks of `data_plane.proxy.proxy.Proxy`; each is None while it is off."""

    observer: ExchangeObserver | None
    measurer: ExchangeObserver | None
    tracer: ExchangeObserver | None
    sampler: Sampler | None
    histograms: bool


class NoRequests:
    """The hooks of a parent process, whose workers serve the requests."""

    def __init__(self) -> None:
        self.observer: ExchangeObserver | None = None
        self.measurer: ExchangeObserver | None = None
        self.tracer: ExchangeObserver | None = None
        self.sampler: Sampler | None = None
        self.histograms: bool = True
