"""The model of the control plane: revisions, their pods, and what each source reports of them.

Records are frozen. `reduce` reads the model and returns the records to put into it; only `commit` writes. So a change
that fails in `reduce` leaves the model as it was.
"""

from __future__ import annotations

from typing import Final

from activator.control_plane.state.address_index import AddressIndex
from activator.control_plane.state.records import PodRecord, RevisionRecord
from activator.control_plane.state.tally import Tally
from activator.messages import (
    Change,
    DropRevision,
    Effect,
    PodsListed,
    ProbeOrder,
    RebuildRevision,
    RevisionBroken,
    StartProbe,
)

RENEWED_AT_ONCE: Final = 100  # pods per turn; they take 0.2 ms


class Unconfirmed:
    """The number of effects that a table was sent, which no later view of the table has confirmed."""

    def __init__(self, sent: int, since_s: float) -> None:
        self.sent = sent
        self.since_s = since_s


class Model:
    """All revisions by key."""

    def __init__(self) -> None:
        self.revisions: dict[str, RevisionRecord] = {}
        self.aging: set[str] = set()  # revisions with pods that may change by time alone
        self.sent: dict[str, int] = {}  # by revision: effects since its table was created
        self.unconfirmed: dict[str, Unconfirmed] = {}  # by revision, the oldest first
        self.epoch: int = 0  # the newest epoch of any pod
        # By revision: the list that describes its pods exactly; dropped with the next change of any of them.
        self.lists: dict[str, PodsListed] = {}
        self.renewed_at_once: int = RENEWED_AT_ONCE  # pods of a revision that is rebuilt, per turn

    def wait_for_confirmation(self, key: str, now_s: float) -> None:
        """Begin to wait for a confirmation of the effects sent so far; no effect if the revision has no table."""
        self.unconfirmed.pop(key, None)
        if key in self.sent:
            self.unconfirmed[key] = Unconfirmed(self.sent[key], now_s)


class Renewal:
    """The progress of rebuilding a revision with more pods than one turn can take (repair.py).

    Changes of the revision wait until it is complete: nothing else writes its records.
    """

    def __init__(self, change: RevisionBroken, identities: tuple[str, ...], at_once: int) -> None:
        self.change = change
        self.identities = identities
        self.at_once = at_once
        # Each of these phases is complete before the next begins.
        self.counted: int = 0  # pods that are in the tally and the index
        self.tally = Tally()
        self.addresses = AddressIndex()
        self.undecided: dict[str, None] = {}  # addresses whose holder must be decided
        self.sent: int = 0  # pods that were sent
        self.probes: list[StartProbe] = []  # probes of the pods that were sent
        self.parts: int = 0  # effects that were sent, each with some of the pods
        self.is_complete: bool = False


class Step:
    """The change of one pod: its record in the model and its new record, and the states of both."""

    def __init__(self, old: PodRecord | None, new: PodRecord | None, before: int, after: int) -> None:
        self.old = old
        self.new = new
        self.before = before
        self.after = after


class Reduction:
    """The result of one change: records to write and messages to send. None as a record means "remove".

    `epoch`: the newest epoch of the model; `now_s`: the time of the change.
    """

    def __init__(self, epoch: int = 0, now_s: float = 0.0) -> None:
        self.epoch = epoch
        self.now_s = now_s
        self.revisions: dict[str, RevisionRecord | None] = {}
        self.pods: dict[tuple[str, str], PodRecord | None] = {}
        self.steps: dict[str, Step] = {}  # by identity: the pods that effects are derived from
        self.arrivals: set[str] = set()  # addresses that had no pod before
        self.undecided: list[str] = []  # addresses with several pods whose holder must be decided
        self.ousted: list[tuple[str, str, str]] = []  # address, the pod that had it, and the pod that has it now
        self.effects: list[Effect] = []
        self.probes: list[ProbeOrder] = []
        self.refused: bool = False  # the change was invalid in this state and had no effect
        self.stale: bool = False  # it was about a removed pod or an earlier state of one, and had no effect
        self.illegal: list[tuple[int, str, int]] = []  # transitions that are not in the table: bugs, refused
        self.mismatches: list[tuple[str, str]] = []  # findings of the auditor: kind and description
        self.calm: str = ""  # a revision in which no pod ages any more
        self.again: Change | None = None  # the rest of the change, which is queued behind the others
        self.listed: PodsListed | None = None  # once this is written, the list describes the pods exactly
        self.renewal: Renewal | None = None  # the change continues with this; other changes of the revision wait for it
        # a revision whose table has received the effects that were awaited; `awaits_more`: more were sent since
        self.confirmed: str = ""
        self.awaits_more: bool = False

    def next_epoch(self) -> int:
        """Return an epoch that no pod has had."""
        self.epoch += 1
        return self.epoch


def commit(model: Model, reduction: Reduction) -> None:
    """Write the records of a reduction."""
    model.epoch = reduction.epoch  # first: no epoch may be used twice
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
        _write_pod(record, identity, pod)
        if pod is not None and pod.ages():
            model.aging.add(key)
    if reduction.listed is not None:
        model.lists[reduction.listed.key] = reduction.listed
    if reduction.confirmed:
        model.unconfirmed.pop(reduction.confirmed, None)
        if reduction.awaits_more:
            model.wait_for_confirmation(reduction.confirmed, reduction.now_s)
    _count_effects(model, reduction)


def _count_effects(model: Model, reduction: Reduction) -> None:
    """Count the effects that each table was sent, and begin to wait for their confirmation."""
    sent = model.sent
    unconfirmed = model.unconfirmed
    for effect in reduction.effects:
        key = effect.key
        if type(effect) is DropRevision:
            sent.pop(key, None)
            unconfirmed.pop(key, None)
            continue
        rebuilt = type(effect) is RebuildRevision
        sent[key] = 0 if rebuilt else sent.get(key, 0) + 1
        if rebuilt or key not in unconfirmed:
            model.wait_for_confirmation(key, reduction.now_s)


def _write_pod(record: RevisionRecord, identity: str, pod: PodRecord | None) -> None:
    old = record.pods.get(identity)
    if old is not None and (pod is None or pod.address != old.address):
        record.addresses.remove(identity, old.address)
    if pod is None:
        record.tally.remove(record.pods.pop(identity, None))
    else:
        if old is None or pod.address != old.address:
            record.addresses.add(identity, pod.address)
        record.pods[identity] = record.tally.replace(old, pod)
