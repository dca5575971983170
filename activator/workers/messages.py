"""The messages between the parent and a worker, in addition to those of the two planes (`activator/messages/`).

Rules
  1. A frame is a list of messages: all those of one turn of the sender's loop, in order.
  2. A parent and the workers that it has started have one version of the program. A worker of a former process may have
     another one, with the same PROTOCOL (app/handover/messages.py): it is sent no configuration.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from activator.config.cluster_settings import ClusterSettings
from activator.config.model.file import Config
from activator.config.model.kinds import Json, Secret
from activator.config.model.listeners import Listener
from activator.data_plane.ownership.names import MemberName
from activator.members.handshake import SessionKeys
from activator.messages import Command, DataPlaneStatistics, Effect, FromData, Message, RevisionStatistics
from activator.telemetry.metrics.request_counts import RequestCounts

# --- to a worker ----------------------------------------------------------------------------------------------------


class StartWorker(Message, frozen=True, tag=True):
    """The first message.

    `number` is that of the worker as a member, unique to this process; `place` is 0 … workers - 1; `seed` is that of
    all random numbers; `first_slot` as in `Member`.
    """

    number: int
    place: int
    config: Config
    seed: int
    log_level: str = ""  # from the command line; empty: as configured
    first_slot: int = 0


class Members(Message, frozen=True, tag=True):
    """A new view. `unproven_replicas`, `follows` and `is_next` as in `View`."""

    epoch: int
    workers: tuple[MemberName, ...]
    unproven_replicas: tuple[int, ...] = ()
    follows: bool = True
    is_next: bool = True


class Link(Message, frozen=True, tag=True):
    """A link to another member, whose socket is sent along; with `keys` if it belongs to another replica."""

    number: int
    keys: SessionKeys | None = None


class AllowGrants(Message, frozen=True, tag=True):
    """Allow or forbid the worker to grant slots of the revisions that it owns."""

    allowed: bool


class SocketGiven(msgspec.Struct, frozen=True):
    """A listening socket. `number` is unique. `comes`: it is sent along; otherwise the worker has it already."""

    number: int
    wanted: str | Listener
    comes: bool


class Listen(Message, frozen=True, tag=True):
    """Accept on these sockets, and on no others. Sockets that are sent along are in this order."""

    sockets: tuple[SocketGiven, ...]


class Rewire(Message, frozen=True, tag=True):
    """Continue with the parent at the other end of the socket that is sent along: a new process of the activator.

    The present connection ends. A second descriptor is the pipe to the reaper, which ends nothing while the worker has
    it.
    """


class Join(Message, frozen=True, tag=True):
    """Report the loads of all revisions, then `WorkerStarted`. It is sent to a worker of a former process."""


class Retire(Message, frozen=True, tag=True):
    """Leave the listening sockets to others, and report `Drained` when the last client connection has ended.

    It is sent to a worker of a former process of the activator.
    """


class CheckCertificates(Message, frozen=True, tag=True):
    """Check the files of the certificates, which may have been replaced."""


class Reconfigure(Message, frozen=True, tag=True):
    """Use a configuration that was reloaded."""

    config: Config


class SetLogLevel(Message, frozen=True, tag=True):
    """Set a level of the log, as `AppLog.set_level`."""

    part: str
    level: str


class ApplyClusterSettings(Message, frozen=True, tag=True):
    """Use a cluster's settings of logs and traces."""

    settings: ClusterSettings


class GetStatistics(Message, frozen=True, tag=True):
    """Request `Statistics` of all revisions, or of those that had requests since the last answer."""

    query: int
    everything: bool


class GetSnapshot(Message, frozen=True, tag=True):
    """Request the data of `/debug/revisions`."""

    query: int


class GetRequests(Message, frozen=True, tag=True):
    """Request the last `count` records of this revision, or of all revisions if `key` is empty."""

    query: int
    key: str
    count: int


class GetCapture(Message, frozen=True, tag=True):
    """Request the capture with this number."""

    query: int
    number: int


class GetTasks(Message, frozen=True, tag=True):
    """Request the data of `/debug/tasks`."""

    query: int


class GetProfile(Message, frozen=True, tag=True):
    """Request the data of `/debug/profile`, after a profile of this length."""

    query: int
    seconds: float


class StopWorker(Message, frozen=True, tag=True):
    """Write the remaining log lines and exit. No request is in flight any more."""


ToWorker = (
    Effect
    | Command
    | StartWorker
    | Members
    | Link
    | AllowGrants
    | Listen
    | Rewire
    | Join
    | Retire
    | CheckCertificates
    | Reconfigure
    | ApplyClusterSettings
    | SetLogLevel
    | GetStatistics
    | GetSnapshot
    | GetRequests
    | GetCapture
    | GetTasks
    | GetProfile
    | StopWorker
)

# --- from a worker --------------------------------------------------------------------------------------------------


class WorkerStarted(Message, frozen=True, tag=True):
    """The worker has its data plane, and processes further messages."""


class Listening(Message, frozen=True, tag=True):
    """The worker accepts on the sockets of a `Listen`; there is one answer for each."""


class SocketClosed(Message, frozen=True, tag=True):
    """The worker has closed this socket, because its certificate could not be read."""

    number: int


class WorkerAlive(Message, frozen=True, tag=True):
    """A heartbeat of the worker's loop."""


class Unlinked(Message, frozen=True, tag=True):
    """The link of the worker to this other member has ended."""

    number: int


class WorkerCounts(msgspec.Struct, frozen=True):
    """The counts of a worker as a whole. Totals are since its start."""

    data: DataPlaneStatistics = DataPlaneStatistics()
    lost_log_lines: int = 0
    spans: dict[str, int] = {}  # by outcome
    cpu_s: float = 0.0  # processor time of the process
    resident_bytes: int = 0
    owned: int = 0  # revisions that it owns as a member
    held: int = 0  # the part of `owned` whose slots it cannot grant yet


class Statistics(Message, frozen=True, tag=True):
    """A part of an answer to `GetStatistics`. The last one has `complete` set, and the counts."""

    query: int
    revisions: tuple[RevisionStatistics, ...]
    complete: bool
    counts: WorkerCounts = WorkerCounts()


class RequestsCounted(Message, frozen=True, tag=True):
    """The series that have changed, if Knative's metrics are on. Sent before the last part of `Statistics`."""

    series: tuple[RequestCounts, ...]


class Snapshot(Message, frozen=True, tag=True):
    """The answer to `GetSnapshot`, by revision."""

    query: int
    revisions: dict[str, dict[str, Any]]


class Answer(Message, frozen=True, tag=True):
    """The answer of one worker to a query that has no answer of its own above: plain data, or the problem."""

    query: int
    data: Any
    problem: str = ""


FromWorker = (
    FromData
    | WorkerStarted
    | Listening
    | SocketClosed
    | WorkerAlive
    | Unlinked
    | Statistics
    | RequestsCounted
    | Snapshot
    | Answer
)

# --- as bytes -------------------------------------------------------------------------------------------------------


def _plain(value: object) -> object:
    """Return a kind of the configuration as plain data, and a `Secret` as empty: no worker needs it."""
    if isinstance(value, float):
        return float(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, Secret):
        return ""
    if isinstance(value, Json):
        return str(value)
    raise NotImplementedError(f"not plain data: {value!r}")


def _made(kind: type, value: Any) -> object:
    return kind(value)


_ENCODER: Final = msgspec.msgpack.Encoder(enc_hook=_plain)
_TO_WORKER: Final = msgspec.msgpack.Decoder(list[ToWorker], dec_hook=_made)
_FROM_WORKER: Final = msgspec.msgpack.Decoder(list[FromWorker], dec_hook=_made)


def encode(messages: list[Any]) -> bytes:
    """Return a frame of these messages, of either direction."""
    return _ENCODER.encode(messages)


def to_worker(data: bytes | memoryview) -> list[ToWorker]:
    """Return the messages of a frame to a worker. Raises msgspec.DecodeError."""
    messages: list[ToWorker] = _TO_WORKER.decode(data)
    return messages


def from_worker(data: bytes | memoryview) -> list[FromWorker]:
    """Return the messages of a frame from a worker. Raises msgspec.DecodeError."""
    messages: list[FromWorker] = _FROM_WORKER.decode(data)
    return messages
