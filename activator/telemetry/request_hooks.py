"""What telemetry sets on the request path: who is told of requests."""

from __future__ import annotations

from typing import Protocol

from activator.data_plane.headers.trace_context import Sampler
from activator.data_plane.proxy.accounting import ExchangeObserver


class RequestHooks(Protocol):
    """`data_plane.proxy.proxy.Proxy` has them; each is None while it is off."""

    observer: ExchangeObserver | None
    measurer: ExchangeObserver | None
    tracer: ExchangeObserver | None
    sampler: Sampler | None
    histograms: bool


class NoRequests:
    """Of a process that serves no requests: its workers do."""

    def __init__(self) -> None:
        self.observer: ExchangeObserver | None = None
        self.measurer: ExchangeObserver | None = None
        self.tracer: ExchangeObserver | None = None
        self.sampler: Sampler | None = None
        self.histograms: bool = True
