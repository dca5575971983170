"""Effects: what the state worker decides, for the data plane and for the prober."""

from __future__ import annotations

from typing import NamedTuple

from activator.config.model.pods import PodTls
from activator.config.specs import ProbeSpec, RevisionSpec
from activator.messages.message import Message

# --- effects: to the data plane --------------------------------------------------------------------------------------


class SetRevision(Message, frozen=True, tag=True):
    """`life`: which revision of this name it is, where several data planes must mean the same one."""

    spec: RevisionSpec
    life: int = 0

    @property
    def key(self) -> str:
        return self.spec.key


class DropRevision(Message, frozen=True, tag=True):
    key: str


class FailRevision(Message, frozen=True, tag=True):
    """Waiting and new requests are answered with the cause; empty: no longer. `retry_s`: as in `RevisionFailed`."""

    key: str
    cause: str
    retry_s: float = 0.0


class PlacePod(Message, frozen=True, tag=True):
    """`state` and `limit` as `lb.tracker` has them."""

    key: str
    identity: str
    address: str
    state: int
    limit: int
    weight: int
    epoch: int


class SetPod(Message, frozen=True, tag=True):
    key: str
    identity: str
    state: int
    limit: int
    weight: int
    epoch: int


class WithdrawPod(Message, frozen=True, tag=True):
    """No new work for the pod; its slot is freed when its last request ends, or after `drain_timeout_s`."""

    key: str
    identity: str
    drain_timeout_s: float


class FreeSlot(Message, frozen=True, tag=True):
    key: str
    slot: int
    generation: int


class PumpLine(Message, frozen=True, tag=True):
    """Check whether a waiting request can go."""

    key: str


class ReclaimLeases(Message, frozen=True, tag=True):
    """Take back the slots that no request uses."""

    key: str


class RebuildRevision(Message, frozen=True, tag=True):
    """A new table with these pods, whatever there is; what is in flight goes on and is counted in the new one.

    `complete`: with no others. Else `RebuildPods` follow, and the table that is there stays in use until the last; any
    other effect on the revision before that gives the new table up.
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
    """More pods of the new table; `part`: so many such messages came before; `complete`: this is the last."""

    key: str
    pods: tuple[PlacePod, ...]
    part: int
    complete: bool


class SentRevision(NamedTuple):
    """A revision as it is, for a data plane that comes, and how many effects its table was sent so far."""

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
    | PumpLine
    | ReclaimLeases
    | RebuildRevision
    | RebuildPods
)


# --- effects that stay in the control plane --------------------------------------------------------------------------


class StartProbe(Message, frozen=True, tag=True):
    """Ask the pod until it answers, then submit `Probed`."""

    key: str
    identity: str
    address: str
    probe: ProbeSpec = ProbeSpec()
    tls: PodTls | None = None
    rise: int = 1  # so many answers in a row, `rise_interval_s` apart
    rise_interval_s: float = 0.0


class StopProbe(Message, frozen=True, tag=True):
    key: str
    identity: str


class SetProbes(Message, frozen=True, tag=True):
    """Of this revision ask these pods and no others; what is asked already goes on."""

    key: str
    pods: tuple[StartProbe, ...]


ProbeOrder = StartProbe | StopProbe | SetProbes
