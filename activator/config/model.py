"""Every number a user can turn, with its name, unit and default; and every bound that nobody needs to turn.

Rules
  1. No other module holds a literal size, time or count that is a matter of choice.
  2. The structs mirror the file of `activator run -c` key by key; `config/` reads it, `RevisionSpec` below is
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
CHANGES_PER_BATCH_MAX: Final = 1_000  # changes the state worker takes before the loop is given a turn …
CHANGES_BATCH_S: Final = 0.00005  # … or as many as it reduces in this time, since requests wait meanwhile …
CHANGES_BATCH_STEP: Final = 256  # … and once more in it for so many that wait …
CHANGES_AT_ONCE: Final = 4  # … looked at after so many
START_SETTLE_S: Final = 10.0  # how long the start waits at the most until the file's revisions are applied
CHANGE_QUEUE_MAX: Final = 100_000  # folded changes waiting for the state worker
ACCESS_LOG_BATCH_S: Final = 0.05  # lines are gathered for so long …
ACCESS_LOG_BATCH_BYTES: Final = 512 * KIB  # … or until there are so many: to wake the writer's thread is dear
ACCESS_LOG_TURN_MAX: Final = 128  # requests that ended in one turn of the loop, and wait for its end to be logged
ACCESS_LOG_BACKLOG_BYTES_MAX: Final = 4 * MIB  # waiting to be written; lines beyond are dropped and counted
ACCESS_LOG_FIELD_MAX: Final = 2 * KIB  # of what a client sent: more of one field is cut off
ACCESS_LOG_MEMO_MAX: Final = 1_024  # pieces of lines that are remembered, of each kind
ACCESS_LOG_CLOSE_S: Final = 2.0  # how long the end of the program waits for the last lines
PROFILE_INTERVAL_S: Final = 0.005  # between two looks at all stacks
PROFILE_STACK_MAX: Final = 200  # frames of one that are looked at, from the innermost
PROFILE_SECONDS: Final = 5.0  # of a profile whose length nobody has said
PROFILE_SECONDS_MAX: Final = 60.0
KNATIVE_PROMETHEUS_ADDRESS: Final = "0.0.0.0:9090"  # where Knative's activator has its metrics
METRICS_ANSWER_S: Final = 60.0  # whoever has not taken all metrics by then is cut off
KNATIVE_EXPORT_TIMEOUT_S: Final = 10.0
LOG_WINDOW_S: Final = 10.0  # in which the program says of itself …
LOG_SAME_MAX: Final = 3  # … the same so many times at most …
LOG_PLACE_MAX: Final = 100  # … and so much from one place in its code; more is left out and counted
LOG_PLACES_MAX: Final = 1_000  # places that are looked at
TRACE_SPANS_MAX: Final = 8_192  # waiting to be sent, some 200 bytes each; more are dropped and counted
TRACE_BATCH_SPANS: Final = 2_048  # sent at once, …
TRACE_DELAY_S: Final = 1.0  # … or so long after the last time, unless OpenTelemetry's variables say otherwise
TRACE_TIMEOUT_S: Final = 10.0  # of one call of the collector, likewise
TRACE_ATTEMPTS_MAX: Final = 4  # to send the same spans: after 1, 2 and 4 s, or as the collector says, …
TRACE_RETRY_MAX_S: Final = 30.0  # … but no later than that
TRACE_CLOSE_S: Final = 2.0  # how long the end of the program waits for the last spans
METRICS_REVISIONS_MAX: Final = 1_000  # revisions that /metrics shows by name; the others are shown as one
KNATIVE_SERIES_MAX: Final = 100  # combinations of method, host, status and so on, of one revision, in Knative's metrics
DEAD_LETTERS_MAX: Final = 100  # changes set aside after an exception, kept for /debug
ATTEMPTS_MAX: Final = 3  # pods that one request is tried on
DIAL_WINDOW_INITIAL: Final = 4  # new connections of one pod at the same time (data_plane/upstream/window.py)
DIAL_WINDOW_MAX: Final = 256
DIAL_AGE_INITIAL_S: Final = 0.01  # then a new connection counts as accepted, answered or not …
DIAL_AGE_MIN_S: Final = 0.01  # … which is halved where pods are slow to answer, …
DIAL_AGE_MAX_S: Final = 0.25  # … and so long after a dial was lost
DIAL_LOST_MIN_S: Final = 0.1  # a dial slower than this, and than DIAL_LOST_RTTS of the fastest, was dropped: dial anew
DIAL_LOST_RTTS: Final = 8.0
STARTING_MAX: Final = 4  # processes of one revision that start at the same time
READ_FULL_BYTES: Final = 250_000  # a read of so much has filled the loop's buffer, nearly: more is there …
FULL_READS_PER_TURN_MAX: Final = 4  # … and after so many in a row the connection waits for the next turn
CHUNKS_PER_TURN_MAX: Final = 2_048  # of one connection's chunked body: 0.3 ms of parsing
REQUESTS_PER_TURN_MAX: Final = 16  # of one connection that are begun before the loop is given a turn
WRITE_HIGH_WATER_BYTES: Final = 64 * KIB  # of each transport; above it whoever feeds it is paused
WRITE_LOW_WATER_BYTES: Final = 16 * KIB
HELD_BODY_BYTES: Final = 64 * KIB  # of a request body read before its pod is known; also the replay buffer
RETRY_BUDGET_MAX: Final = 100.0  # requests of one revision that may be sent twice, when none was for a while …
RETRY_BUDGET_SHARE: Final = 0.2  # … and of all further ones
RISKY_IDLE_S: Final = 1.0  # what is not idempotent goes out on connections that were idle for less
WRITE_AT_ONCE_BYTES: Final = 16 * KIB  # a piece so large does not wait for the end of the turn
MEMORY_KEPT_BYTES: Final = 16 * MIB  # freed memory that the allocator keeps at the end of the heap
MEMORY_GIVEN_BACK_BYTES: Final = 8 * MIB  # freed memory: when there is more of it for a while, it goes back
MEMORY_LOOK_S: Final = 1.0  # how often that is looked at …
MEMORY_LOOKS: Final = 3  # … and for how many looks it must have been so
MEMORY_MAPPED_ABOVE_BYTES: Final = MIB  # what is larger is mapped by itself, and given back when it is freed
LISTEN_BACKLOG: Final = 4096
TARGET_BYTES_MAX: Final = 16 * KIB
REQUEST_LINE_SLACK_BYTES: Final = 64  # of a request line beside its target: the method, two spaces, the version
CHUNK_OVERHEAD_BYTES_MAX: Final = 16 * KIB  # chunk size lines and extensions ahead of one chunk's data
TRAILERS_BYTES_MAX: Final = 8 * KIB
RESPONSE_HEAD_BYTES_MAX: Final = 64 * KIB
RESPONSE_HEADERS_MAX: Final = 256
INTERIM_RESPONSES_MAX: Final = 16  # 1xx responses before the final one; more is a loop
LINGER_S: Final = 30.0  # reading on after an early answer, so that a reset does not destroy it …
LINGER_SILENCE_S: Final = 5.0  # … while the client goes on sending: after such a pause it is taken to have ended
LINGER_SCARCE_S: Final = 2.0  # … and at the most where connections are too many, or the program is to end
SHED_MAX: Final = 32  # connections over the limit that have been told so and linger; then the oldest is closed
HANDSHAKES_SHARE: Final = 0.5  # of limits.connections that may be in a TLS handshake; then the oldest is closed
ADMIN_CONNECTIONS_MAX: Final = 32  # of the admin port; then the oldest is closed
FLUSH_S: Final = 30.0  # in which a connection that is being closed must take some of what was written to it
HALF_CLOSE_SWEEP_S: Final = 1.0  # how often paused clients are asked whether they are still there
SWEPT_PER_TURN_MAX: Final = 128  # of them in one turn: one costs 2 us, or up to 50 where its request ends with it
HEAD_TIMEOUT_S: Final = 60.0  # first byte of a request head to its last
POD_IDLE_S: Final = 4.0  # a pooled connection; below the 5 s after which common servers close theirs
PROBE_TIMEOUT_S: Final = 1.0
PROBE_BACKOFF_INITIAL_S: Final = 0.05
PROBE_BACKOFF_MAX_S: Final = 5.0
PROBE_TIMEOUT_MIN_S: Final = 0.25  # however near the pods are: a loaded machine may take that long …
PROBE_TIMEOUT_RTTS: Final = 16.0  # … and else so many times what the last answers took
PROBE_TIMEOUT_MAX_S: Final = 10.0  # to which each silence doubles it
PROBES_AT_ONCE_MAX: Final = 64  # pods asked in the same moment …
PROBE_MOMENT_S: Final = 0.25  # … which is so long; who has not answered by then keeps nobody else waiting
PROBE_ANSWER_BYTES_MAX: Final = 64  # of an answer's body: more is not the answer
PROBES_HURRIED_MAX: Final = 16  # pods of one revision that are hurried at once since requests wait
HASTE_MAX: Final = 10_000  # revisions of which it is known since when requests wait
PROBE_HURRY_S: Final = 0.25  # how long a pod is hurried after it was last heard that requests wait
PROBE_HURRY_FORGET_S: Final = 2.0  # … and since when they have waited is forgotten after such a pause
PROBE_HURRIED_STEP_SHARE: Final = 0.01  # a hurried pod is asked in steps of this share of the time since …
PROBE_HURRIED_STEP_MIN_S: Final = 0.002
PROBE_HURRIED_STEP_MAX_S: Final = 0.025  # … and more where many pods are hurried: PROBES_HURRIED_MAX in such a step
PROBE_HURRIED_LONG_S: Final = 60.0  # after so long it is asked …
PROBE_HURRIED_LONG_STEP_S: Final = 0.1  # … in such steps
PROBE_SECOND_AFTER_S: Final = 0.025  # a hurried pod that has not answered by then is asked once more beside
KNOCK_STEP_S: Final = 0.003  # between two looks whether a program listens, while requests wait for it
KNOCK_STEP_SHARE: Final = 0.02  # … and so much of the time since the first …
KNOCK_STEP_MAX_S: Final = 0.02  # … up to this
KNOCK_UNKNOWN_S: Final = 0.025  # how long queue-proxy is not asked where it is not known whether that can be seen …
KNOCK_TRUST_S: Final = 5.0  # … and where it can
KNOCK_PROOF_S: Final = 0.004  # queue-proxy's answer is awaited so long where the port itself has shown the same
KNOCKED_REVISIONS_MAX: Final = 10_000  # of which it is remembered
PANIC_BACKOFF_INITIAL_S: Final = 0.1
PANIC_BACKOFF_MAX_S: Final = 60.0
PANIC_BACKOFF_FACTOR: Final = 2.0
PANIC_RESET_AFTER_S: Final = 300.0  # without a panic, backoff starts small again
PANIC_BUDGET: Final = 5  # in a row, of one owner; more, of enough of them: the program is not ready
PANIC_JUDGE_INTERVAL_S: Final = 0.5  # how often it is asked whether that has gone on for too long
AUDIT_INTERVAL_S: Final = 3.0  # how often what has changed is compared with what should be
AUDIT_SLOTS_PER_TURN: Final = 4_096  # before the loop is given a turn
TRIAL_PATIENCE_S: Final = 0.5  # how long one trial request keeps others from its pod; then another is tried beside it
SUSPECT_S: Final = 1.0  # how long the request path may keep a pod from the picks until the state worker decides
PUSH_FRESH_S: Final = 60.0  # how long what a pod says of itself beats what others say of it
PUSH_PROVISIONAL_S: Final = 60.0  # how long a pod that only says so itself may be there
PUSH_ANSWER_S: Final = 10.0  # after which a report is answered with "waiting"
PUSH_BODY_BYTES_MAX: Final = MIB
PUSH_REPORTS_MAX: Final = 1_000  # in one request
PUSH_VALIDATIONS_MAX: Final = 32  # pods that are asked at once since they say that they are ready
PUSH_WAITING_MAX: Final = 2_000  # … or wait to be asked
KUBE_CONNECT_TIMEOUT_S: Final = 5.0  # to the Kubernetes API: a connection, TLS included
KUBE_CALL_TIMEOUT_S: Final = 30.0  # of one call, credentials and body included; of a watch: until its head has come
KUBE_CREDENTIALS_TIMEOUT_S: Final = 30.0  # reading the configuration, running a credential plug-in
KUBE_CREDENTIALS_AGE_S: Final = 60.0  # then what a configuration file refers to is read again
KUBE_RENEW_MIN_S: Final = 5.0  # refused credentials are read anew at most so often
KUBE_BODY_BYTES_MAX: Final = 64 * MIB  # of one answer, one page of a list
KUBE_PAGE_OBJECTS: Final = 250  # objects in one page of a list
KUBE_PAGES_MAX: Final = 2_000  # of one list: a server that never ends it is not believed
KUBE_LISTS_AT_ONCE_MAX: Final = 4  # so that relists after an outage neither crowd out each other nor the other calls
KUBE_PATCHES_AT_ONCE_MAX: Final = 16  # writes have a budget of their own: a wake-up never waits for a list
KUBE_LINE_BYTES_MAX: Final = 8 * MIB  # of one watch event; etcd takes objects of 1.5 MiB
KUBE_EVENTS_PER_TURN_MAX: Final = 200  # watch events handled before the loop is given a turn …
KUBE_BYTES_PER_TURN_MAX: Final = MIB  # … or so much of what came, decoded in 3 ms
KUBE_WATCH_S: Final = 300.0  # the server ends a watch after between once and twice this
KUBE_WATCH_GRACE_S: Final = 15.0  # what a server may take beyond that before the watch is cut
KUBE_INACTIVITY_S: Final = 90.0  # nothing in a watch for so long, no bookmark either (one a minute): it has stalled
KUBE_STEADY_S: Final = 10.0  # a watch that held so long ended well: the next begins without a backoff
KUBE_CHECK_INTERVAL_S: Final = 1.0  # how often watches are looked at
KUBE_BACKOFF_INITIAL_S: Final = 0.25
KUBE_BACKOFF_MAX_S: Final = 30.0
KUBE_RETRY_AFTER_MAX_S: Final = 120.0  # however long a server asks for
KUBE_RECONCILE_INTERVAL_S: Final = 30.0  # how often a list is compared with what the watch has told
KUBE_RECONCILE_HURRY_S: Final = 1.0  # … for what somebody waits for
KUBE_HURRIED_MAX: Final = 100  # scopes that are hurried at the same time …
KUBE_HURRIED_PER_ROUND_MAX: Final = 10  # … of which so many have their turn each time: many cold starts are no herd
KUBE_DECODE_LOG_INTERVAL_S: Final = 60.0  # objects that cannot be read are logged at most so often
SWEEP_INTERVAL_S: Final = 1.0  # how often the age of what sources have said is looked at
POD_STALE_AFTER_S: Final = 600.0  # a not-ready pod that no listing source asserts
DRAIN_TIMEOUT_S: Final = 300.0  # of a removed pod, at the least: then its exchanges are aborted
BODY_RATE_GRACE_S: Final = 5.0  # of which a request body's rate is the mean
CERTIFICATE_CHECK_S: Final = 2.0  # how often the files are looked at
TLS_CONTEXTS_MAX: Final = 1_000  # ways to speak TLS to pods that are remembered
TLS_HANDSHAKE_TIMEOUT_S: Final = 10.0
TLS_SHUTDOWN_TIMEOUT_S: Final = 5.0
LOAD_REPORT_INTERVAL_S: Final = 0.1  # how often the data part tells the control part what it carries
CONCURRENCY_REPORT_S: Final = 1.0  # how often Knative's autoscaler is told what revisions carry
POKE_INTERVAL_S: Final = 0.05  # between two times that it is told at once of one revision
AUTOSCALER_CONNECT_TIMEOUT_S: Final = 3.0
AUTOSCALER_PING_S: Final = 20.0 / 3.0  # how often its connection is tried; half of it is the time for an answer
AUTOSCALER_SEND_TIMEOUT_S: Final = 10.0
AUTOSCALER_BATCH_MAX: Final = 1_000  # revisions that are told of in one message where each is told by itself
AUTOSCALER_BATCHES_MAX: Final = 64  # waiting to be sent; the oldest are dropped, since newer ones say what is true now
AUTOSCALER_BACKOFF_INITIAL_S: Final = 0.1
AUTOSCALER_BACKOFF_FACTOR: Final = 1.3
AUTOSCALER_BACKOFF_MAX_S: Final = 15.0
AUTOSCALER_HURRIED_S: Final = 0.05  # the least pause between two dials when a request waits to be reported
SCALE_FALLBACKS_AT_ONCE: Final = 4  # attempts to scale revisions without the autoscaler; the others wait their turn
SCALE_FALLBACK_RETRY_S: Final = 60.0  # between two attempts to scale one revision without the autoscaler
MESH_PATIENCE_S: Final = 2.0  # pods are said to be ready and none answers: is there a mesh?
MESH_LOOK_S: Final = 1.0  # how often that is looked at
MESH_TIMEOUT_S: Final = 0.3
MESH_ASKED_MAX: Final = 3  # pods of a revision that are asked for it
MESH_REVISIONS_MAX: Final = 32  # revisions that are looked at so at the same time
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

    ca: str = ""  # a file of authorities, in PEM, or the PEM itself; empty: the system's
    server_name: str = ""  # asked for (SNI) and verified; empty: the address
    san: str = ""  # a DNS name that the certificate must have as well
    min_version: str = "1.2"  # 1.2 | 1.3
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
    idle: Duration = Duration(75.0)  # a client's connection without a request: then it is closed
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


PROBE_TCP: Final = "tcp"
PROBE_HTTP: Final = "http"
PROBE_QUEUE_PROXY: Final = "queue-proxy"
PROBE_KINDS: Final = (PROBE_TCP, PROBE_HTTP, PROBE_QUEUE_PROXY)


class Probe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How pods are asked whether they take requests."""

    kind: str = ""  # tcp | http | queue-proxy (Knative's); empty: http where there is a path, else tcp
    path: str = ""  # http: must answer 2xx or 3xx
    host: str = ""  # http: asked for; empty: the pod's address
    identity_header: str = ""  # http: the answer's header that must name the pod, also on each new connection


class Health(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What requests find out of pods; of every revision that does not say otherwise."""

    strikes: Positive = 3  # silent or broken connections in a row until a pod is put into quarantine
    ejection_share: Share = 0.5  # of the pods that may be there at once, rounded down but at least one; never the last


class RevisionHealth(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The same for one revision; None: as for all."""

    strikes: Positive | None = None
    ejection_share: Share | None = None


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
    health: RevisionHealth = RevisionHealth()
    probe: Probe | None = None  # None: the port accepts
    # Protocols that a connection may be upgraded to; "*": all but HTTP/2 and TLS.
    upgrades: list[str] = msgspec.field(default_factory=lambda: ["websocket"])
    pods: list[str | Pod] = []
    server_timing: bool = False  # tells clients where the time went, in the header Server-Timing
    tls: PodTls | None = None  # of the pods
    process: Process | None = None


class Forwarded(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What pods are told of where a request came from."""

    trust: list[str] = []  # networks of proxies whose X-Forwarded-… and Forwarded are believed, such as 10.0.0.0/8
    headers: str = "x-forwarded"  # x-forwarded | forwarded | both | x-forwarded-for (and nothing else) | none
    request_id: bool = True  # X-Request-Id: kept, or made
    via: str = ""  # the name to go by in Via; empty: none is written


class Shutdown(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What happens after SIGTERM, counted from it."""

    delay: Duration = Duration(0.0)  # not ready any more, but serving: until all balancers have noticed
    timeout: Duration = Duration(30.0)  # of the rest: what is being answered then is cut
    tunnels: Duration = Duration(30.0)  # of upgraded connections
    panic_grace: Duration = Duration(60.0)  # failing for so long beyond PANIC_BUDGET: drain and exit with 4; 0: never


KNATIVE: Final = "knative"
SHARING_NONE: Final = "none"
SHARING_KNATIVE: Final = "knative"


class Push(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where pods report themselves."""

    listen: str = ""  # empty: nowhere
    token: str = ""
    token_file: str = ""  # a file that holds it
    networks: list[str] = []  # addresses in them may be reported by others than themselves, such as 10.0.0.0/8


class Kubernetes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where revisions and their pods come from, instead of the file."""

    mode: str = KNATIVE  # knative: in the place of its activator
    sharing: str = SHARING_NONE  # none: every pod is ours; knative: this activator's share, by its index
    reconcile_interval: Duration = Duration(30.0)  # how often what is known is compared with a list
    autoscaler: str = ""  # ws://host:port; empty: Knative's own
    scale_fallback: Duration = Duration(0.0)  # the autoscaler away so long while requests wait: scale to one; 0: never


class Log(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the program says of itself, on standard error."""

    format: str = "console"  # console | json
    level: str = "info"  # debug | info | warning | error
    levels: dict[str, str] = {}  # of parts that are to say more or less than the others: LOG_PARTS


# By name: whether it is a part of ours, or a library.
LOG_PARTS: Final[dict[str, bool]] = {
    "access_log": True,
    "autoscaler": True,
    "certificates": True,
    "control": True,
    "data": True,
    "knative": True,
    "kubernetes": True,
    "probing": True,
    "process": True,
    "scaling": True,
    "state": True,
    "tracing": True,
    "upstream": True,
    "aiohttp": False,
    "asyncio": False,
    "kubernetes_asyncio": False,
    "opentelemetry": False,
}
LOG_LEVELS: Final = ("debug", "info", "warning", "error")


class KnativeExport(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Metrics by Knative's names, beside our own."""

    protocol: str = "none"  # none | prometheus | http/protobuf
    endpoint: str = ""  # prometheus: where to listen, empty: port 9090; http/protobuf: the whole URL
    export_interval: Duration = Duration(60.0)  # of http/protobuf


class Metrics(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    histograms: bool = True  # of each revision's requests: how long they took and waited
    knative: KnativeExport = KnativeExport()


class Tracing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Spans of requests, sent away as OTLP over HTTP; what is left out here, OpenTelemetry's own variables may say."""

    exporter: str = ""  # none | otlp; empty: as OTEL_TRACES_EXPORTER says, else none
    endpoint: str = ""  # http://collector:4318; empty: as OTEL_EXPORTER_OTLP_ENDPOINT says, else port 4318 of this host
    sampling_rate: Share | None = None  # None: as OTEL_TRACES_SAMPLER and …_ARG say, else TRACING_RATE


TRACING_RATE: Final = 0.1


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    listen: str | Tls | list[str | Tls] = "127.0.0.1:8012"
    admin: str = "127.0.0.1:8008"  # empty: none
    workers: Positive = 1  # processes; more than one: planned
    trailing_fragmentation_threshold: Share = 0.5
    access_log: bool | str = False  # false | json | common | knative | a template, such as '{method} {target} {status}'
    log: Log = Log()
    metrics: Metrics = Metrics()
    tracing: Tracing = Tracing()
    trust_revision_headers: bool = False
    forwarded: Forwarded = Forwarded()
    shutdown: Shutdown = Shutdown()
    push: Push = Push()
    health: Health = Health()
    limits: Limits = Limits()
    revisions: list[Revision] = []
    kubernetes: Kubernetes | None = None


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


class ProbeSpec(msgspec.Struct, frozen=True):
    """How a pod is asked whether it takes requests."""

    kind: str = PROBE_TCP  # tcp: the port accepts; http: `path` answers 2xx or 3xx; queue-proxy: Knative's probe
    path: str = ""  # empty: / for http, /healthz for queue-proxy
    host: str = ""  # empty: the pod's address
    headers: tuple[tuple[str, str], ...] = ()  # beside those that the kind has
    # Of the program behind queue-proxy: when it opens, asking is worthwhile (probes/tcp_probe.py); 0: unknown.
    port: int = 0
    port_suffices: bool = False  # queue-proxy itself looks for no more than that this port takes connections
    identity_header: str = ""  # the answer's header that must hold the pod's identity; empty: nobody is asked for it


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
    probe: ProbeSpec = ProbeSpec()
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
    times_from_arrival: bool = False  # the total and first-byte timeouts count the wait for a pod too, as Knative's do
    upgrades: tuple[str, ...] = ("websocket",)
    server_timing: bool = False
    tls: PodTls | None = None
    knative_service: str = ""  # of its labels: what it belongs to
    knative_configuration: str = ""

    @property
    def drain_timeout_s(self) -> float:
        """How long a pod that was removed may go on with what it carries: as long as a request may take."""
        return max(DRAIN_TIMEOUT_S, self.total_timeout_s)


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
