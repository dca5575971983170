"""The conditions in the status of an Activation, each with a reason and one sentence.

Rules
  1. `Ready`: a request would be served, possibly after a start from zero. `Active`: a pod answers. `ScaledToZero`: the
     target has no replicas. `Degraded`: requests are served, but something differs from what the object declares.
  2. A sentence has no figures that change with the load, because each change of a condition is a write.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from activator.control_plane.reconcile.desired import ConditionSpec
from activator.control_plane.reconcile.report import Component, ComponentResult, Result
from activator.control_plane.sources.activations.pod_failures import PodFailure

MESSAGE_MAX: Final = 1_000

READY: Final = "Ready"
ACTIVE: Final = "Active"
SCALED_TO_ZERO: Final = "ScaledToZero"
DEGRADED: Final = "Degraded"
CONTESTED: Final = "Contested"  # a reason: another manager writes fields that the activator owns

_WRITTEN: Final = {
    Component.SERVICE: "the private Service of its pods",
    Component.SCALE: "the replicas of its target",
    Component.STATUS: "its status",
    Component.EVENTS: "its events",
    Component.TRAFFIC: "where the requests of its Service go",
}
_TRUE: Final = "True"
_FALSE: Final = "False"
_UNKNOWN: Final = "Unknown"


class TakenHost(NamedTuple):
    """A host that the object names and that another object holds."""

    host: str
    holder: str


class ConditionInputs(NamedTuple):
    """The inputs of the conditions.

    `replicas`: -1 if unknown. `failure`: the cause with which requests are refused, or will be once the object's
    `patience` has passed.
    """

    problems: tuple[str, ...]
    is_served: bool  # with its present spec or the last valid one
    hosts: tuple[str, ...]
    taken: tuple[TakenHost, ...]
    failure: PodFailure | None
    ready: int
    wanted: int
    replicas: int
    notes: tuple[ConditionSpec, ...] = ()  # problems of the writers, as Degraded conditions
    front: ConditionSpec | None = None  # mode transparent: the condition InPath


def conditions_of(inputs: ConditionInputs) -> tuple[ConditionSpec, ...]:
    """Return the conditions in the order of the module's rule 1, then InPath in mode transparent."""
    conditions = (_ready(inputs), _active(inputs), _scaled_to_zero(inputs), _degraded(inputs))
    return conditions if inputs.front is None else (*conditions, inputs.front)


def _ready(inputs: ConditionInputs) -> ConditionSpec:
    if inputs.problems:
        more = f" (and {len(inputs.problems) - 1} more)" if len(inputs.problems) > 1 else ""
        kept = "; the last valid spec stays in force" if inputs.is_served else ""
        return _condition(READY, _FALSE, "InvalidSpec", f"{inputs.problems[0]}{more}{kept}")
    if inputs.failure is not None:
        return _condition(READY, _FALSE, inputs.failure.reason, inputs.failure.cause)
    if not inputs.hosts and inputs.front is None:
        if inputs.taken:
            return _condition(READY, _FALSE, "HostTaken", _taken(inputs.taken))
        return _condition(
            READY, _FALSE, "NoHosts", "No host is routed to it: name one in spec.hosts, or in an HTTPRoute."
        )
    if inputs.ready:
        return _condition(READY, _TRUE, "Serving", "Requests are served.")
    if inputs.wanted:
        return _condition(READY, _TRUE, "Starting", "Requests wait for the first pod that answers.")
    return _condition(READY, _TRUE, "AtZero", "The first request starts a pod.")


def _active(inputs: ConditionInputs) -> ConditionSpec:
    if inputs.ready:
        return _condition(ACTIVE, _TRUE, "PodsAnswer", "At least one pod answers.")
    if inputs.wanted:
        return _condition(ACTIVE, _FALSE, "Starting", "No pod answers yet.")
    return _condition(ACTIVE, _FALSE, "AtZero", "There is no load, and there are no pods.")


def _scaled_to_zero(inputs: ConditionInputs) -> ConditionSpec:
    if inputs.replicas < 0:
        return _condition(SCALED_TO_ZERO, _UNKNOWN, "NotKnown", "The target has not been read yet.")
    if inputs.replicas == 0:
        return _condition(SCALED_TO_ZERO, _TRUE, "AtZero", "The target has no replicas.")
    return _condition(SCALED_TO_ZERO, _FALSE, "HasReplicas", "The target has replicas.")


def _degraded(inputs: ConditionInputs) -> ConditionSpec:
    if inputs.taken and inputs.hosts:
        return _condition(DEGRADED, _TRUE, "HostTaken", _taken(inputs.taken))
    for note in inputs.notes:
        return note
    return _condition(DEGRADED, _FALSE, "AsDeclared", "The cluster is as the object declares.")


def note_of(component: Component, outcome: ComponentResult) -> ConditionSpec | None:
    """Return the outcome of a writer as a Degraded condition; None if nothing is wrong."""
    part = _WRITTEN[component]
    if outcome.result is Result.NOT_OWNED:
        return _condition(DEGRADED, _TRUE, "NotOwned", f"This object does not own {part}: {outcome.message}")
    if outcome.result is Result.CONTESTED or (outcome.taken_from and not outcome.is_adoption):
        others = ", ".join(outcome.taken_from) or "another program"
        message = f"{others} also writes {part}: remove it from what {others} applies."
        return _condition(DEGRADED, _TRUE, CONTESTED, message)
    if outcome.result is Result.FAILED:
        return _condition(DEGRADED, _TRUE, "CannotWrite", f"The API refuses to write {part}: {outcome.message}")
    return None


def _taken(taken: tuple[TakenHost, ...]) -> str:
    first = taken[0]
    more = f", and {len(taken) - 1} more" if len(taken) > 1 else ""
    return f"The host {first.host} belongs to {first.holder}, which is older{more}."


def _condition(kind: str, status: str, reason: str, message: str) -> ConditionSpec:
    return ConditionSpec(kind, status, reason, message[:MESSAGE_MAX])
