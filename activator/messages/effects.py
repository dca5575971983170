"""Effects: decisions of the state worker, for the data plane and for the prober."""

from __future__ import annotations

from typing import NamedTuple

from activator.config.model.pods import PodTls
from activator.config.specs import ProbeSpec, RevisionSpec
from activator.messages.message import Message

# --- effects: to the data plane --------------------------------------------------------------------------------------


class SetRevision(Message, frozen=True, tag=True):
    """Add or replace a revision. `life`: the number of the revision of this name, the same in all data planes."""

    spec: RevisionSpec
    life: int = 0

    @property
    def key(self) -> str:
        return self.spec.key


class DropRevision(Message, frozen=True, tag=True):
    """Remove a revision; its requests in flight continue."""

    key: str


class FailRevision(Message, frozen=True, tag=True):
    """Answer waiting and new requests with the cause; empty: no longer. `retry_s`: as in `RevisionFailed`."""

    key: str
    cause: str
    retry_s: float = 0.0


class PlacePod(Message, frozen=True, tag=True):
    """Give a pod a slot; `state`, `limit` and `is_far` as in `lb.tracker`."""

    key: str
    identity: str
    address: str
    state: int
    limit: int
    weight: int
    epoch: int
    is_far: bool = False


class SetPod(Message, frozen=True, tag=True):
    """Change the state, the limit and the weight of a pod that has a slot."""

    key: str
    identity: str
    state: int
    limit: int
    weight: int
    epoch: int
    is_far: bool = False


class WithdrawPod(Message, frozen=True, tag=True):
    """Send the pod no new requests; free its slot when its last request ends, or after `drain_timeout_s`."""

    key: str
    identity: str
    drain_timeout_s: float


class FreeSlot(Message, frozen=True, tag=True):
    """Free a slot that has drained, if it still has this generation."""

    key: str
    slot: int
    generation: int


class DispatchQueue(Message, frozen=True, tag=True):
    """Check whether a waiting request can be granted a slot."""

    key: str


class ReclaimLeases(Message, frozen=True, tag=True):
    """Release the slots that no request uses."""

    key: str


class RebuildRevision(Message, frozen=True, tag=True):
    """Replace the table by a new one with these pods; requests in flight continue and count in the new one.

    `complete`: these are all pods. Otherwise `RebuildPods` follow, and the present table stays in use until the last
    one; any other effect on the revision before that cancels the new table.
    """

    spec: RevisionSpec
    pods: tuple[PlacePod, ...]
    failure: str
    complete: bool = True
    life: int = 0  # as in `SetRevision`
    retry_s: float = 0.0  # with a failure: as in `RevisionFailed`

    @property
    def key(self) -> str:
        return self.spec.key


class RebuildPods(Message, frozen=True, tag=True):
    """More pods of the new table; `part`: the number of earlier such messages; `complete`: this is the last."""

    key: str
    pods: tuple[PlacePod, ...]
    part: int
    complete: bool


class SentRevision(NamedTuple):
    """A revision as it is, for a new data plane, and how many effects its table was sent so far."""

    effect: RebuildRevision
    sent: int


Effect = (
    SetRevision
    | DropRevision
    | FailRevision
    | PlacePod
    | SetPod
    | WithdrawPod
    | FreeSlot
    | DispatchQueue
    | ReclaimLeases
    | RebuildRevision
    | RebuildPods
)


# --- effects that stay in the control plane --------------------------------------------------------------------------


class StartProbe(Message, frozen=True, tag=True):
    """Probe the pod until it answers, then submit `Probed`."""

    key: str
    identity: str
    address: str
    probe: ProbeSpec = ProbeSpec()
    tls: PodTls | None = None
    rise: int = 1  # this many answers in a row, `rise_interval_s` apart
    rise_interval_s: float = 0.0


class StopProbe(Message, frozen=True, tag=True):
    key: str
    identity: str


class SetProbes(Message, frozen=True, tag=True):
    """Probe these pods of the revision and no others; probes under way continue."""

    key: str
    pods: tuple[StartProbe, ...]


ProbeOrder = StartProbe | StopProbe | SetProbes
