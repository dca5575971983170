"""The metrics of a cluster: the age and repairs of its view, Knative's autoscaler, and declared revisions."""

from __future__ import annotations

from collections import Counter
from typing import Any, Protocol

from activator.telemetry.metrics.families import Family, Kind, Row, counter, gauge


class StreamView(Protocol):
    """The connection to Knative's autoscaler."""

    is_connected: bool
    connections_total: int
    errors_total: int
    sent_total: int
    dropped_total: int


class FallbackView(Protocol):
    """The switches of revisions from pod addresses to a Service."""

    fallbacks_total: int


class ScaleView(Protocol):
    """The starts from zero in place of the autoscaler."""

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
    """The figures that are read with any cluster."""

    @property
    def watches(self) -> WatchesView: ...
    def view_age_s(self) -> float: ...


class KnativeView(ClusterView, Protocol):
    """The figures that are also read with Knative."""

    @property
    def stream(self) -> StreamView: ...
    @property
    def fallback(self) -> FallbackView: ...
    @property
    def scale_fallback(self) -> ScaleView: ...


class DiagnosticsView(Protocol):
    """The lists of pods that explain why none is ready."""

    lists_total: int
    errors_total: int


class DeclarationsView(Protocol):
    """The figures that are also read if Activations and annotated Services declare revisions."""

    @property
    def diagnostics(self) -> DiagnosticsView: ...
    def declared(self) -> dict[str, int]: ...
    def owned(self) -> int: ...
    def contested_hosts(self) -> int: ...


REPAIRS = ("missed_add", "missed_change", "missed_delete", "missed_recreate", "version_only")


def _repairs(view: ClusterView) -> list[Row]:
    counts = dict.fromkeys(REPAIRS, 0)
    for relister in view.watches.relisters:
        for kind in REPAIRS:
            counts[kind] += relister.repairs_total[kind]
    return [((kind,), float(count)) for kind, count in counts.items()]


def _watch_errors(view: ClusterView) -> float:
    return float(sum(sum(reflector.errors_total.values()) for reflector in view.watches.reflectors))


CLUSTER_FAMILIES: tuple[Family[ClusterView], ...] = (
    gauge(
        "activator_cluster_view_age_seconds",
        "Time since the last message from the API server, of the watch that has been silent for longest.",
        lambda view: view.view_age_s(),
        why="`rest_client_requests_total` counts calls; a silent watch makes none.",
    ),
    counter(
        "activator_cluster_watch_errors",
        "Watches and lists that failed, broke or stalled.",
        _watch_errors,
        why="`rest_client_requests_total` does not count streams that break.",
    ),
    Family(
        "activator_cluster_repairs",
        Kind.COUNTER,
        "Changes that a watch had missed and a comparison with a list found, by kind.",
        _repairs,
        ("kind",),
        (REPAIRS,),
        why="A controller runtime has no such metric.",
    ),
)

DECLARED_STATES = ("serving", "at_zero", "starting", "not_ready")

DECLARATION_FAMILIES: tuple[Family[DeclarationsView], ...] = (
    Family(
        "activator_declared_revisions",
        Kind.GAUGE,
        "Revisions that Activations and annotated Services declare, by state.",
        lambda view: [((state,), float(view.declared().get(state, 0))) for state in DECLARED_STATES],
        ("state",),
        (DECLARED_STATES,),
        why="`activator_pods` omits revisions with an invalid spec.",
    ),
    gauge(
        "activator_owned_revisions",
        "Revisions that this replica owns; the sum over all replicas is the number of all revisions.",
        lambda view: view.owned(),
        why="`activator_declared_revisions` has the same value at all replicas.",
    ),
    gauge(
        "activator_contested_hosts",
        "Hosts that more than one object names; the oldest object gets the host.",
        lambda view: view.contested_hosts(),
        why="Otherwise only the status of the other objects shows this.",
    ),
    counter(
        "activator_pod_looks",
        "Lists of a revision's pods, made to find out why none is ready.",
        lambda view: view.diagnostics.lists_total,
        why='`rest_client_requests_total{verb="list"}` counts all lists.',
    ),
    counter(
        "activator_pod_look_errors",
        "Such lists that the API server refused or did not answer.",
        lambda view: view.diagnostics.errors_total,
        why="`rest_client_requests_total` does not distinguish these calls.",
    ),
)

KNATIVE_FAMILIES: tuple[Family[KnativeView], ...] = (
    gauge(
        "activator_autoscaler_connected",
        "1 while the WebSocket to the autoscaler is connected.",
        lambda view: view.stream.is_connected,
        why="`rest_client_requests_total` does not cover the autoscaler.",
    ),
    counter(
        "activator_autoscaler_connection_errors",
        "Connections to the autoscaler that were established and broke.",
        lambda view: view.stream.errors_total,
        why="`activator_autoscaler_connected` does not show breaks between two scrapes.",
    ),
    counter(
        "activator_autoscaler_batches",
        "Metric batches sent to the autoscaler.",
        lambda view: view.stream.sent_total,
        why="`activator_autoscaler_connected` shows only that figures could be sent.",
    ),
    counter(
        "activator_autoscaler_batches_dropped",
        "Batches not sent because there was no connection or it was too slow; newer ones replaced them.",
        lambda view: view.stream.dropped_total,
        why="`activator_autoscaler_batches_total` does not show figures that could not be sent.",
    ),
    counter(
        "activator_mesh_fallbacks",
        "Switches of a revision from pod addresses to its Service because no pod was reachable at its address.",
        lambda view: view.fallback.fallbacks_total,
        why="`activator_policy` and `activator_pods` show the Service as one pod.",
    ),
    counter(
        "activator_scale_fallbacks",
        "Revisions that the activator itself scaled from zero because the autoscaler was not connected.",
        lambda view: view.scale_fallback.scaled_total,
        why='`rest_client_requests_total{verb="patch"}` counts calls, including refused ones.',
    ),
)
