"""What the control plane knows: revisions, their pods, and what each source says of them.

Records are frozen. `reduce` reads the model and returns the records to put in it; only `commit` writes. So a change
that cannot be reduced leaves the model as it was.
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
    Listed,
    ProbeOrder,
    RebuildRevision,
    RevisionBroken,
    StartProbe,
)

RENEWED_AT_ONCE: Final = 100  # 0.2 ms


class Unconfirmed:
    """A table was sent so many effects, and no view of it from after them has come since then."""

    def __init__(self, sent: int, since_s: float) -> None:
        self.sent = sent
        self.since_s = since_s


class Model:
    """All revisions by key."""

    def __init__(self) -> None:
        self.revisions: dict[str, RevisionRecord] = {}
        self.aging: set[str] = set()  # revisions with pods of which time alone may change something
        self.sent: dict[str, int] = {}  # by revision: effects since its table was made
        self.unconfirmed: dict[str, Unconfirmed] = {}  # by revision, the longest first
        self.epoch: int = 0  # the latest that was given to any pod
        # By revision: a list that its pods are as it says; gone with the next change of any of them.
        self.lists: dict[str, Listed] = {}
        self.renewed_at_once: int = RENEWED_AT_ONCE  # pods of a revision that is made anew

    def wait_for_confirmation(self, key: str, now_s: float) -> None:
        """From now on; nothing to wait for where the revision is gone."""
        self.unconfirmed.pop(key, None)
        if key in self.sent:
            self.unconfirmed[key] = Unconfirmed(self.sent[key], now_s)


class Renewal:
    """How far a revision is made anew that has more pods than one turn can take (repair.py).

    Its changes wait meanwhile: nothing else writes its records.
    """

    def __init__(self, change: RevisionBroken, identities: tuple[str, ...], at_once: int) -> None:
        self.change = change
        self.identities = identities
        self.at_once = at_once
        # Each of these is done before the next begins.
        self.counted: int = 0  # of the identities, in the two below
        self.tally = Tally()
        self.addresses = AddressIndex()
        self.unsettled: dict[str, None] = {}  # addresses
        self.sent: int = 0  # of the identities
        self.asked: list[StartProbe] = []  # of those
        self.parts: int = 0
        self.is_complete: bool = False


class Step:
    """What becomes of one pod: its record as it is in the model, and as it will be, and the states of both."""

    def __init__(self, old: PodRecord | None, new: PodRecord | None, before: int, after: int) -> None:
        self.old = old
        self.new = new
        self.before = before
        self.after = after


class Reduction:
    """What one change comes to: records to write, and messages to send. None stands for "remove".

    `epoch`: the model's; `now_s`: when.
    """

    def __init__(self, epoch: int = 0, now_s: float = 0.0) -> None:
        self.epoch = epoch
        self.now_s = now_s
        self.revisions: dict[str, RevisionRecord | None] = {}
        self.pods: dict[tuple[str, str], PodRecord | None] = {}
        self.steps: dict[str, Step] = {}  # by identity: of these pods those from which effects follow
        self.arrivals: set[str] = set()  # addresses at which there was nobody before
        self.touched: list[str] = []  # addresses of several pods of which one comes, leaves, or is about to
        self.ousted: list[tuple[str, str, str]] = []  # an address, the pod that had it, and the one that has it now
        self.effects: list[Effect] = []
        self.probes: list[ProbeOrder] = []
        self.refused: bool = False  # the change made no sense in this state, and was not acted on
        self.stale: bool = False  # it was about a pod that is gone, or as it was before: not acted on either
        self.illegal: list[tuple[int, str, int]] = []  # transitions that are not in the table: defects, refused
        self.mismatches: list[tuple[str, str]] = []  # what the auditor found: its kind, and what it was
        self.calm: str = ""  # a revision in which nothing ages any more
        self.again: Change | None = None  # what is left of the change: it is to wait behind the others
        self.listed: Listed | None = None  # once this is written, the pods are as this list says
        self.renewal: Renewal | None = None  # the change goes on with this; all others of the revision wait for it
        self.confirmed: str = ""  # a revision whose table has received what it was sent until it was waited for …
        self.awaits_more: bool = False  # … and not all that it was sent since then

    def next_epoch(self) -> int:
        """A number that no pod has had."""
        self.epoch += 1
        return self.epoch


def commit(model: Model, reduction: Reduction) -> None:
    """Write the records of a reduction."""
    model.epoch = reduction.epoch  # first: no epoch is given twice
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
    """How many each table was sent, and whether it has received them."""
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
        record.addresses.left(identity, old.address)
    if pod is None:
        record.tally.removed(record.pods.pop(identity, None))
    else:
        if old is None or pod.address != old.address:
            record.addresses.arrived(identity, pod.address)
        record.pods[identity] = record.tally.exchanged(old, pod)
