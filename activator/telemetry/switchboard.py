"""All that reports requests and the program, put together: its own log, the access log, traces.

The file's settings hold, except those that a cluster's ConfigMaps define further (Knative's config-observability and
config-logging): there the access log is Knative's request log, and spans go where Knative's would.
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
    """What counts requests for Knative's metrics, or sends them away, or both."""

    def set(self, wanted: KnativeExport) -> None:
        """From now on."""


class Telemetry:
    """`app_log`: where the program's own log is ours to set; `defer`, `later`: the loop's call_soon and call_later;
    `wall`, `wall_ns`: the time of day since 1970; `knative` makes what Knative's metrics need here, when first wanted;
    `shared`: other processes write the access log, too.
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
        """What the file says. Raises StartError, and changes nothing, where spans or metrics cannot be sent so."""
        self._set(config, self._cluster)

    def settle(self, cluster: ClusterSettings) -> None:
        """What the cluster says. Raises StartError as `set` does."""
        try:
            RequestTemplate(cluster.request_log_template)
        except RequestTemplateError as error:
            log.error("config-observability: logging.request-log-template: %s; the former goes on", error)
            former = self._cluster
            cluster = replace(cluster, request_log=former.request_log, request_log_template=former.request_log_template)
        if cluster.tracing_protocol not in {"none", "http/protobuf"}:
            log.warning("tracing-protocol: http/protobuf or none, not %s: no traces", cluster.tracing_protocol)
        if cluster.metrics_protocol not in {"none", "prometheus", "http/protobuf"}:
            log.warning("metrics-protocol: prometheus, http/protobuf or none, not %s", cluster.metrics_protocol)
        self._set(self._config, cluster)

    def sweep(self) -> None:
        """Report the floods in the log that are over; to be called every LOG_WINDOW_S."""
        if self.app_log is not None:
            self.app_log.sweep()

    def close(self) -> None:
        """Write and send what is left, for a bounded time."""
        self.access_log.close()
        self.traces.close()
        self.sweep()

    def _set(self, config: Config, cluster: ClusterSettings) -> None:
        exported = export_of(config.metrics.knative, cluster)
        if exported.protocol == "http/protobuf":  # what may be refused comes first
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
        wanted = log_of(config.log, cluster)
        if self.app_log is not None and wanted != former:
            self.app_log.set(wanted)


def access_log_of(own: bool | str, cluster: ClusterSettings) -> bool | str:
    """Knative's request log, where it is on."""
    if not cluster.request_log:
        return own
    template = cluster.request_log_template
    return f"{REQUEST_TEMPLATE}{template}" if template else KNATIVE


def export_of(own: KnativeExport, cluster: ClusterSettings) -> KnativeExport:
    """Knative's setting, where it is on."""
    if cluster.metrics_protocol not in {"prometheus", "http/protobuf"}:
        return own
    return replace(own, protocol=cluster.metrics_protocol, endpoint=cluster.metrics_endpoint)


def tracing_of(own: Tracing, cluster: ClusterSettings) -> Tracing:
    """Knative's setting, where it is on; it gives an endpoint with its path."""
    if cluster.tracing_protocol != "http/protobuf":
        return own
    return Tracing("otlp", cluster.tracing_endpoint, cluster.tracing_sampling_rate)


def log_of(own: Log, cluster: ClusterSettings) -> Log:
    """Knative's level, where it has one."""
    return own if not cluster.log_level else Log(own.format, cluster.log_level, own.levels)
