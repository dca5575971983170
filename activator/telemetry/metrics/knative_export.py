"""The export of Knative's metrics: a port for Prometheus, or OTLP over HTTP at an interval."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web

from activator.config.model.telemetry import KnativeExport
from activator.runtime.errors import StartError
from activator.runtime.sockets import address_of, bind
from activator.runtime.tasks import TaskGroupOwner, keep_running, pause
from activator.telemetry.metrics.knative_metrics import KnativeMetrics, otlp_data
from activator.telemetry.metrics.knative_requests import KnativeRequests
from activator.telemetry.metrics.sliced_response import answer_in_slices
from activator.telemetry.request_hooks import RequestHooks

KNATIVE_PROMETHEUS_ADDRESS: Final = "0.0.0.0:9090"  # the metrics port of Knative's activator
KNATIVE_EXPORT_TIMEOUT_S: Final = 10.0

log = logging.getLogger("activator.control")

OFF: Final = KnativeExport()


class KnativeExporter:
    """The exporter of Knative's metrics.

    `requests` observes requests while the metrics are enabled; None if the workers count them, and `gather` collects
    their counts. `wall_ns` returns the time of day in nanoseconds since 1970.
    """

    def __init__(
        self,
        metrics: KnativeMetrics,
        proxy: RequestHooks,
        requests: KnativeRequests | None,
        tasks: TaskGroupOwner,
        wall_ns: Callable[[], int],
        gather: Callable[[], Awaitable[None]],
    ) -> None:
        self._metrics = metrics
        self._proxy = proxy
        self._requests = requests
        self._gather = gather
        self._tasks = tasks
        self._wall_ns = wall_ns
        self._started_ns = wall_ns()
        self._settings = OFF
        self._task: asyncio.Task[None] | None = None
        self.address = ""  # the address of the port, while it is open
        self.listening = asyncio.Event()  # set while the port is open with the current settings
        self.failed_total = 0  # batches that were not accepted

    def set(self, settings: KnativeExport) -> None:
        """Apply the settings now."""
        if settings == self._settings:
            return
        self._settings = settings
        self._proxy.measurer = None if settings.protocol == "none" else self._requests
        self.listening.clear()
        former = self._task
        self._task = None
        if former is not None:
            former.cancel()
        if settings.protocol == "prometheus":
            self._task = self._tasks.start("knative metrics", self._serve(settings, former))
        elif settings.protocol == "http/protobuf":
            self._task = self._tasks.start("knative metrics", self._send(settings))

    async def _serve(self, settings: KnativeExport, former: asyncio.Task[None] | None) -> None:
        """Serve the metrics on a port until the task is cancelled."""
        if former is not None:
            await asyncio.wait([former])  # it may hold the port
        application = web.Application()
        application.add_routes([web.get("/metrics", self._answer)])
        runner = web.AppRunner(application, access_log=None, handle_signals=False, shutdown_timeout=1.0)
        try:
            sock = bind(settings.endpoint or KNATIVE_PROMETHEUS_ADDRESS)
        except StartError as error:
            log.error("Knative's metrics: %s", error)
            return
        try:
            await runner.setup()
            await web.SockSite(runner, sock).start()
            self.address = address_of(sock)
            self.listening.set()
            log.info("Knative's metrics on %s", self.address)
            await asyncio.Event().wait()
        finally:
            self.address = ""
            await runner.cleanup()
            sock.close()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        await self._gather()
        slices, content_type = self._metrics.render()
        return await answer_in_slices(request, slices, content_type)

    async def _send(self, settings: KnativeExport) -> None:
        """Send the metrics to a collector, once per interval, until the task is cancelled."""
        # Imported only if metrics are exported.
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics.export import MetricExportResult
        from opentelemetry.sdk.resources import Resource

        exporter = OTLPMetricExporter(endpoint=settings.endpoint or None, timeout=KNATIVE_EXPORT_TIMEOUT_S)
        resource = Resource.create({"service.name": "activator"})

        async def send_once() -> None:
            await pause(float(settings.export_interval))
            await self._gather()
            reading = self._metrics.begin()
            for _ in reading.fill():
                await pause(0.0)
            data = otlp_data(reading, resource, self._started_ns, self._wall_ns())
            result = await asyncio.to_thread(exporter.export, data)
            if result is not MetricExportResult.SUCCESS:
                self.failed_total += 1
                log.warning("Knative's metrics could not be sent to %s", settings.endpoint or "the collector")

        try:
            await keep_running(send_once, self._failed)
        finally:
            exporter.shutdown()

    def _failed(self, error: Exception) -> float:
        self._tasks.on_error("knative metrics", error)
        return 0.0  # seconds before the next attempt, which itself waits for the interval
