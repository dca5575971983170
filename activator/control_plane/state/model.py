"""What the control plane knows: revisions, their pods, and what each source says of them.

Records are frozen. `reduce` reads the model and returns the records to put in it; only `commit` writes. So a change
that cannot be reduced leaves the model as it was.
"""

from __future__ import annotations

from activator.control_plane.state.records import PodRecord, RevisionRecord
from activator.messages import Effect, Listed, ProbeOrder, RebuildRevision


class Model:
    """All revisions by key."""

    def __init__(self) -> None:
        self.revisions: dict[str, RevisionRecord] = {}
        self.aging: set[str] = set()  # revisions with pods of which time alone may change something
        self.sent: dict[str, int] = {}  # by revision: effects since its table was made
        # By revision: a list that its pods are as it says; gone with the next change of any of them.
        self.lists: dict[str, Listed] = {}


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
        self.listed: Listed | None = None  # once this is written, the pods are as this list says


def commit(model: Model, reduction: Reduction) -> None:
    """Write the records of a reduction."""
    for key, revision in reduction.revisions.items():
        if revision is None:
            model.revisions.pop(key, None)
            model.aging.discard(key)
            model.lists.pop(key, None)
        else:
            model.revisions[key] = revision
    if reduction.calm:
        model.aging.discard(reduction.calm)
    for (key, identity), pod in reduction.pods.items():
        model.lists.pop(key, None)
        record = model.revisions.get(key)
        if record is None:
            continue
        if pod is None:
            record.pods.pop(identity, None)
        else:
            record.pods[identity] = pod
            if pod.ages():
                model.aging.add(key)
    if reduction.listed is not None:
        model.lists[reduction.listed.key] = reduction.listed
    sent = model.sent
    for effect in reduction.effects:
        key = effect.key
        sent[key] = 0 if type(effect) is RebuildRevision else sent.get(key, 0) + 1
    for key, revision in reduction.revisions.items():
        if revision is None:
            sent.pop(key, None)
