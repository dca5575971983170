"""The assembly of telemetry: the program's own log, the access log, traces and Knative's metrics.

The file's settings apply unless Knative's ConfigMaps override them (config-observability and config-logging): then the
access log is Knative's request log, and spans are sent to Knative's endpoint.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Protocol

from msgspec.structs import replace

from activator.config.cluster_settings import ClusterSettings
from activator.config.log_template import KNATIVE, REQUEST_TEMPLATE
from activator.config.model.file import Config
from activator.config.model.telemetry import KnativeExport, Log, Tracing
from activator.runtime.clock import Defer, Later, Now
from activator.runtime.controller_counts import Controllers
from activator.runtime.extras import need
from activator.telemetry.logs.app_log import AppLog
from activator.telemetry.logs.request_template import RequestTemplate, RequestTemplateError
from activator.telemetry.logs.switch import AccessLogSwitch
from activator.telemetry.request_hooks import RequestHooks
from activator.telemetry.tracing.switch import TraceSwitch
from lb.rng import Rng

log = logging.getLogger("activator.control")


class KnativeSwitch(Protocol):
    """The part that counts requests for Knative's metrics, exports them, or both."""

    def set(self, settings: KnativeExport) -> None:
        """Apply the settings now."""


class Telemetry:
    """All telemetry of one process.

    `app_log` is None if the program's own log is not configured here. `defer` and `later` are the loop's call_soon and
    call_later; `wall` and `wall_ns` return the time of day since 1970. `knative` makes the part for Knative's metrics
    when they are first enabled. `shared`: other processes also write the access log.
    """

    def __init__(
        self,
        proxy: RequestHooks,
        controllers: Controllers,
        app_log: AppLog | None,
        rng: Rng,
        now: Now,
        defer: Defer,
        later: Later,
        wall: Now,
        wall_ns: Callable[[], int],
        failed: Callable[[Exception], None],
        knative: Callable[[], KnativeSwitch] | None = None,
        shared: bool = False,
    ) -> None:
        self._make_knative = knative
        self._knative: KnativeSwitch | None = None
        self.app_log = app_log
        self._proxy = proxy
        self.access_log = AccessLogSwitch(proxy, wall, defer, later, failed, shared)
        self.traces = TraceSwitch(proxy, controllers, os.environ, rng, os.urandom, wall_ns, now, failed)
        self._config = Config()
        self._cluster = ClusterSettings()

    def set(self, config: Config) -> None:
        """Apply the file's settings. Raises StartError, and changes nothing, if spans or metrics cannot be exported."""
        self._set(config, self._cluster)

    def settle(self, cluster: ClusterSettings) -> None:
        """Apply the cluster's settings. Raises StartError as `set` does."""
        try:
            RequestTemplate(cluster.request_log_template)
        except RequestTemplateError as error:
            log.error(
                "config-observability: logging.request-log-template: %s; the previous template stays in effect", error
            )
            former = self._cluster
            cluster = replace(cluster, request_log=former.request_log, request_log_template=former.request_log_template)
        if cluster.tracing_protocol not in {"none", "http/protobuf"}:
            log.warning(
                "config-observability: tracing-protocol: %s is not supported (http/protobuf, none): tracing is off",
                cluster.tracing_protocol,
            )
        if cluster.metrics_protocol not in {"none", "prometheus", "http/protobuf"}:
            log.warning(
                "config-observability: metrics-protocol: %s is not supported (prometheus, http/protobuf, none)",
                cluster.metrics_protocol,
            )
        self._set(self._config, cluster)

    def sweep(self) -> None:
        """Report suppressed lines of the program's own log; to be called every LOG_WINDOW_S."""
        if self.app_log is not None:
            self.app_log.sweep()

    def close(self) -> None:
        """Write the last lines and send the last spans, for a bounded time."""
        self.access_log.close()
        self.traces.close()
        self.sweep()

    def _set(self, config: Config, cluster: ClusterSettings) -> None:
        exported = export_of(config.metrics.knative, cluster)
        if exported.protocol == "http/protobuf":  # first, because it may be refused
            need("tracing", "sending Knative's metrics by http/protobuf")
        self.traces.set(tracing_of(config.tracing, cluster))
        self.access_log.set(access_log_of(config.access_log, cluster))
        self._proxy.histograms = config.metrics.histograms
        if self._knative is None and exported.protocol != "none" and self._make_knative is not None:
            self._knative = self._make_knative()
        if self._knative is not None:
            self._knative.set(exported)
        former = log_of(self._config.log, self._cluster)
        self._config = config
        self._cluster = cluster
        settings = log_of(config.log, cluster)
        if self.app_log is not None and settings != former:
            self.app_log.set(settings)


def access_log_of(configured: bool | str, cluster: ClusterSettings) -> bool | str:
    """Return the format of Knative's request log if it is on, otherwise the file's."""
    if not cluster.request_log:
        return configured
    template = cluster.request_log_template
    return f"{REQUEST_TEMPLATE}{template}" if template else KNATIVE


def export_of(configured: KnativeExport, cluster: ClusterSettings) -> KnativeExport:
    """Return Knative's export of metrics if it is on, otherwise the file's."""
    if cluster.metrics_protocol not in {"prometheus", "http/protobuf"}:
        return configured
    return replace(configured, protocol=cluster.metrics_protocol, endpoint=cluster.metrics_endpoint)


def tracing_of(configured: Tracing, cluster: ClusterSettings) -> Tracing:
    """Return Knative's tracing if it is on, otherwise the file's; Knative's endpoint includes the path."""
    if cluster.tracing_protocol != "http/protobuf":
        return configured
    return Tracing("otlp", cluster.tracing_endpoint, cluster.tracing_sampling_rate)


def log_of(configured: Log, cluster: ClusterSettings) -> Log:
    """Return the log settings, with Knative's level if it has one."""
    return configured if not cluster.log_level else Log(configured.format, cluster.log_level, configured.levels)
