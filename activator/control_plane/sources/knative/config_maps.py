"""The configuration of an activator that was started as Knative's manifest starts it: without a file.

Everything here can be said otherwise by the environment (`ACTIVATOR_SHUTDOWN__DELAY=10s`) or by a file with the key
`kubernetes`.
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

_DRAIN_DELAY_S: Final = 45.0  # until every ingress has noticed our end (knative.dev/pkg network.DefaultDrainTimeout)
_GRACE_S: Final = 600.0  # terminationGracePeriodSeconds of Knative's manifest
_HEADER_BYTES: Final = Size(128 * KIB)  # twice what Envoy takes by default
_HEADERS: Final = 300
_CLIENT_IDLE: Final = Duration(3900.0)  # longer than Envoy's hour: the side that closes first may cross a request
_SPARE_S: Final = 15.0  # of the grace: for what comes after the last request


def default_config(environment: KnativeEnvironment) -> Config:
    """Both of Knative's ports, its trust in what the ingress says, its times."""
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
