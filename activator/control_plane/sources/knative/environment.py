"""The environment variables that Knative's manifest sets for the activator.

Sources: knative.dev/serving cmd/activator/main.go and config/core/deployments/activator.yaml (v1.23); knative.dev/pkg
network/tls/config.go, DefaultConfigFromEnv, for the variables that begin with ACTIVATOR_TLS.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from activator.config.model.listeners import TLS_VERSIONS
from activator.runtime.durations import parse_seconds
from activator.runtime.errors import ConfigError

REQUIRED: Final = ("POD_NAME", "POD_IP", "SYSTEM_NAMESPACE")

_TLS_IGNORED: Final = ("ACTIVATOR_TLS_MAX_VERSION", "ACTIVATOR_TLS_CIPHER_SUITES", "ACTIVATOR_TLS_CURVE_PREFERENCES")
_RESOLV_CONF: Final = Path("/etc/resolv.conf")
_LOWEST_METRICS_PORT: Final = 1024


class KnativeEnvironment(msgspec.Struct, frozen=True):
    """The settings from the environment; times are in seconds."""

    pod_name: str
    pod_ip: str
    system_namespace: str
    cluster_domain: str = "cluster.local"
    logging_config: str = "config-logging"
    observability_config: str = "config-observability"
    max_idle_connections: int = 1000
    max_idle_connections_per_host: int = 100
    probe_timeout_s: float = 0.3
    probe_frequency_s: float = 0.2
    metrics_host: str = ""
    metrics_port: int = 9090
    tls_min_version: str = "1.3"
    tls_ignored: tuple[str, ...] = ()  # variables about TLS that are set and have no effect


def is_knative(environ: Mapping[str, str]) -> bool:
    """Return True if the program was started by Knative's manifest."""
    return all(environ.get(name) for name in REQUIRED)


def read_environment(environ: Mapping[str, str], resolv_conf: Path = _RESOLV_CONF) -> KnativeEnvironment:
    """Read the environment; raise ConfigError with a line per mistake."""
    reader = _Reader(environ)
    environment = KnativeEnvironment(
        pod_name=reader.required("POD_NAME"),
        pod_ip=reader.address("POD_IP"),
        system_namespace=reader.required("SYSTEM_NAMESPACE"),
        cluster_domain=environ.get("CLUSTER_DOMAIN") or _domain_of(resolv_conf),
        logging_config=environ.get("CONFIG_LOGGING_NAME") or "config-logging",
        observability_config=environ.get("CONFIG_OBSERVABILITY_NAME") or "config-observability",
        max_idle_connections=reader.whole("MAX_IDLE_PROXY_CONNS", 1000, 1),
        max_idle_connections_per_host=reader.whole("MAX_IDLE_PROXY_CONNS_PER_HOST", 100, 1),
        probe_timeout_s=reader.duration("PROBE_TIMEOUT", 0.3),
        probe_frequency_s=reader.duration("PROBE_FREQUENCY", 0.2),
        metrics_host=environ.get("METRICS_PROMETHEUS_HOST", ""),
        metrics_port=reader.whole("METRICS_PROMETHEUS_PORT", 9090, _LOWEST_METRICS_PORT),
        tls_min_version=reader.word("ACTIVATOR_TLS_MIN_VERSION", "1.3", TLS_VERSIONS),
        tls_ignored=tuple(name for name in _TLS_IGNORED if environ.get(name)),
    )
    if reader.problems:
        raise ConfigError(reader.problems)
    return environment


class _Reader:
    """Reads variables; a mistake is added to `problems`, and the default is returned."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self.problems: list[str] = []

    def required(self, name: str) -> str:
        value = self._environ.get(name, "")
        if not value:
            self.problems.append(f"{name} must be set: Knative's manifest does, from the pod's own fields")
        return value

    def address(self, name: str) -> str:
        value = self.required(name)
        try:
            return str(ipaddress.ip_address(value)) if value else ""
        except ValueError:
            self.problems.append(f"{name}: expected an IP address, found {value!r}")
            return ""

    def whole(self, name: str, default: int, least: int) -> int:
        text = self._environ.get(name, "")
        if not text:
            return default
        if not text.isdecimal() or int(text) < least:
            self.problems.append(f"{name}: expected a whole number of at least {least}, found {text!r}")
            return default
        return int(text)

    def word(self, name: str, default: str, words: tuple[str, ...]) -> str:
        text = self._environ.get(name, "") or default
        if text not in words:
            self.problems.append(f"{name}: expected {' or '.join(words)}, found {text!r}")
            return default
        return text

    def duration(self, name: str, default: float) -> float:
        text = self._environ.get(name, "")
        if not text:
            return default
        seconds = parse_seconds(text)
        if seconds is None or seconds <= 0.0:
            self.problems.append(f"{name}: expected a duration such as 300ms, found {text!r}")
            return default
        return seconds


def _domain_of(resolv_conf: Path) -> str:
    """Return the cluster's domain: the rest of the search entry that begins with `svc.`."""
    try:
        lines = resolv_conf.read_text("utf-8", "replace").splitlines()
    except OSError:
        return "cluster.local"
    for line in lines:
        words = line.split()
        if words[:1] == ["search"]:
            for word in words[1:]:
                if word.startswith("svc."):
                    return word.removeprefix("svc.").rstrip(".")
    return "cluster.local"
