"""Changes: what sources and the data plane submit to the state worker."""

from __future__ import annotations

import msgspec

from activator.config.specs import RevisionSpec
from activator.messages.message import Message, PodStatus

# --- changes: from sources ------------------------------------------------------------------------------------------


class RevisionSet(Message, frozen=True, tag=True):
    """A revision was added or its configuration changed."""

    spec: RevisionSpec

    @property
    def key(self) -> str:
        return self.spec.key


class RevisionGone(Message, frozen=True, tag=True):
    key: str


class RevisionFailed(Message, frozen=True, tag=True):
    """The revision cannot start; `cause` is one line for the client.

    `retry_s`: the monotonic time of the next attempt; 0: it is not known.
    """

    key: str
    cause: str
    retry_s: float = 0.0


class RevisionRecovered(Message, frozen=True, tag=True):
    key: str


class PodSeen(Message, frozen=True, tag=True):
    """A source asserts a pod. `probe`: we find out ourselves whether it answers; else the source decides.

    `limit`: how many requests it may carry at once; -1: what its revision says; 0: it is not ours, known but never
    picked. `restarts`: how often its program has been started anew, as far as the source knows; -1: unknown.
    """

    key: str
    source: str
    identity: str
    address: str  # canonical ip:port, or unix:/path
    status: PodStatus
    probe: bool = False
    weight: int = 1
    limit: int = -1
    restarts: int = -1


class PodGone(Message, frozen=True, tag=True):
    key: str
    source: str
    identity: str


class Listed(Message, frozen=True, tag=True):
    """All the pods of one revision that a source knows: what it asserted before and does not list now is gone."""

    key: str
    source: str
    pods: tuple[PodSeen, ...]


class Probed(Message, frozen=True, tag=True):
    """A pod that was asked has answered; at this address, which may be its former one by now. Empty: at any."""

    key: str
    identity: str
    address: str = ""


class PodFailedChecks(Message, frozen=True, tag=True):
    """A ready pod has failed so many health checks in a row as its revision allows; `cause` is for people."""

    key: str
    identity: str
    epoch: int
    cause: str


# --- changes: from the data plane ------------------------------------------------------------------------------------


class PodRefused(Message, frozen=True, tag=True):
    """A connection was refused (`dead`); or it was not answered in time, or broke: a strike.

    `reason`: why the request failed, as in the log and the metrics; empty: that is not known.
    """

    key: str
    identity: str
    epoch: int
    dead: bool
    reason: str = ""


class PodServed(Message, frozen=True, tag=True):
    """A request was answered by a pod that had strikes."""

    key: str
    identity: str
    epoch: int


class TrialEnded(Message, frozen=True, tag=True):
    """The one request that a recovering pod was tried with has ended."""

    key: str
    identity: str
    epoch: int
    succeeded: bool


class SlotDrained(Message, frozen=True, tag=True):
    """The last request of a draining slot has ended, or its drain has taken too long (`forced`)."""

    key: str
    slot: int
    generation: int
    forced: bool = False


class PodUnplaced(Message, frozen=True, tag=True):
    """Every slot of the table is held: the pod waits for one."""

    key: str
    identity: str


class Sweep(Message, frozen=True, tag=True):
    """Check how old the sources' reports of this revision's pods are."""

    key: str


class RevisionBroken(Message, frozen=True, tag=True):
    """What the data plane has of the revision is not to be trusted: it is made anew from the model."""

    key: str
    cause: str
    kind: str = ""  # of the mismatch, where the auditor found it


class LineStuck(Message, frozen=True, tag=True):
    """Requests wait while a pod that may be picked has room."""

    key: str


class LeasesForsaken(Message, frozen=True, tag=True):
    """Slots are held for requests that are at no pod; `found` says which, in one line."""

    key: str
    found: str


class SlotForgotten(Message, frozen=True, tag=True):
    """A pod has been kept from the picks for long, without a decision about it."""

    key: str
    identity: str


class SlotView(msgspec.Struct, frozen=True):
    """A slot that holds a pod which is not draining."""

    identity: str
    address: str
    state: int
    limit: int
    weight: int
    epoch: int


class TableSeen(Message, frozen=True, tag=True):
    """All of a table, as it is after `applied` effects; so many slots are compared already, `matched` of them pods.

    `worker`: whose table it is, where there are many; `confirms`: each of them has received these effects.
    """

    key: str
    applied: int
    slots: tuple[SlotView, ...]
    compared: int = 0
    matched: int = 0
    worker: int = 0
    confirms: bool = True


Change = (
    RevisionSet
    | RevisionGone
    | RevisionFailed
    | RevisionRecovered
    | PodSeen
    | PodGone
    | Listed
    | Probed
    | PodFailedChecks
    | PodRefused
    | PodServed
    | TrialEnded
    | SlotDrained
    | PodUnplaced
    | Sweep
    | RevisionBroken
    | LineStuck
    | LeasesForsaken
    | SlotForgotten
    | TableSeen
)
