"""The condition `InPath` of a transparent Activation: where its requests go."""

from __future__ import annotations

from typing import Final

from activator.control_plane.reconcile.desired import ConditionSpec
from activator.control_plane.reconcile.traffic_wanted import Position
from activator.control_plane.sources.activations.path import Reason

IN_PATH: Final = "InPath"

_SENTENCES: Final = {
    Reason.NO_POD: "There is no pod: the first request starts one.",
    Reason.STARTING: "No pod answers yet: requests wait in the activator.",
    Reason.LIMIT: "Requests come through the activator, because only it enforces the limit of a pod.",
    Reason.MEASURING: "Requests come through the activator, so that their number is known.",
    Reason.KEPT_CONNECTIONS: "A request came right after the scale to zero: clients may keep connections to pods.",
    Reason.AMPLE: "The capacity is ample: requests go to the pods directly. Their number is not known.",
}


def in_path(position: Position, reason: Reason | None) -> ConditionSpec:
    """Return the condition for a position. `reason` None: another replica decides."""
    # Steps on the way to a position are not reported, because each would be a write.
    status, why = "True", reason or Reason.MEASURING
    if position is Position.OUT:
        status, why = "False", Reason.AMPLE
    elif why in (Reason.LEAVING, Reason.AMPLE):
        why = Reason.MEASURING
    return ConditionSpec(IN_PATH, status, why.value, _SENTENCES[why])


def refused(reason: str, message: str) -> ConditionSpec:
    """Return the condition for a Service that cannot be used."""
    return ConditionSpec(IN_PATH, "False", reason, f"Requests for its Service do not come to the activator: {message}.")
