"""The results of a pass, by component; a source derives conditions from them."""

from __future__ import annotations

from enum import Enum

import msgspec


class Component(Enum):
    """The parts of the written state; each has its own field manager."""

    SERVICE = "service"
    SCALE = "scale"
    STATUS = "status"
    EVENTS = "events"
    TRAFFIC = "traffic"


class Result(Enum):
    """The result of one component in a pass."""

    UNCHANGED = "unchanged"  # nothing was sent
    WRITTEN = "written"
    DELETED = "deleted"
    NOT_OWNED = "not_owned"  # an object of that name has another owner and was left unchanged
    CONTESTED = "contested"  # another manager repeatedly takes a field back
    NOT_FOUND = "not_found"  # the target, or the Activation itself, does not exist
    WAITING = "waiting"  # the cluster must act first
    SKIPPED = "skipped"  # a component that it depends on failed
    FAILED = "failed"


GOOD = frozenset({Result.UNCHANGED, Result.WRITTEN, Result.DELETED})


class ComponentResult(msgspec.Struct, frozen=True):
    """The result of one component, with details.

    `taken_from`: the managers that a field was taken from. `is_adoption`: the activator has never had the field before,
    so this is not a contest. `again_in_s`: when the component has more to do, in seconds.
    """

    result: Result
    message: str = ""
    taken_from: tuple[str, ...] = ()
    again_in_s: float | None = None
    error: Exception | None = None
    is_adoption: bool = False


UNCHANGED = ComponentResult(Result.UNCHANGED)
WRITTEN = ComponentResult(Result.WRITTEN)


class Report(msgspec.Struct, frozen=True):
    """The report of one pass over `key`. `retry_in_s`: seconds until the failed components are retried."""

    key: str
    uid: str
    generation: int
    outcomes: dict[Component, ComponentResult]
    retry_in_s: float | None = None

    @property
    def good(self) -> bool:
        return all(outcome.result in GOOD for outcome in self.outcomes.values())
