"""What the control part believes: revisions, their pods, and what each source says of them.

Records are frozen. `reduce` reads the model and returns the records to put in it; only `commit` writes. So a change
that cannot be reduced leaves the model as it was.
"""

from __future__ import annotations

import msgspec

from activator.config import RevisionSpec
from activator.state.messages import Effect, PodStatus, ProbeOrder
from lb.tracker import (
    DRAINING,
    NOT_READY,
    PENDING,
    QUARANTINED,
    READY,
    RECOVERING,
    UNLIMITED,
)


class PodRecord(msgspec.Struct, frozen=True):
    """One pod. `health` is what we found out ourselves, over what sources claim."""

    identity: str
    address: str
    claims: dict[str, PodStatus]  # by source
    probe: bool  # a source asked us to find out whether it answers
    proven: bool = False  # it has answered
    quarantined: bool = False
    recovering: bool = False
    strikes: int = 0  # connections in a row that were not answered in time
    weight: int = 1
    unplaced: bool = False  # every slot of the table is held
    since_s: float = 0.0  # of its state

    def state(self) -> int:
        """The state of the pod's slot, as `lb.tracker` has it."""
        statuses = self.claims.values()
        if not self.claims or PodStatus.DRAINING in statuses:
            return DRAINING
        if PodStatus.NOT_READY in statuses:
            return NOT_READY
        if self.quarantined:
            return QUARANTINED
        if self.recovering:
            return RECOVERING
        if self.proven or PodStatus.READY in statuses:
            return READY
        return PENDING

    def wants_probe(self) -> bool:
        state = self.state()
        return state == QUARANTINED or (state == PENDING and self.probe)


class RevisionRecord(msgspec.Struct, frozen=True):
    """One revision; `pods` is replaced item by item in `commit` and read everywhere else."""

    spec: RevisionSpec
    pods: dict[str, PodRecord]
    failure: str = ""  # why it cannot start, while it cannot

    def limit_of(self, pod: PodRecord) -> int:
        """How many requests the pod may carry at once."""
        if pod.state() == RECOVERING:
            return 1
        return self.spec.container_concurrency or UNLIMITED


class Model:
    """All revisions by key."""

    def __init__(self) -> None:
        self.revisions: dict[str, RevisionRecord] = {}


class Reduction:
    """What one change comes to: records to write, and messages to send. None stands for "remove"."""

    def __init__(self) -> None:
        self.revisions: dict[str, RevisionRecord | None] = {}
        self.pods: dict[tuple[str, str], PodRecord | None] = {}
        self.effects: list[Effect] = []
        self.probes: list[ProbeOrder] = []
        self.refused: bool = False  # the change made no sense in this state, and was not acted on


def commit(model: Model, reduction: Reduction) -> None:
    """Write the records of a reduction."""
    for key, revision in reduction.revisions.items():
        if revision is None:
            model.revisions.pop(key, None)
        else:
            model.revisions[key] = revision
    for (key, identity), pod in reduction.pods.items():
        record = model.revisions.get(key)
        if record is None:
            continue
        if pod is None:
            record.pods.pop(identity, None)
        else:
            record.pods[identity] = pod
