"""Everything that passes between the control plane and the data plane, and the channel that carries it.

Rules
  1. A message is plain data that can be encoded and sent through a socket; nothing refers to an object of either plane.
     `encode` and `decode` prove it in the tests.
  2. *Changes* go to the state worker, from sources (discovery, probes) and from the data plane (what the request path
     has learnt). *Effects* go from the state worker to the data plane; *Load* comes back from it.
  3. A change names the pod by identity; where it is about a slot, it names the generation of the slot too, and where it
     was found out of a pod, the pod's epoch: so that what arrives late is recognised. The epoch is a number of the
     state worker's: each effect that gives a pod a slot or another state carries a new one, and what is reported of the
     pod names the one that was in force.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final, NamedTuple

import msgspec

from activator.config.model.pods import PodTls
from activator.config.specs import ProbeSpec, RevisionSpec
from activator.runtime.distribution import Distribution


class PodStatus(Enum):
    """What a source says about a pod."""

    PENDING = "pending"  # it exists
    READY = "ready"  # it answers
    NOT_READY = "not_ready"  # it said that it does not take requests now
    DRAINING = "draining"  # it is about to go


PUSH: Final = "push"  # the source of what a pod says of itself; every other source lists pods


class Message(msgspec.Struct, frozen=True, tag=True):
    """Base of all messages, none of which has subclasses.

    Where most are of another class, `type(message) is …` distinguishes them: a miss of `isinstance` asks the metaclass
    of msgspec's structs, which takes 140 ns instead of a few.
    """


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


# --- what the data plane reports beside changes ----------------------------------------------------------------------


class Load(Message, frozen=True, tag=True):
    """One revision's traffic: sent at once when the first request comes, and when one is the first to wait; every
    LOAD_REPORT_INTERVAL_S otherwise.

    `concurrency`: requests that are here; `request_seconds`: the integral of it over time until `at_s`; `oldest_s`:
    when the request came that is the next in line, 0.0: none waits.
    """

    key: str
    in_flight: int
    queued: int
    requests_total: int
    concurrency: int = 0
    request_seconds: float = 0.0
    at_s: float = 0.0
    oldest_s: float = 0.0


class PodDrained(Message, frozen=True, tag=True):
    """A withdrawn pod has no request any more: its source may end it."""

    key: str
    identity: str


class PodTaken(Message, frozen=True, tag=True):
    """A pod that takes one request has been given it, and gets no other. `is_over`: it has ended; with a `failure`, the
    value of a `Reason`, it has failed at the pod.
    """

    key: str
    identity: str
    is_over: bool = False
    failure: str = ""


ToControl = Change | Load | PodDrained | PodTaken


# --- commands: to the data plane as a whole -------------------------------------------------------------------------


class AnnounceDrain(Message, frozen=True, tag=True):
    """Go on serving, and ask clients with each answer not to use their connection again."""


class Drain(Message, frozen=True, tag=True):
    """Stop accepting and let what is in flight finish, within these times; `Drained` is the answer."""

    timeout_s: float
    tunnels_timeout_s: float


class SpeakKnative(Message, frozen=True, tag=True):
    """Knative's components are the peers (data_plane/headers/knative.py); `passes_through`: a mesh needs it."""

    cluster_domain: str
    passes_through: bool = False


class SetHealth(Message, frozen=True, tag=True):
    """What a kubelet that asks on a serving port is answered; each is a reason, empty: all is well."""

    not_alive: str = ""
    not_ready: str = ""


class SetPending(Message, frozen=True, tag=True):
    """Report whether a source has yet to list its revisions. Until then no request may be refused for good because no
    revision serves it: it is answered 503 with Retry-After.
    """

    is_pending: bool


class ShowOutput(Message, frozen=True, tag=True):
    """The last lines that the program of a revision has written since its start began, for the waiting page; empty:
    there is nothing to show any more.
    """

    key: str
    lines: tuple[str, ...]


Command = AnnounceDrain | Drain | SpeakKnative | SetHealth | SetPending | ShowOutput


class Drained(Message, frozen=True, tag=True):
    """The data plane carries nothing any more; `finished`: False when some requests had to be cut."""

    finished: bool


# What requests come to whose clients do not want to wait (data_plane/answers/store.py).
ANSWER_OUTCOMES: Final = ("accepted", "synchronous", "done", "too_large", "collected", "expired", "deleted", "lost")


# --- statistics -----------------------------------------------------------------------------------------------------


class Http2Statistics(msgspec.Struct, frozen=True):
    """What clients do in HTTP/2; totals count since the start of the data plane."""

    connections: int = 0  # open
    streams: int = 0  # open on them
    connections_total: int = 0
    requests_total: int = 0
    reset_total: int = 0  # streams that clients have reset
    failed_total: int = 0  # streams that were reset since what came on them was malformed
    refused_total: int = 0  # streams beyond what a connection may have
    errors: dict[str, int] = {}  # connections that ended for an error of the client's, by its code


class DataPlaneStatistics(msgspec.Struct, frozen=True):
    """What the metrics show of one data plane as a whole; totals count since its start."""

    client_connections: int = 0  # open
    handshakes: int = 0  # of them, whose TLS handshake is not over
    handshakes_closed_total: int = 0
    accepted_total: int = 0
    shed_total: int = 0
    exchanges: int = 0  # requests begun and not ended
    held_bytes: int = 0
    held_requests: int = 0
    file_bytes: int = 0  # of bodies in temporary files
    answers: int = 0  # that are kept, or will be
    answer_bytes: int = 0
    answer_totals: dict[str, int] = {}  # what requests came to whose clients did not want to wait
    refused_requests: dict[str, int] = {}  # by reason: before there was a revision
    transitions: dict[tuple[int, int], int] = {}  # of pods, by state before and after (lb.tracker)
    errors_total: int = 0
    http2: Http2Statistics = Http2Statistics()


class TrafficStatistics(msgspec.Struct, frozen=True):
    """What a revision has carried since its first request; times in seconds."""

    duration: Distribution
    first_byte: Distribution
    wait: Distribution
    cold: dict[str, Distribution]  # by phase of a start from zero
    request_bytes: int
    response_bytes: int
    tunnels: int  # open
    tunnels_total: int


class TableStatistics(msgspec.Struct, frozen=True):
    """The table of a revision and the connections to its pods."""

    in_flight: int
    capacity: int  # UNLIMITED of lb.tracker or more: no limit
    pods: tuple[int, ...]  # by state, as lb.tracker numbers them
    connections: tuple[int, int, int, int]  # open (idle ones among them), idle, being dialled; requests waiting for one
    length: int
    slots: int
    holes: int
    trailing: int
    fragmentation: float
    trims: int
    growths: int
    full_total: int
    late_releases: int
    bad_picks: int


class RevisionStatistics(msgspec.Struct, frozen=True):
    """What the metrics show of one revision in one data plane; totals count since this incarnation was made.

    `incarnation`: a number that no other revision of this data plane has or has had, also not one of the same key.
    `dropped`: the revision is gone, but requests of it have not ended.
    """

    key: str
    incarnation: int
    dropped: bool
    knative_service: str
    knative_configuration: str
    policy: str
    requests_total: int
    responses: dict[int, int]  # of pods, by status
    grpc_statuses: dict[int, int]  # of gRPC calls that have ended, by grpc-status
    failures: dict[str, int]  # by reason
    retries: dict[str, int]  # by reason
    fallbacks: dict[str, int]  # requests that another revision took, by its key
    client_gone_total: int
    queued: int
    queue_limit: int
    gathering: int
    delivering: int
    held_bytes: int
    granted_total: int
    exempted_total: int
    errors_total: int
    cold_starts_total: int
    cannot_start: bool
    traffic: TrafficStatistics | None  # None before the first request
    table: TableStatistics


class RevisionEnded(Message, frozen=True, tag=True):
    """The last request of a revision that was dropped has ended: what it had counted, for the last time."""

    statistics: RevisionStatistics


# --- the channel ----------------------------------------------------------------------------------------------------

ToData = Effect | Command
FromData = ToControl | Drained | RevisionEnded

_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(ToData | FromData)


def encode(message: ToData | FromData) -> bytes:
    return _ENCODER.encode(message)


def decode(data: bytes) -> ToData | FromData:
    """Raises msgspec.DecodeError for what is not a message."""
    message: ToData | FromData = _DECODER.decode(data)
    return message


class DirectChannel:
    """Joins the planes within one process by calls, in order.

    `encoded`: every message is carried as bytes all the same, which shows that it could cross a socket.

    `flush()` lets the data plane send what its requests have written, before the control plane takes its time.
    """

    def __init__(self, encoded: bool) -> None:
        self._encoded = encoded
        self._apply: Callable[[list[Effect]], None] = _nowhere
        self._execute: Callable[[Command], None] = _nowhere
        self._receive: Callable[[FromData], None] = _nowhere
        self.flush: Callable[[], None] = lambda: None

    def connect_data(
        self,
        apply: Callable[[list[Effect]], None],
        execute: Callable[[Command], None],
        flush: Callable[[], None],
    ) -> None:
        """The data plane's end."""
        self._apply = apply
        self._execute = execute
        self.flush = flush

    def connect_control(self, receive: Callable[[FromData], None]) -> None:
        """The control plane's end."""
        self._receive = receive

    def send_effects(self, effects: list[Effect]) -> None:
        if self._encoded:
            effects = [decode(encode(effect)) for effect in effects]  # type: ignore[misc]
        self._apply(effects)

    def send_command(self, command: Command) -> None:
        self._execute(decode(encode(command)) if self._encoded else command)  # type: ignore[arg-type]

    def send_to_control(self, message: FromData) -> None:
        self._receive(decode(encode(message)) if self._encoded else message)  # type: ignore[arg-type]


def _nowhere(message: object) -> None:
    raise AssertionError(f"the channel is not connected: {message!r}")
