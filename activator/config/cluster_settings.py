"""What Knative's ConfigMaps say to the activator, as far as it concerns it.

Rules
  1. A value that cannot be read leaves the former one in force (the default at the start), and is logged: a typing
     mistake in a ConfigMap stops no activator.
  2. All of it is read again whenever a map changes; what cannot change while requests run is said where it is used.

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

_DIGITS_MAX: Final = 10  # of a 32-bit number
_LEVELS: Final = {"debug": "debug", "info": "info", "warn": "warning", "warning": "warning", "error": "error"}


class ClusterSettings(msgspec.Struct, frozen=True):
    """Of the whole cluster; what stands here are Knative's defaults."""

    mesh_mode: str = MESH_AUTO  # mesh-compatibility-mode: auto | enabled | disabled
    passes_through: bool = False  # enable-mesh-pod-addressability
    internal_tls: bool = False  # system-internal-tls
    max_scale: int = 0  # of revisions that do not say; 0: none
    max_scale_limit: int = 0  # the most that a revision may say; 0: none
    request_log: bool = False  # logging.enable-request-log
    request_log_template: str = ""
    metrics_protocol: str = "none"  # none | prometheus | http/protobuf | grpc
    metrics_endpoint: str = ""
    tracing_protocol: str = "none"  # none | stdout | http/protobuf | grpc
    tracing_endpoint: str = ""
    tracing_sampling_rate: float = 0.0
    log_level: str = ""  # of the activator; empty: as it was started


Data = Mapping[str, str]
Tell = Callable[[str], None]


def read_network(settings: ClusterSettings, data: Data, tell: Tell) -> ClusterSettings:
    """The settings with what config-network says; `tell` is called with each mistake."""
    mode = data.get("mesh-compatibility-mode", MESH_AUTO).lower()
    if mode not in (MESH_AUTO, MESH_ENABLED, MESH_DISABLED):
        tell(f"{NETWORK}: mesh-compatibility-mode: expected auto, enabled or disabled, found {mode!r}")
        mode = settings.mesh_mode
    encryption = data.get("system-internal-tls", "").lower()
    if encryption not in ("", "enabled", "disabled"):
        tell(f"{NETWORK}: system-internal-tls: expected Enabled or Disabled, found {encryption!r}")
        internal_tls = settings.internal_tls
    else:
        internal_tls = encryption == "enabled" or (not encryption and _true(data.get("internal-encryption", "")))
    passes_through = _true(data.get("enable-mesh-pod-addressability", ""))
    return replace(settings, mesh_mode=mode, internal_tls=internal_tls, passes_through=passes_through)


def read_autoscaler(settings: ClusterSettings, data: Data, tell: Tell) -> ClusterSettings:
    """The same of config-autoscaler."""
    return replace(
        settings,
        max_scale=_whole(data, "max-scale", settings.max_scale, tell),
        max_scale_limit=_whole(data, "max-scale-limit", settings.max_scale_limit, tell),
    )


def read_observability(settings: ClusterSettings, data: Data, tell: Tell) -> ClusterSettings:
    """The same of config-observability."""
    template = data.get("logging.request-log-template", "")
    wanted = _true(data.get("logging.enable-request-log", ""))
    if wanted and "logging.request-log-template" in data and not template:
        tell("config-observability: logging.enable-request-log needs a logging.request-log-template")
        wanted, template = settings.request_log, settings.request_log_template
    return replace(
        settings,
        request_log=wanted,
        request_log_template=template,
        metrics_protocol=data.get("metrics-protocol", "none"),
        metrics_endpoint=data.get("metrics-endpoint", ""),
        tracing_protocol=data.get("tracing-protocol", "none"),
        tracing_endpoint=data.get("tracing-endpoint", ""),
        tracing_sampling_rate=_share(data, "tracing-sampling-rate", settings.tracing_sampling_rate, tell),
    )


def read_logging(settings: ClusterSettings, data: Data, tell: Tell) -> ClusterSettings:
    """The same of config-logging: `loglevel.activator`, else the level of zap's own configuration."""
    level = data.get("loglevel.activator", "") or _zap_level(data.get("zap-logger-config", ""))
    if level and level.lower() not in _LEVELS:
        tell(f"config-logging: loglevel.activator: expected debug, info, warn or error, found {level!r}")
        return settings
    return replace(settings, log_level=_LEVELS.get(level.lower(), ""))


def _zap_level(text: str) -> str:
    if not text:
        return ""
    try:
        found = json.loads(text)
    except ValueError:
        return ""
    level = found.get("level", "") if isinstance(found, dict) else ""
    return level if isinstance(level, str) else ""


def _true(text: str) -> bool:
    return text.strip().lower() in ("true", "enabled")


def _whole(data: Data, name: str, former: int, tell: Tell) -> int:
    text = data.get(name, "").strip()
    if not text:
        return 0
    if not text.isdecimal() or len(text) > _DIGITS_MAX:
        tell(f"{AUTOSCALER}: {name}: expected a whole number, found {text!r}")
        return former
    return int(text)


def _share(data: Data, name: str, former: float, tell: Tell) -> float:
    text = data.get(name, "").strip()
    if not text:
        return 0.0
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0.0 <= share <= 1.0:
        tell(f"config-observability: {name}: expected a number from 0 to 1, found {text!r}")
        return former
    return share
