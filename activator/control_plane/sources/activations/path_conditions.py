"""The condition `InPath` of a transparent Activation: where its requests go."""

from __future__ import annotations

from typing import Final

from activator.control_plane.reconcile.desired import ConditionSpec
from activator.control_plane.reconcile.traffic_wanted import Position
from activator.control_plane.sources.activations.path import PathReason

IN_PATH: Final = "InPath"

_SENTENCES: Final = {
    PathReason.NO_POD: "There is no pod: the first request starts one.",
    PathReason.STARTING: "No pod answers yet: requests wait in the activator.",
    PathReason.LIMIT: "Requests come through the activator, because only it enforces the limit of a pod.",
    PathReason.MEASURING: "Requests come through the activator, so that their number is known.",
    PathReason.KEPT_CONNECTIONS: "A request came right after the scale to zero: clients may keep connections to pods.",
    PathReason.AMPLE: "The capacity is ample: requests go to the pods directly. Their number is not known.",
}


def in_path(position: Position, reason: PathReason | None) -> ConditionSpec:
    """Return the condition for a position. `reason` None: another replica decides."""
    # Steps on the way to a position are not reported, because each would be a write.
    status, why = "True", reason or PathReason.MEASURING
    if position is Position.OUT:
        status, why = "False", PathReason.AMPLE
    elif why in (PathReason.LEAVING, PathReason.AMPLE):
        why = PathReason.MEASURING
    return ConditionSpec(IN_PATH, status, why.value, _SENTENCES[why])


def refused(reason: str, message: str) -> ConditionSpec:
    """Return the condition for a Service that cannot be used."""
    return ConditionSpec(IN_PATH, "False", reason, f"Requests for its Service do not come to the activator: {message}.")
