"""Every number a user can turn, with its name, unit and default; and every bound that nobody needs to turn.

Rules
  1. No other module holds a literal size, time or count that is a matter of choice.
  2. The structs mirror the file of `activator run -c` key by key; `config_file.py` reads it, `RevisionSpec` below is
     what the rest of the program sees.
  3. A duration is seconds as float (`Duration`), a size is bytes as int (`Size`); in a file they are written `300ms`,
     `5s`, `2m`, `32KiB`, `1MiB`, or as plain numbers of seconds or bytes.
"""

from __future__ import annotations

import os
from typing import Annotated, Final

import msgspec

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB


class Duration(float):
    """Seconds."""


class Size(int):
    """Bytes."""


# --- bounds that no file can change ---------------------------------------------------------------------------------

SLOTS_MAX: Final = 131_072  # of one table
GRANTS_PER_TURN_MAX: Final = 256  # hand-overs before the loop is given a turn
REFUSALS_PER_TURN_MAX: Final = 256  # waiters told that they wait in vain before the loop is given a turn
REFUSING_PER_TURN_S: Final = 0.005  # … or when telling them has taken this long
PRIORITY_LEVELS: Final = 8  # of the discipline `priority`: 0 … 7
FAIR_KEYS_MAX: Final = 1_024  # keys of the discipline `fair` that wait at the same time; the others share one
FAIR_WEIGHTS_MAX: Final = 512  # keys whose weight a file may say
FAIR_WEIGHT_MAX: Final = 1_000
QUEUE_RULES_MAX: Final = 32  # of one revision: each request may be compared with all of them
CHARGE_MAX: Final = 1_000
CHANGES_PER_BATCH_MAX: Final = 1_000  # changes the state worker takes before the loop is given a turn
CHANGE_QUEUE_MAX: Final = 100_000  # folded changes waiting for the state worker
ACCESS_LOG_BATCH_S: Final = 0.05  # lines are gathered for so long …
ACCESS_LOG_BATCH_BYTES: Final = 64 * KIB  # … or until there are so many, and then written at once
ACCESS_LOG_BACKLOG_BYTES_MAX: Final = 4 * MIB  # waiting to be written; lines beyond are dropped and counted
ACCESS_LOG_FIELD_MAX: Final = 2 * KIB  # of what a client sent: more of one field is cut off
ACCESS_LOG_CLOSE_S: Final = 2.0  # how long the end of the program waits for the last lines
METRICS_REVISIONS_MAX: Final = 1_000  # revisions that /metrics shows by name; the others are shown as one
DEAD_LETTERS_MAX: Final = 100  # changes set aside after an exception, kept for /debug
ATTEMPTS_MAX: Final = 3  # pods that one request is tried on
DIAL_WINDOW_INITIAL: Final = 4  # fresh connections of one pod that have not answered yet
DIAL_WINDOW_MAX: Final = 256
DIAL_WINDOW_AGE_S: Final = 0.25  # then a fresh connection counts as accepted, answered or not
DIAL_LOST_MIN_S: Final = 0.1  # a dial slower than this, and than DIAL_LOST_RTTS of the fastest, was dropped: dial anew
DIAL_LOST_RTTS: Final = 8.0
STARTING_MAX: Final = 4  # processes of one revision that start at the same time
WRITE_HIGH_WATER_BYTES: Final = 256 * KIB  # of each transport; above it whoever feeds it is paused
WRITE_LOW_WATER_BYTES: Final = 64 * KIB
HELD_BODY_BYTES: Final = 64 * KIB  # of a request body read before its pod is known; also the replay buffer
RETRY_BUDGET_MAX: Final = 100.0  # requests of one revision that may be sent twice, when none was for a while …
RETRY_BUDGET_SHARE: Final = 0.2  # … and of all further ones
RISKY_IDLE_S: Final = 1.0  # what is not idempotent goes out on connections that were idle for less
WRITE_AT_ONCE_BYTES: Final = 16 * KIB  # a piece so large does not wait for the end of the turn
MEMORY_KEPT_BYTES: Final = 16 * MIB  # freed memory that the allocator keeps at the end of the heap
MEMORY_MAPPED_ABOVE_BYTES: Final = MIB  # what is larger is mapped by itself, and given back when it is freed
LISTEN_BACKLOG: Final = 4096
TARGET_BYTES_MAX: Final = 16 * KIB
REQUEST_LINE_SLACK_BYTES: Final = 64  # of a request line beside its target: the method, two spaces, the version
CHUNK_OVERHEAD_BYTES_MAX: Final = 16 * KIB  # chunk size lines and extensions ahead of one chunk's data
TRAILERS_BYTES_MAX: Final = 8 * KIB
RESPONSE_HEAD_BYTES_MAX: Final = 64 * KIB
RESPONSE_HEADERS_MAX: Final = 256
INTERIM_RESPONSES_MAX: Final = 16  # 1xx responses before the final one; more is a loop
KEEP_ALIVE_IDLE_S: Final = 75.0  # a client's idle connection
LINGER_S: Final = 2.0  # reading on after an early answer, so that a reset does not destroy it
FLUSH_S: Final = 30.0  # in which a connection that is being closed must take some of what was written to it
HALF_CLOSE_SWEEP_S: Final = 1.0  # how often paused clients are asked whether they are still there
HEAD_TIMEOUT_S: Final = 60.0  # first byte of a request head to its last
POD_IDLE_S: Final = 4.0  # a pooled connection; below the 5 s after which common servers close theirs
PROBE_TIMEOUT_S: Final = 1.0
PROBE_BACKOFF_INITIAL_S: Final = 0.05
PROBE_BACKOFF_MAX_S: Final = 5.0
PROBE_TIMEOUT_MIN_S: Final = 0.25  # however near the pods are: a loaded machine may take that long …
PROBE_TIMEOUT_RTTS: Final = 16.0  # … and else so many times what the last answers took
PROBE_TIMEOUT_MAX_S: Final = 10.0  # to which each silence doubles it
PROBES_AT_ONCE_MAX: Final = 64
PROBES_HURRIED_MAX: Final = 16  # backoffs of one revision cut short at once since requests wait
PANIC_BACKOFF_INITIAL_S: Final = 0.1
PANIC_BACKOFF_MAX_S: Final = 60.0
PANIC_BACKOFF_FACTOR: Final = 2.0
PANIC_RESET_AFTER_S: Final = 300.0  # without a panic, backoff starts small again
PANIC_BUDGET: Final = 5  # in a row, of one revision or of the worker itself; more: the program is not ready
AUDIT_INTERVAL_S: Final = 3.0  # how often what has changed is compared with what should be
AUDIT_SLOTS_PER_TURN: Final = 4_096  # before the loop is given a turn
SUSPECT_S: Final = 1.0  # how long the request path may keep a pod from the picks until the state worker decides
PUSH_FRESH_S: Final = 60.0  # how long what a pod says of itself beats what others say of it
PUSH_PROVISIONAL_S: Final = 60.0  # how long a pod that only says so itself may be there
PUSH_ANSWER_S: Final = 10.0  # after which a report is answered with "waiting"
PUSH_BODY_BYTES_MAX: Final = MIB
PUSH_REPORTS_MAX: Final = 1_000  # in one request
PUSH_VALIDATIONS_MAX: Final = 32  # pods that are asked at once since they say that they are ready
PUSH_WAITING_MAX: Final = 2_000  # … or wait to be asked
SWEEP_INTERVAL_S: Final = 1.0  # how often the age of what sources have said is looked at
POD_STALE_AFTER_S: Final = 600.0  # a not-ready pod that no listing source asserts
DRAIN_TIMEOUT_S: Final = 300.0  # of a removed pod: then its exchanges are aborted
BODY_RATE_GRACE_S: Final = 5.0  # of which a request body's rate is the mean
CERTIFICATE_CHECK_S: Final = 2.0  # how often the files are looked at
TLS_HANDSHAKE_TIMEOUT_S: Final = 10.0
TLS_SHUTDOWN_TIMEOUT_S: Final = 5.0
LOAD_REPORT_INTERVAL_S: Final = 0.1  # how often the data part tells the control part what it carries
SCALE_TICK_S: Final = 0.1
SCALE_DOWN_WINDOW_S: Final = 10.0  # from n to fewer: the most that was wanted in this window stays
STOP_GRACE_S: Final = 10.0  # between SIGTERM and SIGKILL of a process group
CRASHES_MAX: Final = 5  # failed starts in a row before a revision is reported as failed
CRASH_BACKOFF_INITIAL_S: Final = 0.1
CRASH_BACKOFF_MAX_S: Final = 30.0
READINESS_STEP_MIN_S: Final = 0.002  # readiness is asked in steps from this up to the configured interval …
READINESS_STEP_SHARE: Final = 0.05  # … of this share of the time since the start


# --- the file -------------------------------------------------------------------------------------------------------

Count = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[int, msgspec.Meta(ge=1)]
Weight = Annotated[int, msgspec.Meta(ge=0, le=1000)]
Share = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]


class Tls(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    address: str
    certificate: str  # a file: the chain, in PEM
    key: str  # a file
    min_version: str = "1.2"  # 1.2 | 1.3


class PodTls(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How pods are spoken to over TLS."""

    ca: str = ""  # a file of authorities, in PEM; empty: the system's
    server_name: str = ""  # asked for (SNI) and verified; empty: the address
    verify: bool = True
    certificate: str = ""  # a file, for pods that want to know who asks
    key: str = ""


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    header_bytes: Size = Size(32 * KIB)  # request line and header fields together; above: 431
    headers: Positive = 100  # fields; above: 431
    body_bytes: Size = Size(0)  # 0: no limit; above: 413
    held_bytes: Size = Size(256 * MIB)  # of all requests that wait, in the whole process; above: 503
    held_requests: Positive = 10_000  # that wait, in the whole process; above: 503
    connections: Positive = 10_000  # of clients
    body_rate: Count = 240  # bytes of a request body per second until the answer begins; slower: 408; 0: no limit


class QueueRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first rule that matches a request says how it is treated."""

    path_prefix: str = "/"
    methods: list[str] = []  # empty: all
    exempt: bool = False  # passes even when every pod is full
    charge: Annotated[int, msgspec.Meta(ge=1, le=CHARGE_MAX)] = 1  # fair: how much of its key's share it takes


class Queue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    depth: Count = 10_000  # waiting requests; above: 503 with Retry-After
    bytes: Size = Size(0)  # of bodies held for them; 0: no bound but limits.held_bytes; above: 503
    timeout: Duration | None = None  # None: the startup timeout until a pod was ready once, then QUEUE_TIMEOUT_S
    request_timeout: bool = False  # honour Activator-Queue-Timeout and Activator-Deadline
    request_timeout_max: Duration | None = None  # what the former may ask for; None: it can only shorten
    admission: str = "off"  # off | predictive
    discipline: str = "fifo"  # fifo | priority | fair
    header: str = ""  # priority: the header with the level; fair: the header with the key
    ageing: Duration = Duration(10.0)  # priority: waiting so long counts as much as one level
    default: Annotated[int, msgspec.Meta(ge=0, le=PRIORITY_LEVELS - 1)] = 0  # priority: of a request that says none
    weights: dict[str, Annotated[int, msgspec.Meta(ge=1, le=FAIR_WEIGHT_MAX)]] = {}  # fair: of keys; others have 1
    rules: list[QueueRule] = []


class Timeouts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    total: Duration = Duration(300.0)  # from arrival at the pod; 0: none
    first_byte: Duration = Duration(0.0)  # 0: none
    idle: Duration = Duration(0.0)  # between two pieces of the response; 0: none
    tunnel_idle: Duration = Duration(3600.0)  # of an upgraded connection, in both directions; 0: none
    connect: Duration = Duration(5.0)
    startup: Duration = Duration(300.0)  # how long a revision may take to its first ready pod


QUEUE_TIMEOUT_S: Final = 60.0


class Readiness(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    http_get: str = ""  # path that must answer 2xx or 3xx; empty: the port accepts
    interval: Duration = Duration(0.1)


class Process(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    command: list[str]
    readiness: Readiness = Readiness()
    min_scale: Count = 0
    max_scale: Count = 0  # 0: one where container_concurrency is 0, else the number of processors
    target_concurrency: Count = 0  # 0: container_concurrency, else TARGET_CONCURRENCY
    idle: Duration = Duration(60.0)  # without requests, before scale to zero
    environment: dict[str, str] = {}
    directory: str = ""


TARGET_CONCURRENCY: Final = 100


class Pod(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A fixed pod that is not like the others."""

    address: str
    weight: Weight = 1  # its share under the policy `weighted`; 0: only when no other has room


class HashOn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What requests of one client have in common; one of them."""

    header: str = ""
    cookie: str = ""


HASH_ON_CLIENT_IP: Final = "client_ip"


class Health(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What requests find out of pods."""

    strikes: Positive = 3  # silent or broken connections in a row until a pod is put into quarantine
    ejection_share: Share = 0.5  # of the pods that may be there at once, rounded down but at least one; never the last


class Revision(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    namespace: str = "default"
    hosts: list[str] = []
    container_concurrency: Count = 0
    policy: str = ""  # empty: by container_concurrency
    hash_on: str | HashOn | None = None  # for consistent-hash: client_ip (the default), {header: …} or {cookie: …}
    slow_start: Duration = Duration(0.0)  # how long the share of a new pod grows; 0: not at all
    max_scale: Count = 0  # 0: unknown
    trailing_fragmentation_threshold: Share | None = None
    queue: Queue = Queue()
    timeouts: Timeouts = Timeouts()
    health: Health = Health()
    # Protocols that a connection may be upgraded to.
    upgrades: list[str] = msgspec.field(default_factory=lambda: ["websocket"])
    pods: list[str | Pod] = []
    tls: PodTls | None = None  # of the pods
    process: Process | None = None


class Forwarded(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What pods are told of where a request came from."""

    trust: list[str] = []  # networks of proxies whose X-Forwarded-… and Forwarded are believed, such as 10.0.0.0/8
    headers: str = "x-forwarded"  # x-forwarded | forwarded | both | none
    request_id: bool = True  # X-Request-Id: kept, or made
    via: str = ""  # the name to go by in Via; empty: none is written


class Shutdown(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What happens after SIGTERM, counted from it."""

    delay: Duration = Duration(0.0)  # not ready any more, but serving: until all balancers have noticed
    timeout: Duration = Duration(30.0)  # of the rest: what is being answered then is cut
    tunnels: Duration = Duration(30.0)  # of upgraded connections


class Push(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where pods report themselves."""

    listen: str = ""  # empty: nowhere
    token: str = ""
    token_file: str = ""  # a file that holds it
    networks: list[str] = []  # addresses in them may be reported by others than themselves, such as 10.0.0.0/8


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    listen: str | Tls | list[str | Tls] = "127.0.0.1:8012"
    admin: str = "127.0.0.1:8008"  # empty: none
    workers: Positive = 1  # processes; more than one: planned
    trailing_fragmentation_threshold: Share = 0.5
    access_log: bool | str = False  # false | json | common | a template, such as '{method} {target} {status}'
    trust_revision_headers: bool = False
    forwarded: Forwarded = Forwarded()
    shutdown: Shutdown = Shutdown()
    push: Push = Push()
    limits: Limits = Limits()
    revisions: list[Revision] = []


# --- what the rest of the program sees ------------------------------------------------------------------------------


class DisciplineSpec(msgspec.Struct, frozen=True):
    """How those who wait are ordered; what a discipline does not use is left at its default, so that equal is equal."""

    name: str = "fifo"
    header: str = ""
    ageing_s: float = 0.0
    default: int = 0
    weights: dict[str, int] = {}


class RuleSpec(msgspec.Struct, frozen=True):
    path_prefix: str = "/"
    methods: tuple[str, ...] = ()
    exempt: bool = False
    charge: int = 1


class RevisionSpec(msgspec.Struct, frozen=True):
    """One revision, defaults resolved; sent from the control part to the data part, so plain values only."""

    key: str  # namespace/name
    hosts: tuple[str, ...] = ()
    container_concurrency: int = 0
    policy: str = "choice-of-2"
    hash_on: str = ""  # client_ip | header:… | cookie:…; empty: client_ip, if the policy asks
    slow_start_s: float = 0.0
    strikes: int = 3
    ejection_share: float = 0.5
    max_scale: int = 0
    trailing_fragmentation_threshold: float = 0.5
    queue_depth: int = 10_000
    queue_bytes: int = 0  # 0: no bound of its own
    queue_timeout_s: float | None = None
    request_timeout: bool = False
    request_timeout_max_s: float | None = None
    admission: str = "off"
    discipline: DisciplineSpec = DisciplineSpec()
    queue_rules: tuple[RuleSpec, ...] = ()
    startup_timeout_s: float = 300.0
    connect_timeout_s: float = 5.0
    first_byte_timeout_s: float = 0.0
    idle_timeout_s: float = 0.0
    total_timeout_s: float = 300.0
    tunnel_idle_timeout_s: float = 3600.0
    upgrades: tuple[str, ...] = ("websocket",)
    tls: PodTls | None = None


def resolve_process(revision: Revision, processors: int | None = None) -> Process:
    """The process of a revision that has one, with its defaults settled; `processors`: how many this machine has."""
    assert revision.process is not None
    process = revision.process
    limit = revision.container_concurrency
    max_scale = process.max_scale
    if max_scale == 0:
        # A program that sets no limit handles many requests at once by itself; one with a limit needs company.
        max_scale = 1 if limit == 0 else processors or len(os.sched_getaffinity(0))
        max_scale = max(max_scale, process.min_scale)
    return msgspec.structs.replace(
        process, max_scale=max_scale, target_concurrency=process.target_concurrency or limit or TARGET_CONCURRENCY
    )
