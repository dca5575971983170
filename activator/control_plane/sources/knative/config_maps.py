"""The default configuration of an activator that is started by Knative's manifest, without a file.

The environment (`ACTIVATOR_SHUTDOWN__DELAY=10s`) or a file with the key `kubernetes` overrides it.
"""

from __future__ import annotations

from typing import Final

from activator.config.model.file import Config
from activator.config.model.kinds import Duration, Size
from activator.config.model.kubernetes import Kubernetes
from activator.config.model.listeners import Forwarded, Limits, Shutdown
from activator.config.model.telemetry import Log
from activator.control_plane.sources.knative.environment import KnativeEnvironment
from activator.runtime.units import KIB

HTTP_PORT: Final = 8012
H2C_PORT: Final = 8013

_DRAIN_DELAY_S: Final = 45.0  # until every ingress has noticed it (knative.dev/pkg network.DefaultDrainTimeout)
_GRACE_S: Final = 600.0  # terminationGracePeriodSeconds of Knative's manifest
_HEADER_BYTES: Final = Size(128 * KIB)  # twice Envoy's default
_HEADERS: Final = 300
_CLIENT_IDLE: Final = Duration(3900.0)  # above Envoy's hour, so that the ingress closes first
_SPARE_S: Final = 15.0  # the part of the grace period after the last request


def default_config(environment: KnativeEnvironment) -> Config:
    """Return the configuration: Knative's two ports, its trust in the ingress, and its times."""
    host = "[::]" if ":" in environment.pod_ip else "0.0.0.0"
    drain_s = Duration(_GRACE_S - _DRAIN_DELAY_S - _SPARE_S)
    return Config(
        listen=[f"{host}:{HTTP_PORT}", f"{host}:{H2C_PORT}"],
        trust_revision_headers=True,
        forwarded=Forwarded(trust=["0.0.0.0/0", "::/0"], headers="x-forwarded-for", request_id=False),
        shutdown=Shutdown(delay=Duration(_DRAIN_DELAY_S), timeout=drain_s, tunnels=drain_s),
        limits=Limits(header_bytes=_HEADER_BYTES, headers=_HEADERS, body_rate=0, idle=_CLIENT_IDLE),
        log=Log(format="json"),
        kubernetes=Kubernetes(),
    )
