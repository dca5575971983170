"""The settings in Knative's ConfigMaps that affect the activator.

Rules
  1. An invalid value is logged, and the previous one stays in force (the default at the start): a typing mistake in a
     ConfigMap does not stop the activator.
  2. Everything is read again whenever a map changes; limits on changes at run time are documented at the use.

Sources: knative.dev/networking pkg/config, knative.dev/serving pkg/autoscaler/config, pkg/observability (v1.23).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

NETWORK: Final = "config-network"
AUTOSCALER: Final = "config-autoscaler"

MESH_AUTO: Final = "auto"
MESH_ENABLED: Final = "enabled"
MESH_DISABLED: Final = "disabled"

_DIGITS_MAX: Final = 10  # a 32-bit number has no more
_LEVELS: Final = {"debug": "debug", "info": "info", "warn": "warning", "warning": "warning", "error": "error"}


class ClusterSettings(msgspec.Struct, frozen=True):
    """The settings of the whole cluster, with Knative's defaults."""

    mesh_mode: str = MESH_AUTO  # mesh-compatibility-mode: auto | enabled | disabled
    passes_through: bool = False  # enable-mesh-pod-addressability
    internal_tls: bool = False  # system-internal-tls
    max_scale: int = 0  # default of revisions without one; 0: none
    max_scale_limit: int = 0  # upper limit of a revision's value; 0: none
    request_log: bool = False  # logging.enable-request-log
    request_log_template: str = ""
    metrics_protocol: str = "none"  # none | prometheus | http/protobuf | grpc
    metrics_endpoint: str = ""
    tracing_protocol: str = "none"  # none | stdout | http/protobuf | grpc
    tracing_endpoint: str = ""
    tracing_sampling_rate: float = 0.0
    log_level: str = ""  # empty: the configured level


Data = Mapping[str, str]
Report = Callable[[str], None]


def read_network(settings: ClusterSettings, data: Data, report: Report) -> ClusterSettings:
    """Return the settings updated from config-network; `report` receives each mistake."""
    mode = data.get("mesh-compatibility-mode", MESH_AUTO).lower()
    if mode not in (MESH_AUTO, MESH_ENABLED, MESH_DISABLED):
        report(f"{NETWORK}: mesh-compatibility-mode: expected auto, enabled or disabled, found {mode!r}")
        mode = settings.mesh_mode
    encryption = data.get("system-internal-tls", "").lower()
    if encryption not in ("", "enabled", "disabled"):
        report(f"{NETWORK}: system-internal-tls: expected Enabled or Disabled, found {encryption!r}")
        internal_tls = settings.internal_tls
    else:
        internal_tls = encryption == "enabled" or (not encryption and _is_on(data.get("internal-encryption", "")))
    passes_through = _is_on(data.get("enable-mesh-pod-addressability", ""))
    return replace(settings, mesh_mode=mode, internal_tls=internal_tls, passes_through=passes_through)


def read_autoscaler(settings: ClusterSettings, data: Data, report: Report) -> ClusterSettings:
    """Return the settings updated from config-autoscaler."""
    return replace(
        settings,
        max_scale=_whole(data, "max-scale", settings.max_scale, report),
        max_scale_limit=_whole(data, "max-scale-limit", settings.max_scale_limit, report),
    )


def read_observability(settings: ClusterSettings, data: Data, report: Report) -> ClusterSettings:
    """Return the settings updated from config-observability."""
    template = data.get("logging.request-log-template", "")
    wanted = _is_on(data.get("logging.enable-request-log", ""))
    if wanted and "logging.request-log-template" in data and not template:
        report("config-observability: logging.enable-request-log needs a logging.request-log-template")
        wanted, template = settings.request_log, settings.request_log_template
    return replace(
        settings,
        request_log=wanted,
        request_log_template=template,
        metrics_protocol=data.get("metrics-protocol", "none"),
        metrics_endpoint=data.get("metrics-endpoint", ""),
        tracing_protocol=data.get("tracing-protocol", "none"),
        tracing_endpoint=data.get("tracing-endpoint", ""),
        tracing_sampling_rate=_share(data, "tracing-sampling-rate", settings.tracing_sampling_rate, report),
    )


def read_logging(settings: ClusterSettings, data: Data, report: Report) -> ClusterSettings:
    """Return the settings updated from config-logging: `loglevel.activator`, else the level of zap's configuration."""
    level = data.get("loglevel.activator", "") or _zap_level(data.get("zap-logger-config", ""))
    if level and level.lower() not in _LEVELS:
        report(f"config-logging: loglevel.activator: expected debug, info, warn or error, found {level!r}")
        return settings
    return replace(settings, log_level=_LEVELS.get(level.lower(), ""))


def _zap_level(text: str) -> str:
    if not text:
        return ""
    try:
        configuration = json.loads(text)
    except ValueError:
        return ""
    level = configuration.get("level", "") if isinstance(configuration, dict) else ""
    return level if isinstance(level, str) else ""


def _is_on(text: str) -> bool:
    return text.strip().lower() in ("true", "enabled")


def _whole(data: Data, name: str, former: int, report: Report) -> int:
    """Return a whole number: 0 if it is not set, `former` if it is malformed, which is reported."""
    text = data.get(name, "").strip()
    if not text:
        return 0
    if not text.isdecimal() or len(text) > _DIGITS_MAX:
        report(f"{AUTOSCALER}: {name}: expected a whole number, found {text!r}")
        return former
    return int(text)


def _share(data: Data, name: str, former: float, report: Report) -> float:
    """Return a number from 0 to 1: 0 if it is not set, `former` if it is malformed, which is reported."""
    text = data.get(name, "").strip()
    if not text:
        return 0.0
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0.0 <= share <= 1.0:
        report(f"config-observability: {name}: expected a number from 0 to 1, found {text!r}")
        return former
    return share
