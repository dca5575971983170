"""Revisions and pods from a cluster."""

from __future__ import annotations

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
    """The port on which KEDA asks for the load of revisions (external scaler); KEDA then scales them."""

    listen: Annotated[
        str,
        doc(
            "The host and port to listen on, without TLS: only KEDA should reach it. Empty: no such port.",
            "0.0.0.0:8016",
        ),
    ] = ""


class Kubernetes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Revisions and pods come from a cluster, not from the file."""

    mode: Annotated[
        str,
        doc(
            "`knative`: this program replaces the activator of Knative. `activations`: a cluster without Knative; "
            "objects of the kind Activation, or annotated Services, declare which workloads are served and scaled.",
            ACTIVATIONS,
            words=KUBERNETES_MODES,
        ),
    ] = KNATIVE
    namespace: Annotated[
        str, doc("With `activations`: the only namespace that is looked at. Empty: all of them.", "models")
    ] = ""
    service: Annotated[
        str,
        doc(
            "With `activations`: the Service of this program, as namespace/name. HTTPRoutes that lead to it are read "
            "for their hosts. Empty: none are.",
            "platform/activator",
        ),
    ] = ""
    sharing: Annotated[
        str,
        doc(
            "`none`: each replica uses every pod. `knative`: each replica uses its share of the pods, as the activator "
            "of Knative does. `exact`: each replica uses every pod, and they hold the limits together (`members`).",
            SHARING_KNATIVE,
            words=SHARINGS,
        ),
    ] = SHARING_NONE
    reconcile_interval: Annotated[
        Duration,
        doc(
            "The time between two comparisons of the known objects with a list of the API. Objects that requests wait "
            "for are compared every second.",
            "1m",
        ),
    ] = Duration(600.0)
    autoscaler: Annotated[
        str, doc("The WebSocket of the autoscaler. Empty: that of Knative.", "ws://autoscaler.internal:8080")
    ] = ""
    scale_fallback: Annotated[
        Duration,
        doc(
            "Requests wait for a revision at zero, and the autoscaler has been away for this time: the activator "
            "scales it to one pod. 0: never.",
            "30s",
        ),
    ] = Duration(0.0)
    external_scaler: Annotated[ExternalScaler, doc("The port for KEDA.")] = ExternalScaler()
