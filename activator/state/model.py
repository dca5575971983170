"""What the control part believes: revisions, their pods, and what each source says of them.

Records are frozen. `reduce` reads the model and returns the records to put in it; only `commit` writes. So a change
that cannot be reduced leaves the model as it was.
"""

from __future__ import annotations

import msgspec

from activator.config import RevisionSpec
from activator.state.messages import PUSH, Effect, PodStatus, ProbeOrder, RebuildRevision
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
    """One pod: what each source claims of it, and what we found out ourselves."""

    identity: str
    address: str
    claims: dict[str, PodStatus]  # by source
    probe: bool  # a source asked us to find out whether it answers
    proven: bool = False  # it has answered
    quarantined: bool = False
    recovering: bool = False
    strikes: int = 0  # connections in a row that were silent or broke
    weight: int = 1
    unplaced: bool = False  # every slot of the table is held
    since_s: float = 0.0  # of its state
    heard_s: float = 0.0  # first heard of
    pushed_s: float = 0.0  # when it last said something of itself; 0.0: it does not count (any more)

    def state(self) -> int:
        """The state of the pod's slot, as `lb.tracker` has it.

        What a pod says of itself beats what others say of whether it is ready; that it goes, anyone may say.
        """
        claims = self.claims
        statuses = claims.values()
        if not claims or PodStatus.DRAINING in statuses:
            return DRAINING
        own = claims.get(PUSH)
        if own is PodStatus.NOT_READY or (own is None and PodStatus.NOT_READY in statuses):
            return NOT_READY
        if self.quarantined:
            return QUARANTINED
        if self.recovering:
            return RECOVERING
        if own is PodStatus.PENDING:
            return PENDING
        if self.proven or PodStatus.READY in statuses:
            return READY
        return PENDING

    def wants_probe(self) -> bool:
        if not self.probe and not self.quarantined:
            return False
        state = self.state()
        if state == PENDING:
            return self.probe and self.claims.get(PUSH) is not PodStatus.PENDING
        return state == QUARANTINED

    def is_listed(self) -> bool:
        """Whether a source asserts it that is not the pod itself."""
        return any(source != PUSH for source in self.claims)

    def ages(self) -> bool:
        """Whether time alone may change what is believed of it."""
        return self.pushed_s > 0.0 or self.state() == NOT_READY


class RevisionRecord(msgspec.Struct, frozen=True):
    """One revision; `pods` is replaced item by item in `commit` and read everywhere else."""

    spec: RevisionSpec
    pods: dict[str, PodRecord]
    failure: str = ""  # why it cannot start, while it cannot

    def limit_of(self, pod: PodRecord) -> int:
        """How many requests the pod may carry at once."""
        return self.limit_in(pod.state())

    def limit_in(self, state: int) -> int:
        """The same of a pod in this state."""
        return 1 if state == RECOVERING else self.spec.container_concurrency or UNLIMITED


class Model:
    """All revisions by key."""

    def __init__(self) -> None:
        self.revisions: dict[str, RevisionRecord] = {}
        self.aging: set[str] = set()  # revisions with pods of which time alone may change something
        self.sent: dict[str, int] = {}  # by revision: effects since its table was made


class Reduction:
    """What one change comes to: records to write, and messages to send. None stands for "remove"."""

    def __init__(self) -> None:
        self.revisions: dict[str, RevisionRecord | None] = {}
        self.pods: dict[tuple[str, str], PodRecord | None] = {}
        self.effects: list[Effect] = []
        self.probes: list[ProbeOrder] = []
        self.refused: bool = False  # the change made no sense in this state, and was not acted on
        self.illegal: list[tuple[int, str, int]] = []  # transitions that are not in the table: refused, to be counted
        self.mismatches: list[tuple[str, str]] = []  # what the auditor found: its kind, and what it was
        self.calm: str = ""  # a revision in which nothing ages any more


def commit(model: Model, reduction: Reduction) -> None:
    """Write the records of a reduction."""
    for key, revision in reduction.revisions.items():
        if revision is None:
            model.revisions.pop(key, None)
            model.aging.discard(key)
        else:
            model.revisions[key] = revision
    if reduction.calm:
        model.aging.discard(reduction.calm)
    for (key, identity), pod in reduction.pods.items():
        record = model.revisions.get(key)
        if record is None:
            continue
        if pod is None:
            record.pods.pop(identity, None)
        else:
            record.pods[identity] = pod
            if pod.ages():
                model.aging.add(key)
    sent = model.sent
    for effect in reduction.effects:
        key = effect.key
        sent[key] = 0 if isinstance(effect, RebuildRevision) else sent.get(key, 0) + 1
    for key, revision in reduction.revisions.items():
        if revision is None:
            sent.pop(key, None)
