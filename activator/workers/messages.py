"""What the parent and a worker say to each other beside what the two planes do (`activator/messages/`).

Rules
  1. Frames are lists of messages; a list is what one turn of the sender's loop had to say, in order.
  2. Both ends are one version of one program: a parent never meets a worker of another version.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from activator.config.cluster_settings import ClusterSettings
from activator.config.model.file import Config
from activator.config.model.kinds import Secret
from activator.config.model.listeners import Listener
from activator.data_plane.ownership.view import MemberName
from activator.members.handshake import SessionKeys
from activator.messages import Command, DataPlaneStatistics, Effect, FromData, Message, RevisionStatistics
from activator.telemetry.metrics.request_counts import RequestCounts

# --- to a worker ----------------------------------------------------------------------------------------------------


class Begin(Message, frozen=True, tag=True):
    """The first message. `number`: as a member, given to no other process, ever; `place`: 0 … workers - 1; `seed`: of
    all that is random; `first_slot` as `Member` has it.
    """

    number: int
    place: int
    config: Config
    seed: int
    log_level: str = ""  # of the command line
    first_slot: int = 0


class Members(Message, frozen=True, tag=True):
    """All members from now on; `unproven_replicas` and `follows` as in `View`."""

    epoch: int
    workers: tuple[MemberName, ...]
    unproven_replicas: tuple[int, ...] = ()
    follows: bool = True


class Link(Message, frozen=True, tag=True):
    """A socket to another member comes with this message; with `keys` where it is of another replica."""

    number: int
    keys: SessionKeys | None = None


class AllowGrants(Message, frozen=True, tag=True):
    """Whether slots are granted of what the worker owns."""

    allowed: bool


class SocketGiven(msgspec.Struct, frozen=True):
    """A listening socket. `number`: given to no other one, ever; `comes`: with this message, else it came before."""

    number: int
    wanted: str | Listener
    comes: bool


class Listen(Message, frozen=True, tag=True):
    """Accept on these sockets, and on no others; those that come are in this order."""

    sockets: tuple[SocketGiven, ...]


class LookAtCertificates(Message, frozen=True, tag=True):
    """Their files have been replaced, or may have been."""


class Reconfigure(Message, frozen=True, tag=True):
    """The file was read again."""

    config: Config


class SetLogLevel(Message, frozen=True, tag=True):
    """As `AppLog.set_level`."""

    part: str
    level: str


class Settle(Message, frozen=True, tag=True):
    """What a cluster says about logs and traces."""

    settings: ClusterSettings


class AskStatistics(Message, frozen=True, tag=True):
    """`everything`: of all revisions, else of those that had requests since the last answer."""

    question: int
    everything: bool


class AskSnapshot(Message, frozen=True, tag=True):
    """What `/debug/revisions` shows."""

    question: int


class AskTasks(Message, frozen=True, tag=True):
    """What `/debug/tasks` shows."""

    question: int


class TakeProfile(Message, frozen=True, tag=True):
    """What `/debug/profile` shows, after so long."""

    question: int
    seconds: float


class End(Message, frozen=True, tag=True):
    """Nothing is in flight any more: write what is left of the logs, and exit."""


ToWorker = (
    Effect
    | Command
    | Begin
    | Members
    | Link
    | AllowGrants
    | Listen
    | LookAtCertificates
    | Reconfigure
    | Settle
    | SetLogLevel
    | AskStatistics
    | AskSnapshot
    | AskTasks
    | TakeProfile
    | End
)

# --- from a worker --------------------------------------------------------------------------------------------------


class Begun(Message, frozen=True, tag=True):
    """It has its data plane, and what comes next is carried out."""


class Listening(Message, frozen=True, tag=True):
    """It accepts on what the last `Listen` named."""


class Unserved(Message, frozen=True, tag=True):
    """It does not accept on this socket, and has closed it: the certificate could not be read in this moment."""

    number: int


class Alive(Message, frozen=True, tag=True):
    """Its loop turns."""


class Unlinked(Message, frozen=True, tag=True):
    """Its link to another worker has ended."""

    number: int


class WorkerCounts(msgspec.Struct, frozen=True):
    """What a worker counts as a whole; totals since its start."""

    data: DataPlaneStatistics = DataPlaneStatistics()
    lost_log_lines: int = 0
    spans: dict[str, int] = {}  # by outcome
    cpu_s: float = 0.0  # processor time of the process
    resident_bytes: int = 0
    owned: int = 0  # revisions that it owns as a member
    held: int = 0  # of them, those for which it cannot grant slots yet


class Statistics(Message, frozen=True, tag=True):
    """A part of an answer; `complete`: the last, which has the counts."""

    question: int
    revisions: tuple[RevisionStatistics, ...]
    complete: bool
    counts: WorkerCounts = WorkerCounts()


class RequestsCounted(Message, frozen=True, tag=True):
    """Before the last part of `Statistics`, where Knative's metrics are wanted: the series that have changed."""

    series: tuple[RequestCounts, ...]


class Snapshot(Message, frozen=True, tag=True):
    """The answer to `AskSnapshot`, by revision."""

    question: int
    revisions: dict[str, dict[str, Any]]


class Told(Message, frozen=True, tag=True):
    """The answer to a question to one worker: plain data, or the problem with it."""

    question: int
    data: Any
    problem: str = ""


FromWorker = FromData | Begun | Listening | Unserved | Alive | Unlinked | Statistics | RequestsCounted | Snapshot | Told

# --- as bytes -------------------------------------------------------------------------------------------------------


def _plain(value: object) -> object:
    """Return a `Duration` or a `Size` of the configuration as a number. A `Secret` stays here: no worker needs one."""
    if isinstance(value, float):
        return float(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, Secret):
        return ""
    raise NotImplementedError(f"not plain data: {value!r}")


def _made(kind: type, value: Any) -> object:
    return kind(value)


_ENCODER: Final = msgspec.msgpack.Encoder(enc_hook=_plain)
_TO_WORKER: Final = msgspec.msgpack.Decoder(list[ToWorker], dec_hook=_made)
_FROM_WORKER: Final = msgspec.msgpack.Decoder(list[FromWorker], dec_hook=_made)


def encode(messages: list[Any]) -> bytes:
    """Of either direction."""
    return _ENCODER.encode(messages)


def to_worker(data: bytes | memoryview) -> list[ToWorker]:
    """Raises msgspec.DecodeError for what is not such a list."""
    messages: list[ToWorker] = _TO_WORKER.decode(data)
    return messages


def from_worker(data: bytes | memoryview) -> list[FromWorker]:
    """Raises msgspec.DecodeError for what is not such a list."""
    messages: list[FromWorker] = _FROM_WORKER.decode(data)
    return messages
