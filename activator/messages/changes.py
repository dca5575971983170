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
    """The revision was removed."""

    key: str


class RevisionFailed(Message, frozen=True, tag=True):
    """The revision cannot start; `cause` is one line for the client.

    `retry_s`: the monotonic time of the next attempt; 0: unknown.
    """

    key: str
    cause: str
    retry_s: float = 0.0


class RevisionRecovered(Message, frozen=True, tag=True):
    """The revision, which had failed, can start again."""

    key: str


class ObservedPod(Message, frozen=True, tag=True):
    """A source reports a pod. `probe`: the activator probes whether it answers; otherwise the source decides.

    `limit`: how many requests it may have at once; -1: the limit of its revision; 0: another replica's, known but
    never picked. `restarts`: how often its program has been restarted, as far as the source knows; -1: unknown.
    `zone`: its zone; empty: not known.
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
    zone: str = ""


class PodGone(Message, frozen=True, tag=True):
    """A source does not report this pod any more."""

    key: str
    source: str
    identity: str


class PodsListed(Message, frozen=True, tag=True):
    """All pods of one revision that a source knows; those that it reported before and does not list now are removed."""

    key: str
    source: str
    pods: tuple[ObservedPod, ...]


class Probed(Message, frozen=True, tag=True):
    """A probed pod has answered at this address, which it may have left by now. Empty: at any."""

    key: str
    identity: str
    address: str = ""


class PodFailedChecks(Message, frozen=True, tag=True):
    """A ready pod has failed the configured number of health checks in a row; `cause` is for people."""

    key: str
    identity: str
    epoch: int
    cause: str


# --- changes: from the data plane ------------------------------------------------------------------------------------


class PodSetAside(Message, frozen=True, tag=True):
    """An operator takes a pod out of service, or puts it back."""

    key: str
    identity: str
    is_aside: bool


class PodRefused(Message, frozen=True, tag=True):
    """A connection was refused (`dead`); or a request was not answered in time, or its connection broke: a strike.

    `reason`: why the request failed, as in the log and the metrics; empty: unknown.
    """

    key: str
    identity: str
    epoch: int
    dead: bool
    reason: str = ""


class PodServed(Message, frozen=True, tag=True):
    """A pod with strikes has answered a request."""

    key: str
    identity: str
    epoch: int


class TrialEnded(Message, frozen=True, tag=True):
    """The trial request of a recovering pod has ended."""

    key: str
    identity: str
    epoch: int
    succeeded: bool


class SlotDrained(Message, frozen=True, tag=True):
    """The last request of a draining slot has ended, or its drain has timed out (`forced`)."""

    key: str
    slot: int
    generation: int
    forced: bool = False


class PodUnplaced(Message, frozen=True, tag=True):
    """The table has no free slot: the pod waits for one."""

    key: str
    identity: str


class Sweep(Message, frozen=True, tag=True):
    """Check the age of the sources' reports about this revision's pods."""

    key: str


class RevisionBroken(Message, frozen=True, tag=True):
    """The data plane's table of the revision cannot be trusted: it is rebuilt from the model."""

    key: str
    cause: str
    kind: str = ""  # kind of the mismatch, if the auditor found it


class QueueStalled(Message, frozen=True, tag=True):
    """Requests wait although a pod that may be picked has a free slot."""

    key: str


class LeasesOrphaned(Message, frozen=True, tag=True):
    """Slots are held for requests that are at no pod; `found` describes them in one line."""

    key: str
    found: str


class SlotForgotten(Message, frozen=True, tag=True):
    """A pod has been excluded from balancing for a long time without a decision about it."""

    key: str
    identity: str


class SlotView(msgspec.Struct, frozen=True):
    """A slot with a pod that is not draining."""

    identity: str
    address: str
    state: int
    limit: int
    weight: int
    epoch: int
    is_far: bool = False


class ObservedTable(Message, frozen=True, tag=True):
    """A whole table after `applied` effects; `compared` of its slots are compared already, `matched` of them pods.

    `worker`: the worker whose table it is. `received`: the number of effects that every worker has received, or None if
    it is the only one.
    """

    key: str
    applied: int
    slots: tuple[SlotView, ...]
    compared: int = 0
    matched: int = 0
    worker: int = 0
    received: int | None = None


Change = (
    RevisionSet
    | RevisionGone
    | RevisionFailed
    | RevisionRecovered
    | ObservedPod
    | PodGone
    | PodsListed
    | Probed
    | PodFailedChecks
    | PodSetAside
    | PodRefused
    | PodServed
    | TrialEnded
    | SlotDrained
    | PodUnplaced
    | Sweep
    | RevisionBroken
    | QueueStalled
    | LeasesOrphaned
    | SlotForgotten
    | ObservedTable
)
