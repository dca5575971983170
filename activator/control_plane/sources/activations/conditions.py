"""What the status of an Activation says: four conditions, each with a reason and one plain sentence.

Rules
  1. `Ready`: a request would be served, be it after a start from zero. `Active`: a pod answers. `ScaledToZero`: the
     target has no replicas. `Degraded`: requests are served, but something is not as the object says.
  2. A sentence has no figures that change with the load: each change of a condition is a write.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from activator.control_plane.reconcile.desired import ConditionSpec
from activator.control_plane.reconcile.report import Component, Outcome, Result
from activator.control_plane.sources.activations.pod_failures import Failure

MESSAGE_MAX: Final = 1_000

READY: Final = "Ready"
ACTIVE: Final = "Active"
SCALED_TO_ZERO: Final = "ScaledToZero"
DEGRADED: Final = "Degraded"
CONTESTED: Final = "Contested"  # a reason: another manager writes what is ours

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


class Taken(NamedTuple):
    """A host that the object names and another one has."""

    host: str
    holder: str


class Situation(NamedTuple):
    """What the conditions follow from. `replicas` -1: not known. `failure`: with which requests are refused, or would
    be after the patience.
    """

    problems: tuple[str, ...]
    is_served: bool  # by its spec, or by the last valid one
    hosts: tuple[str, ...]
    taken: tuple[Taken, ...]
    failure: Failure | None
    ready: int
    wanted: int
    replicas: int
    notes: tuple[ConditionSpec, ...] = ()  # what the writers have met, as Degraded
    front: ConditionSpec | None = None  # of a transparent one: where its requests go


def conditions_of(found: Situation) -> tuple[ConditionSpec, ...]:
    """In the order of the module's rule 1."""
    made = (_ready(found), _active(found), _scaled_to_zero(found), _degraded(found))
    return made if found.front is None else (*made, found.front)


def _ready(found: Situation) -> ConditionSpec:
    if found.problems:
        more = f" (and {len(found.problems) - 1} more)" if len(found.problems) > 1 else ""
        kept = "; the last valid spec stays in force" if found.is_served else ""
        return _made(READY, _FALSE, "InvalidSpec", f"{found.problems[0]}{more}{kept}")
    if found.failure is not None:
        return _made(READY, _FALSE, found.failure.reason, found.failure.cause)
    if not found.hosts and found.front is None:
        if found.taken:
            return _made(READY, _FALSE, "HostTaken", _taken(found.taken))
        return _made(READY, _FALSE, "NoHosts", "No host leads here: name one in spec.hosts, or in an HTTPRoute.")
    if found.ready:
        return _made(READY, _TRUE, "Serving", "Requests are served.")
    if found.wanted:
        return _made(READY, _TRUE, "Starting", "Requests wait for the first pod that answers.")
    return _made(READY, _TRUE, "AtZero", "The first request starts a pod.")


def _active(found: Situation) -> ConditionSpec:
    if found.ready:
        return _made(ACTIVE, _TRUE, "PodsAnswer", "At least one pod answers.")
    if found.wanted:
        return _made(ACTIVE, _FALSE, "Starting", "No pod answers yet.")
    return _made(ACTIVE, _FALSE, "AtZero", "There is no load, and there are no pods.")


def _scaled_to_zero(found: Situation) -> ConditionSpec:
    if found.replicas < 0:
        return _made(SCALED_TO_ZERO, _UNKNOWN, "NotKnown", "The target has not been read yet.")
    if found.replicas == 0:
        return _made(SCALED_TO_ZERO, _TRUE, "AtZero", "The target has no replicas.")
    return _made(SCALED_TO_ZERO, _FALSE, "HasReplicas", "The target has replicas.")


def _degraded(found: Situation) -> ConditionSpec:
    if found.taken and found.hosts:
        return _made(DEGRADED, _TRUE, "HostTaken", _taken(found.taken))
    for note in found.notes:
        return note
    return _made(DEGRADED, _FALSE, "AsDeclared", "All is as the object says.")


def note_of(component: Component, outcome: Outcome) -> ConditionSpec | None:
    """Return what a writer has met as a condition; None if nothing is wrong."""
    what = _WRITTEN[component]
    if outcome.result is Result.NOT_OWNED:
        return _made(DEGRADED, _TRUE, "NotOwned", f"Somebody else owns {what}: {outcome.message}")
    if outcome.result is Result.CONTESTED or (outcome.taken_from and not outcome.is_adoption):
        others = ", ".join(outcome.taken_from) or "somebody else"
        said = f"{others} also writes {what}: take it out of what {others} applies."
        return _made(DEGRADED, _TRUE, CONTESTED, said)
    if outcome.result is Result.FAILED:
        return _made(DEGRADED, _TRUE, "CannotWrite", f"The API refuses to write {what}: {outcome.message}")
    return None


def _taken(taken: tuple[Taken, ...]) -> str:
    first = taken[0]
    more = f", and {len(taken) - 1} more" if len(taken) > 1 else ""
    return f"The host {first.host} belongs to {first.holder}, which is older{more}."


def _made(kind: str, status: str, reason: str, message: str) -> ConditionSpec:
    return ConditionSpec(kind, status, reason, message[:MESSAGE_MAX])
