"""What is known of the cluster: how old, how often repaired; with Knative, whether its autoscaler is connected; without
it, what is declared and what of it can be served.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Protocol

from activator.telemetry.metrics.families import Family, Kind, Row, counter, gauge


class StreamView(Protocol):
    is_connected: bool
    connections_total: int
    errors_total: int
    sent_total: int
    dropped_total: int


class FallbackView(Protocol):
    fallbacks_total: int


class ScaleView(Protocol):
    scaled_total: int


class WatchView(Protocol):
    name: str
    errors_total: Counter[str]


class ComparisonView(Protocol):
    repairs_total: Counter[str]


class WatchesView(Protocol):
    reflectors: list[Any]
    relisters: list[Any]


class ClusterView(Protocol):
    """What is read of any cluster."""

    @property
    def watches(self) -> WatchesView: ...
    def view_age_s(self) -> float: ...


class KnativeView(ClusterView, Protocol):
    """What is read beside that where Knative is."""

    @property
    def stream(self) -> StreamView: ...
    @property
    def fallback(self) -> FallbackView: ...
    @property
    def scale_fallback(self) -> ScaleView: ...


class LooksView(Protocol):
    looks_total: int
    errors_total: int


class DeclarationsView(Protocol):
    """What is read beside that where Activations and annotated Services declare revisions."""

    @property
    def looks(self) -> LooksView: ...
    def declared(self) -> dict[str, int]: ...
    def owned(self) -> int: ...
    def contested_hosts(self) -> int: ...


REPAIRS = ("missed_add", "missed_change", "missed_delete", "missed_recreate", "version_only")


def _repairs(it: ClusterView) -> list[Row]:
    counts = dict.fromkeys(REPAIRS, 0)
    for relister in it.watches.relisters:
        for kind in REPAIRS:
            counts[kind] += relister.repairs_total[kind]
    return [((kind,), float(count)) for kind, count in counts.items()]


def _watch_errors(it: ClusterView) -> float:
    return float(sum(sum(reflector.errors_total.values()) for reflector in it.watches.reflectors))


CLUSTER_FAMILIES: tuple[Family[ClusterView], ...] = (
    gauge(
        "activator_cluster_view_age_seconds",
        "Time since the last message of the API server, of the watch that has been silent for longest.",
        lambda it: it.view_age_s(),
        adds="`rest_client_requests_total` counts calls; a watch that is silent makes none.",
    ),
    counter(
        "activator_cluster_watch_errors",
        "Watches and lists that failed, broke or stalled.",
        _watch_errors,
        adds="`rest_client_requests_total` knows of refused calls, not of streams that break.",
    ),
    Family(
        "activator_cluster_repairs",
        Kind.COUNTER,
        "Differences that a comparison with a list found, which the watch had missed, by kind.",
        _repairs,
        ("kind",),
        (REPAIRS,),
        adds="Nothing near to it: a controller runtime trusts its watches.",
    ),
)

DECLARED_STATES = ("serving", "at_zero", "starting", "not_ready")

DECLARATION_FAMILIES: tuple[Family[DeclarationsView], ...] = (
    Family(
        "activator_declared_revisions",
        Kind.GAUGE,
        "Revisions that Activations and annotated Services declare, by what can be served of them.",
        lambda it: [((state,), float(it.declared().get(state, 0))) for state in DECLARED_STATES],
        ("state",),
        (DECLARED_STATES,),
        adds="`activator_pods` is by revision, and knows nothing of one whose spec is not valid.",
    ),
    gauge(
        "activator_owned_revisions",
        "Revisions that this replica decides on and writes for; the sum over all replicas is that of all revisions.",
        lambda it: it.owned(),
        adds="`activator_declared_revisions` is the same at all replicas.",
    ),
    gauge(
        "activator_contested_hosts",
        "Hosts that more than one object names; the oldest of them has it.",
        lambda it: it.contested_hosts(),
        adds="Who loses such a host says so in its status only.",
    ),
    counter(
        "activator_pod_looks",
        "Looks at the pods of a revision none of which answers, to find out why.",
        lambda it: it.looks.looks_total,
        adds='`rest_client_requests_total{verb="list"}` counts all lists, those of the watches among them.',
    ),
    counter(
        "activator_pod_look_errors",
        "Looks at pods that the API server refused or did not answer.",
        lambda it: it.looks.errors_total,
        adds="`rest_client_requests_total` does not tell these calls from others of their verb.",
    ),
)

KNATIVE_FAMILIES: tuple[Family[KnativeView], ...] = (
    gauge(
        "activator_autoscaler_connected",
        "1 while the autoscaler's WebSocket is there.",
        lambda it: it.stream.is_connected,
        adds="The autoscaler is no part of the API: `rest_client_requests_total` knows nothing of it.",
    ),
    counter(
        "activator_autoscaler_connection_errors",
        "Connections to the autoscaler that were there and broke.",
        lambda it: it.stream.errors_total,
        adds="`activator_autoscaler_connected` is a moment; what breaks between two readings shows only here.",
    ),
    counter(
        "activator_autoscaler_batches",
        "Batches of figures sent to the autoscaler.",
        lambda it: it.stream.sent_total,
        adds="`activator_autoscaler_connected` says that one could speak, this that something is said.",
    ),
    counter(
        "activator_autoscaler_batches_dropped",
        "Batches that were not sent, since there was no connection or it was too slow; newer ones replaced them.",
        lambda it: it.stream.dropped_total,
        adds="`activator_autoscaler_batches_total` cannot tell what was not sent from what there was not to send.",
    ),
    counter(
        "activator_mesh_fallbacks",
        "Times that a revision's requests went to its Service, since no pod could be reached by its address.",
        lambda it: it.fallback.fallbacks_total,
        adds="`activator_policy` and `activator_pods` show one pod then; only this says that it stands for a Service.",
    ),
    counter(
        "activator_scale_fallbacks",
        "Revisions scaled from zero by the activator itself, since the autoscaler was away.",
        lambda it: it.scale_fallback.scaled_total,
        adds='`rest_client_requests_total{verb="patch"}` counts calls, those that were refused among them.',
    ),
)
