"""The switch of traces: off, or sent to one collector; it can be changed while requests are served.

OpenTelemetry's variables apply where the file has no setting: OTEL_SDK_DISABLED, OTEL_TRACES_EXPORTER,
OTEL_TRACES_SAMPLER and …_ARG, OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES, OTEL_EXPORTER_OTLP_… and OTEL_BSP_….
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from threading import Thread
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import activator
from activator.config.model.telemetry import TRACING_RATE, Tracing
from activator.data_plane.headers.trace_context import Sampler
from activator.runtime.clock import Now
from activator.runtime.controller_counts import Controllers
from activator.runtime.errors import StartError
from activator.runtime.extras import need
from activator.telemetry.request_hooks import RequestHooks
from activator.telemetry.tracing.span_sender import TRACE_BATCH_SPANS, TRACE_DELAY_S, TRACE_SPANS_MAX
from lb.rng import Rng

if TYPE_CHECKING:
    from activator.telemetry.tracing.span_sender import SpanClient, SpanSender
    from activator.telemetry.tracing.spans import SpanMaker

TRACE_CLOSE_S: Final = 2.0  # how long the shutdown waits for the last spans

log = logging.getLogger("activator.tracing")

_PATH: Final = "v1/traces"  # OTLP over HTTP
_SCOPE: Final = "activator"
SPAN_OUTCOMES: Final = ("sent", "failed", "dropped")


class TraceSwitch:
    """The switch of traces.

    `wall_ns` returns the time of day in nanoseconds since 1970; `entropy` returns random bytes.
    """

    def __init__(
        self,
        proxy: RequestHooks,
        controllers: Controllers,
        environ: Mapping[str, str],
        rng: Rng,
        entropy: Callable[[int], bytes],
        wall_ns: Callable[[], int],
        now: Now,
        failed: Callable[[Exception], None],
    ) -> None:
        self._proxy = proxy
        self._controllers = controllers
        self._environ = environ
        self._rng = rng
        self._entropy = entropy
        self._wall_ns = wall_ns
        self._now = now
        self._failed = failed
        self._settings = Tracing(exporter="none")
        self._spans: SpanMaker | None = None
        self._leaving: dict[Thread, SpanMaker] = {}  # previous span makers that still send their queue
        self._ended_totals = dict.fromkeys(SPAN_OUTCOMES, 0)  # the totals of span makers that have ended

    @property
    def totals(self) -> dict[str, int]:
        """The number of spans by outcome."""
        self._drop_ended()
        totals = self._ended_totals
        for spans in (*self._leaving.values(), self._spans):
            if spans is not None:
                totals = _plus(totals, spans)
        return totals

    def set(self, settings: Tracing) -> None:
        """Apply the settings to the next request. Raises StartError, and changes nothing, if they are not valid."""
        if settings == self._settings:
            return
        created = self._create(settings) if is_wanted(settings, self._environ) else None
        self._settings = settings
        self._stop()
        if created is not None:
            self._start(*created)

    def close(self) -> None:
        """Send the queued spans, for a bounded time."""
        self._stop()
        until_s = self._now() + TRACE_CLOSE_S
        for thread in self._leaving:
            thread.join(max(until_s - self._now(), 0.0))
        if any(thread.is_alive() for thread in self._leaving):
            log.warning("the last spans could not be sent within %g s", TRACE_CLOSE_S)

    def _create(self, settings: Tracing) -> tuple[SpanMaker, Sampler]:
        """Return the span maker and the sampler for these settings. Raises StartError."""
        need("tracing", "tracing with the exporter otlp")
        from activator.telemetry.tracing.otlp_client import OtlpClient  # imported only if traces are sent
        from activator.telemetry.tracing.spans import SpanMaker

        rate = sampling_rate(settings, self._environ)
        sampler = Sampler(rate, self._rng, self._entropy)
        try:
            sender = self._sender(OtlpClient(endpoint_of(settings), self._environ))
        except Exception as error:  # for example an unreadable certificate, or an invalid number in a variable
            raise StartError(f"tracing: {error} (`tracing:` in the file, OTEL_EXPORTER_OTLP_…, OTEL_BSP_…)") from error
        return SpanMaker(sender, sampler, self._wall_ns, self._now, self._failed), sampler

    def _start(self, spans: SpanMaker, sampler: Sampler) -> None:
        self._spans = self._proxy.tracer = spans
        self._proxy.sampler = sampler
        self._controllers.on_pass = spans.reconciled
        rate = sampling_rate(self._settings, self._environ)
        log.info("tracing %g %% of the requests without a sampling decision of their client", 100.0 * rate)

    def _sender(self, client: SpanClient) -> SpanSender:
        """Return a sender to a collector. Raises ValueError for an invalid variable."""
        from opentelemetry.sdk.resources import (
            Resource,
        )  # takes the name and host from OpenTelemetry's variables and detectors

        from activator.telemetry.tracing.span_messages import Envelope
        from activator.telemetry.tracing.span_sender import SpanSender

        attributes = {"service.version": activator.__version__}
        if not self._environ.get("OTEL_SERVICE_NAME"):
            attributes["service.name"] = "activator"
        envelope = Envelope(Resource.create(attributes).attributes, _SCOPE)
        spans_max = int(self._variable("OTEL_BSP_MAX_QUEUE_SIZE", TRACE_SPANS_MAX))
        batch_spans = int(self._variable("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", min(TRACE_BATCH_SPANS, spans_max)))
        if not 0 < batch_spans <= spans_max:
            raise ValueError("OTEL_BSP_MAX_EXPORT_BATCH_SIZE is between 1 and OTEL_BSP_MAX_QUEUE_SIZE")
        delay_s = self._variable("OTEL_BSP_SCHEDULE_DELAY", TRACE_DELAY_S * 1e3) / 1e3
        if delay_s <= 0.0:
            raise ValueError("OTEL_BSP_SCHEDULE_DELAY is in milliseconds, and must be positive")
        return SpanSender(client, envelope, spans_max, batch_spans, delay_s)

    def _variable(self, name: str, default: float) -> float:
        value = self._environ.get(name, "").strip()
        return float(value) if value else default

    def _drop_ended(self) -> None:
        """Drop the senders that have sent everything, and keep their counts."""
        for thread in [thread for thread in self._leaving if not thread.is_alive()]:
            self._ended_totals = _plus(self._ended_totals, self._leaving.pop(thread))

    def _stop(self) -> None:
        """Stop tracing; a thread sends the queued spans."""
        self._drop_ended()  # needed if the totals are never read
        former = self._spans
        self._spans = self._proxy.sampler = self._proxy.tracer = self._controllers.on_pass = None
        if former is not None:
            thread = Thread(target=former.close, name="last spans", daemon=True)
            thread.start()
            self._leaving[thread] = former


def _plus(totals: dict[str, int], spans: SpanMaker) -> dict[str, int]:
    counts = (spans.sender.sent_total, spans.sender.failed_total, spans.sender.dropped_total)
    return {outcome: totals[outcome] + count for outcome, count in zip(SPAN_OUTCOMES, counts, strict=True)}


def is_wanted(settings: Tracing, environ: Mapping[str, str]) -> bool:
    """Return True if spans are to be sent."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    exporter = settings.exporter or environ.get("OTEL_TRACES_EXPORTER", "none").strip()
    return exporter == "otlp"


def sampling_rate(settings: Tracing, environ: Mapping[str, str]) -> float:
    """Return the share of requests that are traced, between 0 and 1."""
    if settings.sampling_rate is not None:
        return settings.sampling_rate
    sampler = environ.get("OTEL_TRACES_SAMPLER", "").strip()
    if sampler.endswith("always_on"):
        return 1.0
    if sampler.endswith("always_off"):
        return 0.0
    try:
        rate = float(environ.get("OTEL_TRACES_SAMPLER_ARG", "") if sampler.endswith("traceidratio") else "")
    except ValueError:
        return TRACING_RATE
    return TRACING_RATE if math.isnan(rate) else min(max(rate, 0.0), 1.0)


def endpoint_of(settings: Tracing) -> str:
    """Return the URL to which spans are posted; empty if the exporter's variables define it."""
    if not settings.endpoint:
        return ""
    has_path = urlsplit(settings.endpoint).path.strip("/") != ""
    return settings.endpoint if has_path else f"{settings.endpoint.rstrip('/')}/{_PATH}"
