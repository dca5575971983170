"""Translates a Knative Revision into a specification.

Rules
  1. What the Revision does not set has Knative's default, not ours.
  2. All times count from a request's arrival, as in Knative. Each of them also bounds the wait for a pod.
  3. A value that cannot be parsed is treated as absent: Knative's webhook has accepted the Revision, and a mistake in
     an annotation must not keep it from serving.

Sources: knative.dev/serving pkg/apis/serving/v1/revision_types.go, pkg/apis/autoscaling/register.go (v1.23).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import Final

from activator.config.cluster_settings import ClusterSettings
from activator.config.forms import parse_size
from activator.config.model.pods import PROBE_QUEUE_PROXY, Health, PodTls
from activator.config.model.queueing import Buffer
from activator.config.specs import (
    BalancingSpec,
    ConnectionSpec,
    HealthSpec,
    KnativeSpec,
    ProbeSpec,
    ProbingSpec,
    QueueSpec,
    RevisionSpec,
    RoutingSpec,
    TimeoutsSpec,
    resolve_buffers,
)
from activator.kubernetes.objects import Container, Revision
from activator.runtime.child_name import private_service

MAX_SCALE: Final = ("autoscaling.knative.dev/max-scale", "autoscaling.knative.dev/maxScale")
THRESHOLD: Final = "activator.dev/trailing-fragmentation-threshold"
SERVICE: Final = "serving.knative.dev/service"
CONFIGURATION: Final = "serving.knative.dev/configuration"
POLICY: Final = "activator.dev/policy"
PREFER_ZONE: Final = "activator.dev/prefer-zone"
BUFFER_REQUEST: Final = "activator.dev/buffer-request"  # as `buffer.request` of the file
BUFFER_RESPONSE: Final = "activator.dev/buffer-response"  # as `buffer.response` of the file

HTTP1: Final = "http"  # the names of the private service's ports
HTTP2: Final = "http2"

_DIGITS_MAX: Final = 10  # the digits of a 32-bit number, which bounds a scale
_DEFAULT_PORT: Final = 8080  # the $PORT that Knative sets for a program that names none
_TIMEOUT_S: Final = 300.0  # config-defaults' revision-timeout-seconds


def port_name_of(revision: Revision) -> str:
    """Return the name of the port that requests go to: HTTP2 if the program's first port is named h2c."""
    container = _serving_container(revision)
    ports = [] if container is None else container.ports or []
    return HTTP2 if ports and ports[0].name == "h2c" else HTTP1


def _pod_protocol(revision: Revision, tls: PodTls | None) -> str:
    if port_name_of(revision) != HTTP2:
        return "h1"
    return "h2c" if tls is None else "h2"


def trusts_queue_proxy(revision: Revision) -> bool:
    """Return True if queue-proxy's answer is enough for a pod that is not ready yet for Kubernetes.

    It is not if Kubernetes runs checks that queue-proxy cannot: a command in the serving container, or a startup probe.
    """
    serving = _serving_container(revision)
    if serving is not None and serving.readiness_probe is not None and serving.readiness_probe.exec is not None:
        return False
    return all(container.startup_probe is None for container in revision.spec.containers or [])


class SpecMaker:
    """The translator of Knative Revisions into specifications.

    `default_policy` returns the policy for a container concurrency; `policies` are the existing names. `threshold`,
    `health` and `zone` are the configuration's, for all revisions.
    """

    def __init__(
        self,
        cluster_domain: str,
        threshold: float,
        health: Health,
        default_policy: Callable[[int], str],
        policies: AbstractSet[str],
        zone: str = "",
    ) -> None:
        self._domain = cluster_domain
        self._threshold = threshold
        self._health = health
        self._default_policy = default_policy
        self._policies = policies
        self._zone = zone

    def configure(self, threshold: float, health: Health, zone: str) -> None:
        """Set the configuration of the specifications that are made from now on."""
        self._threshold = threshold
        self._health = health
        self._zone = zone

    def make(self, revision: Revision, settings: ClusterSettings, tls: PodTls | None) -> RevisionSpec:
        """Return the revision's specification under these settings; `tls`: how to connect to its pods."""
        metadata, spec = revision.metadata, revision.spec
        limit = max(spec.container_concurrency or 0, 0)
        total_s = float(spec.timeout_seconds or 0) or _TIMEOUT_S
        first_byte_s = float(spec.response_start_timeout_seconds or 0)
        idle_s = float(spec.idle_timeout_seconds or 0)
        bounds_s = [seconds for seconds in (total_s, first_byte_s, idle_s) if seconds > 0.0]
        policy = metadata.annotations.get(POLICY, "")
        buffer = Buffer(
            request=parse_size(metadata.annotations.get(BUFFER_REQUEST, "")),
            response=parse_size(metadata.annotations.get(BUFFER_RESPONSE, "")),
        )
        return RevisionSpec(
            key=f"{metadata.namespace}/{metadata.name}",
            container_concurrency=limit,
            upgrades=("*",),
            routing=RoutingSpec((f"{metadata.name}.{metadata.namespace}.svc.{self._domain}",)),
            balancing=BalancingSpec(
                policy=policy if policy in self._policies else self._default_policy(limit),
                max_scale=max_scale_of(metadata.annotations, settings),
                trailing_fragmentation_threshold=_fragmentation_threshold(metadata.annotations, self._threshold),
                zone=self._zone if metadata.annotations.get(PREFER_ZONE, "") == "true" else "",
            ),
            queue=QueueSpec(timeout_s=min(bounds_s), startup_timeout_s=total_s),
            timeouts=TimeoutsSpec(first_byte_s=first_byte_s, idle_s=idle_s, total_s=total_s, from_arrival=True),
            buffers=resolve_buffers(buffer, limit),
            connection=ConnectionSpec(_pod_protocol(revision, tls), tls),
            probing=ProbingSpec(_probe(revision, settings)),
            health=HealthSpec(self._health.strikes, self._health.ejection_share, float(self._health.stale_after)),
            knative=KnativeSpec(metadata.labels.get(SERVICE, ""), metadata.labels.get(CONFIGURATION, "")),
        )


def max_scale_of(annotations: Mapping[str, str], settings: ClusterSettings) -> int:
    """Return the most pods that the revision may have; 0: unknown."""
    for name in MAX_SCALE:
        text = annotations.get(name, "")
        if text.isdecimal() and len(text) <= _DIGITS_MAX and int(text) > 0:
            return int(text)
    return settings.max_scale or settings.max_scale_limit


def _probe(revision: Revision, settings: ClusterSettings) -> ProbeSpec:
    """Return the probe of queue-proxy. Through a mesh (`enable-mesh-pod-addressability`) it names the private Service.

    A mesh accepts every connection, so that an open port of the program would prove nothing there.
    """
    if not settings.passes_through:
        port = _program_port(revision)
        return ProbeSpec(PROBE_QUEUE_PROXY, port=port, port_suffices=_port_suffices(revision, port))
    host = f"{private_service(revision.metadata.name)}.{revision.metadata.namespace}"
    return ProbeSpec(PROBE_QUEUE_PROXY, host=host, headers=(("K-Passthrough-Lb", "true"),))


def _program_port(revision: Revision) -> int:
    """Return the port of the program."""
    container = _serving_container(revision)
    ports = [] if container is None else container.ports or []
    return ports[0].container_port if ports and ports[0].container_port else _DEFAULT_PORT


def _port_suffices(revision: Revision, port: int) -> bool:
    """Return True if queue-proxy reports readiness as soon as this port accepts a connection: Knative's default."""
    serving = _serving_container(revision)
    probe = None if serving is None else serving.readiness_probe
    if probe is None or probe.tcp_socket is None or probe.success_threshold > 1:
        return False
    beside = [container for container in revision.spec.containers or [] if container is not serving]
    return probe.tcp_socket.port in (0, port) and all(container.readiness_probe is None for container in beside)


def _serving_container(revision: Revision) -> Container | None:
    """Return the only container, or the first that has ports."""
    containers = revision.spec.containers or []
    if len(containers) == 1:
        return containers[0]
    return next((container for container in containers if container.ports), None)


def _fragmentation_threshold(annotations: Mapping[str, str], default: float) -> float:
    try:
        share = float(annotations.get(THRESHOLD, ""))
    except ValueError:
        return default
    return share if 0.0 <= share <= 1.0 else default
