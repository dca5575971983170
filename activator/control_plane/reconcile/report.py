"""What became of one pass, component by component: what its source puts into conditions."""

from __future__ import annotations

from enum import Enum

import msgspec


class Component(Enum):
    """The parts of what is written; each has a field manager of its own."""

    SERVICE = "service"
    SCALE = "scale"
    STATUS = "status"
    EVENTS = "events"
    TRAFFIC = "traffic"


class Result(Enum):
    """How one component of a pass ended."""

    UNCHANGED = "unchanged"  # nothing was sent
    WRITTEN = "written"
    DELETED = "deleted"
    NOT_OWNED = "not_owned"  # an object of that name belongs to somebody else, and was left alone
    CONTESTED = "contested"  # another manager takes a field back again and again
    NOT_FOUND = "not_found"  # the target, or the Activation itself, is not there
    WAITING = "waiting"  # the cluster has to do its part first
    SKIPPED = "skipped"  # what it depends on failed
    FAILED = "failed"


GOOD = frozenset({Result.UNCHANGED, Result.WRITTEN, Result.DELETED})


class Outcome(msgspec.Struct, frozen=True):
    """`taken_from`: the managers that a field was taken from; `is_adoption`: we have never had it before, so that is no
    contest. `again_in_s`: the component has more to do then.
    """

    result: Result
    message: str = ""
    taken_from: tuple[str, ...] = ()
    again_in_s: float | None = None
    error: Exception | None = None
    is_adoption: bool = False


UNCHANGED = Outcome(Result.UNCHANGED)
WRITTEN = Outcome(Result.WRITTEN)


class Report(msgspec.Struct, frozen=True):
    """Of one pass over `key`. `retry_in_s`: what has failed is tried again after so long."""

    key: str
    uid: str
    generation: int
    outcomes: dict[Component, Outcome]
    retry_in_s: float | None = None

    @property
    def good(self) -> bool:
        return all(outcome.result in GOOD for outcome in self.outcomes.values())
