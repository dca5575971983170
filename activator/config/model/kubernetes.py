"""Revisions and pods from a cluster."""

from typing import Annotated, Final

import msgspec

from activator.config.model.kinds import Duration, doc

KNATIVE: Final = "knative"
ACTIVATIONS: Final = "activations"
SHARING_NONE: Final = "none"
SHARING_KNATIVE: Final = "knative"
SHARING_EXACT: Final = "exact"
KUBERNETES_MODES: Final = (KNATIVE, ACTIVATIONS)
SHARINGS: Final = (SHARING_NONE, SHARING_KNATIVE, SHARING_EXACT)


class ExternalScaler(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The port for KEDA's external scaler: KEDA asks it for the load of revisions, and scales them."""

    listen: Annotated[
        str,
        doc(
            "The host and port to listen on, without TLS: only KEDA should reach it.",
            "0.0.0.0:8016",
        ),
    ] = ""


class Kubernetes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The cluster as the source of revisions and pods, instead of the file."""

    mode: Annotated[
        str,
        doc(
            "`knative`: the activator replaces Knative's. `activations`: without Knative; Activations, or annotated "
            "Services, declare which workloads are served and scaled.",
            ACTIVATIONS,
            words=KUBERNETES_MODES,
        ),
    ] = KNATIVE
    namespace: Annotated[str, doc("With `activations`: the only namespace that is watched. Empty: all.", "models")] = ""
    service: Annotated[
        str,
        doc(
            "With `activations`: the Service of the activator, as namespace/name. The hosts of HTTPRoutes that lead "
            "to it are used.",
            "platform/activator",
        ),
    ] = ""
    sharing: Annotated[
        str,
        doc(
            "`none`: each replica uses every pod. `knative`: its share of the pods, as in "
            "Knative. `exact`: every pod, with limits that the replicas enforce together (`members`).",
            SHARING_KNATIVE,
            words=SHARINGS,
        ),
    ] = SHARING_NONE
    reconcile_interval: Annotated[
        Duration,
        doc(
            "The time between two comparisons of the known objects with those of the API. Objects for which requests "
            "wait are compared every second.",
            "1m",
        ),
    ] = Duration(600.0)
    autoscaler: Annotated[
        str, doc("The WebSocket of the autoscaler. Empty: the one of Knative.", "ws://autoscaler.internal:8080")
    ] = ""
    scale_fallback: Annotated[
        Duration,
        doc(
            "If requests wait for a revision at zero and the autoscaler has been unreachable for this time, the "
            "activator scales it to one pod. 0: never.",
            "30s",
        ),
    ] = Duration(0.0)
    external_scaler: Annotated[ExternalScaler, doc("The port for KEDA.")] = ExternalScaler()
