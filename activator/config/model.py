"""The configuration file, key by key: every number that a user can turn, with its name, unit and default.

Rules
  1. The structs mirror the file of `activator run -c`; `file.py` reads it into them, `specs.py` has what the rest
     of the program sees of a revision. A bound that no file can change stands in the module that keeps it.
  2. A duration is seconds as float (`Duration`), a size is bytes as int (`Size`); in a file they are written `300ms`,
     `5s`, `2m`, `32KiB`, `1MiB`, or as plain numbers of seconds or bytes.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from activator.runtime.units import KIB, MIB


class Duration(float):
    """Seconds."""


class Size(int):
    """Bytes."""


# --- bounds of what a file may say ----------------------------------------------------------------------------------

PRIORITY_LEVELS: Final = 8  # of the discipline `priority`: 0 … 7
FAIR_WEIGHT_MAX: Final = 1_000
CHARGE_MAX: Final = 1_000

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
