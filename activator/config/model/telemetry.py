"""The log of the activator, metrics and traces."""

from typing import Annotated, Final

import msgspec

from activator.config.model.kinds import Count, Duration, Share, doc

TRACING_RATE: Final = 0.1
LOG_FORMATS: Final = ("console", "json")
LOG_LEVELS: Final = ("debug", "info", "warning", "error")
METRICS_PROTOCOLS: Final = ("none", "prometheus", "http/protobuf")
EXPORTERS: Final = ("none", "otlp")
# By name: true for a part of the activator, false for a library.
LOG_PARTS: Final[dict[str, bool]] = {
    "access_log": True,
    "autoscaler": True,
    "certificates": True,
    "container": True,
    "control": True,
    "data": True,
    "knative": True,
    "kubernetes": True,
    "members": True,
    "probing": True,
    "process": True,
    "scaling": True,
    "state": True,
    "tracing": True,
    "upstream": True,
    "aiohttp": False,
    "asyncio": False,
    "kubernetes_asyncio": False,
    "opentelemetry": False,
}


class Log(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The log of the activator itself, on standard error."""

    format: Annotated[str, doc("The format of a line.", "json", words=LOG_FORMATS)] = "console"
    level: Annotated[str, doc("The lowest level that is written.", "warning", words=LOG_LEVELS)] = "info"
    levels: Annotated[
        dict[str, str],
        doc(
            f"Levels of single parts of the activator. Parts: {', '.join(f'`{part}`' for part in LOG_PARTS)}.",
            {"state": "debug"},
        ),
    ] = {}


class KnativeExport(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Additional metrics under the names that Knative's activator uses."""

    protocol: Annotated[
        str,
        doc(
            "`prometheus`: on a port of their own. `http/protobuf`: sent as OTLP over HTTP.",
            "prometheus",
            words=METRICS_PROTOCOLS,
        ),
    ] = "none"
    endpoint: Annotated[
        str,
        doc(
            "With `prometheus`: the address to listen on; empty: port 9090. With `http/protobuf`: the full URL.",
            "0.0.0.0:9090",
        ),
    ] = ""
    export_interval: Annotated[Duration, doc("With `http/protobuf`: the time between two exports.", "30s")] = Duration(
        60.0
    )


class Metrics(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Metrics on the admin port."""

    histograms: Annotated[bool, doc("If true, the histograms of each revision are exported.", False)] = True
    pods: Annotated[
        Count,
        doc("Revisions with at most so many pods have metrics for each, with the label `pod`, its address.", 20),
    ] = 0
    knative: Annotated[KnativeExport, doc("Metrics with the names of Knative.")] = KnativeExport()


class Tracing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Spans of requests, sent as OTLP over HTTP. The variables of OpenTelemetry are the defaults of these keys."""

    exporter: Annotated[
        str,
        doc(
            "The kind of exporter. Empty: `OTEL_TRACES_EXPORTER`, else `none`.",
            "otlp",
            words=("", *EXPORTERS),
        ),
    ] = ""
    endpoint: Annotated[
        str,
        doc(
            "The URL of the collector. Empty: `OTEL_EXPORTER_OTLP_ENDPOINT`, else port 4318 of this machine.",
            "http://collector:4318",
        ),
    ] = ""
    sampling_rate: Annotated[
        Share | None,
        doc(
            "The share of the requests without a trace context that are traced. Not set: `OTEL_TRACES_SAMPLER`, "
            f"else {TRACING_RATE:g}.",
            0.01,
        ),
    ] = None
