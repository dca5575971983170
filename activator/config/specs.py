"""One revision with its defaults resolved, as sources make it of the file or a cluster, and messages carry it.

Only plain values, because a specification is sent from the control plane to the data plane.
"""

from __future__ import annotations

import ipaddress
import os
from typing import Any, Final

import msgspec

from activator.config.model.containers import Container
from activator.config.model.file import Config
from activator.config.model.pods import PROBE_TCP, Health, PodTls
from activator.config.model.programs import LIFETIME_REQUEST, Process
from activator.config.model.queueing import (
    BUFFER_REQUEST_BYTES,
    BUFFER_RESPONSE_BYTES,
    BUFFERED_CONCURRENCY_MAX,
    Buffer,
    Queue,
    Timeouts,
)
from activator.config.model.revision import Revision
from activator.config.model.scaling import TARGET_CONCURRENCY
from activator.config.model.waiting import ASLEEP_STATUS, Fallback
from activator.runtime.unix_address import is_unix

FILTER_ENTRY_POINTS: Final = "activator.filters"  # the group of entry points
NO_LEVEL: Final = -1  # a user's requests have the level of their header
DRAIN_TIMEOUT_S: Final = 300.0  # the least drain timeout of a removed pod; after it the exchanges are aborted


# The file's defaults are also those of a specification; only `model/` defines them.
_HEALTH: Final = Health()
_QUEUE: Final = Queue()
_TIMEOUTS: Final = Timeouts()
_FALLBACK: Final = Fallback()
_CONFIG: Final = Config()


class DisciplineSpec(msgspec.Struct, frozen=True):
    """The order of waiting requests; settings of other disciplines keep their defaults, for comparisons."""

    name: str = _QUEUE.discipline
    header: str = ""  # with the level
    ageing_s: float = 0.0
    default: int = 0
    weights: dict[str, int] = {}
    key_header: str = ""


class RuleSpec(msgspec.Struct, frozen=True):
    """An exception of a queue for the requests with this path prefix and one of these methods; empty: all methods."""

    path_prefix: str = "/"
    methods: tuple[str, ...] = ()
    exempt: bool = False
    charge: int = 1


class QuietSpec(msgspec.Struct, frozen=True):
    """Requests that start no pod. Empty fields are not compared."""

    path: str = ""
    methods: tuple[str, ...] = ()
    user_agent: str = ""
    status: int = ASLEEP_STATUS


class AsyncSpec(msgspec.Struct, frozen=True):
    """Asynchronous responses (RFC 7240)."""

    keep_s: float
    requests_max: int
    answer_bytes_max: int
    bytes_max: int  # for all stored responses
    body_bytes_max: int  # per request


class ProgressSpec(msgspec.Struct, frozen=True):
    """Comments in an event stream while a request waits."""

    after_s: float
    interval_s: float


class WaitingPageSpec(msgspec.Struct, frozen=True):
    """The page that browsers get during a start."""

    refresh_s: float
    template: str = ""  # empty: the built-in page
    output: bool = False  # it shows the last lines of the program


class FallbackSpec(msgspec.Struct, frozen=True):
    """The substitute for a refusal: a body, a redirect or another revision."""

    body: str = ""
    content_type: str = _FALLBACK.content_type
    redirect: str = ""
    revision: str = ""  # namespace/name
    statuses: tuple[int, ...] = ()  # pods' statuses that it replaces, too
    any_method: bool = False  # the revision also takes requests that are not idempotent, by the pod's status
    while_starting: bool = False  # also instead of the wait for a start


class ProbeSpec(msgspec.Struct, frozen=True):
    """The probe of a pod."""

    # tcp: the port accepts; http: `path` answers 2xx or 3xx; grpc: gRPC's health service; queue-proxy: Knative's probe
    kind: str = PROBE_TCP
    path: str = ""  # empty: / for http, /healthz for queue-proxy
    host: str = ""  # empty: the pod's address
    headers: tuple[tuple[str, str], ...] = ()  # in addition to those of the kind
    # The port of the program behind queue-proxy, probed before queue-proxy (probes/tcp_probe.py); 0: unknown.
    port: int = 0
    port_suffices: bool = False  # queue-proxy itself only checks that this port accepts connections
    lenient: bool = False  # the response head may have the forms that old servers send
    identity_header: str = ""  # the response header that must contain the pod's identity; empty: none
    http2: bool = False  # http: over HTTP/2, because the pod may support only that
    service: str = ""  # grpc: the name of the service; empty: the server as a whole
    proxy_protocol: str = ""  # v1 | v2: header at the beginning of the connection; empty: none


class HealthCheckSpec(msgspec.Struct, frozen=True):
    """Active health checks of ready pods: the interval, and the counts in a row."""

    interval_s: float
    rise: int
    fall: int


class MatchSpec(msgspec.Struct, frozen=True):
    """The requests for its hosts that a revision takes. Empty fields are not compared."""

    path: str = ""  # a prefix of whole segments, normalized (runtime/url_path.py), without a final slash
    strip_path: bool = False
    methods: tuple[str, ...] = ()
    headers: tuple[tuple[str, str], ...] = ()  # lower-case names, sorted; all must have these values
    models: tuple[str, ...] = ()  # values of `model` in a JSON body; `name*` is a prefix

    def is_every(self) -> bool:
        """Return True if every request matches."""
        return not (self.path or self.methods or self.headers or self.models)


class FieldRulesSpec(msgspec.Struct, frozen=True):
    """Edits of header fields, in the order of the fields here."""

    remove: tuple[str, ...] = ()
    set: tuple[tuple[str, str], ...] = ()
    append: tuple[tuple[str, str], ...] = ()


class HeaderRulesSpec(msgspec.Struct, frozen=True):
    """Edits of requests to pods, and of their responses."""

    request: FieldRulesSpec = FieldRulesSpec()
    response: FieldRulesSpec = FieldRulesSpec()


class FaultSpec(msgspec.Struct, frozen=True):
    """Requests that are delayed or failed on purpose."""

    delay_s: float
    delay_share: float
    status: int  # 0: none
    status_share: float


class RateLimitSpec(msgspec.Struct, frozen=True):
    """The rate of requests of each client address."""

    requests: int
    period_s: float
    burst: int  # requests at once


class ForwardAuthSpec(msgspec.Struct, frozen=True):
    """An external authoriser of a revision's requests."""

    host: str
    port: int
    tls: bool
    authority: str  # host and port as in the URL
    target: str  # path and query
    headers: tuple[str, ...] = ()
    cache_s: float = 0.0  # 0.0: no cache
    timeout_s: float = 5.0


class FilterSpec(msgspec.Struct, frozen=True):
    """A filter that is not built in. A secret option is a reference to its source, or hidden in messages."""

    name: str
    options: tuple[tuple[str, str], ...] = ()

    def __repr__(self) -> str:
        return f"FilterSpec({self.name!r}, {[name for name, _ in self.options]})"


class RecordSpec(msgspec.Struct, frozen=True):
    """The records of requests. `capture_bytes`: of each body; 0: no captures."""

    tokens: bool = True
    requests: int = 100
    capture_bytes: int = 0
    capture_keep_s: float = 600.0
    include_usage: bool = False  # reports of tokens are asked for in streams


class RoutingSpec(msgspec.Struct, frozen=True):
    """The requests that a revision takes."""

    hosts: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()  # entry ports of its own: requests there are for it, whatever the host
    is_left: bool = False  # clients at these ports now reach its pods directly: their connections may be closed
    order: int = 0  # in the file, among revisions of one host: the first match is used
    match: MatchSpec = MatchSpec()
    aliases: tuple[str, ...] = ()  # other names of its models
    rewrite_model: str = ""  # the `model` that the pod receives instead of an alias; empty: the alias
    default: bool = False  # takes requests that no revision of its hosts matches
    weight: int = -1  # its share among revisions with the same `match`; -1: none
    split_on: str = ""  # key of a request for the split, as `BalancingSpec.hash_on`; empty: the revisions take turns


class ParamsSpec(msgspec.Struct, frozen=True):
    """The edits of JSON request bodies: members that are removed, and those that are set, with values in JSON."""

    strip: tuple[str, ...] = ()
    set: tuple[tuple[str, str], ...] = ()


class BalancingSpec(msgspec.Struct, frozen=True):
    """The table of a revision's pods, and the policy that picks one."""

    policy: str = "choice-of-2"
    hash_on: str = ""  # client_ip | header:… | cookie:…; empty: client_ip, if the policy needs a key
    slow_start_s: float = 0.0
    max_scale: int = 0
    trailing_fragmentation_threshold: float = _CONFIG.trailing_fragmentation_threshold
    zone: str = ""  # pods in another zone are picked last; empty: zones do not matter


class AdaptiveSpec(msgspec.Struct, frozen=True):
    """The bounds of a limit that follows the latency of the pods."""

    least: int
    most: int


class QueueSpec(msgspec.Struct, frozen=True):
    """The queue of a revision."""

    depth: int = _QUEUE.depth
    bytes: int = int(_QUEUE.bytes)  # 0: no limit of its own
    timeout_s: float | None = None
    startup_timeout_s: float = float(_TIMEOUTS.startup)
    request_timeout: bool = False
    request_timeout_max_s: float | None = None
    admission: str = _QUEUE.admission
    target_wait_s: float = float(_QUEUE.target_wait)  # 0.0: none
    target_interval_s: float = float(_QUEUE.target_interval)
    discipline: DisciplineSpec = DisciplineSpec()
    rules: tuple[RuleSpec, ...] = ()
    adaptive: AdaptiveSpec | None = None


class TimeoutsSpec(msgspec.Struct, frozen=True):
    """The time limits of a request with a slot. 0.0: no limit."""

    connect_s: float = float(_TIMEOUTS.connect)
    first_byte_s: float = float(_TIMEOUTS.first_byte)
    idle_s: float = float(_TIMEOUTS.idle)
    total_s: float = float(_TIMEOUTS.total)
    tunnel_idle_s: float = float(_TIMEOUTS.tunnel_idle)
    cancel_wait_s: float = 0.0  # how long a pod may finish a cancelled request; 0.0: its connection is closed at once
    from_arrival: bool = False  # the total and first-byte timeouts include the wait for a slot, as Knative's do


class BuffersSpec(msgspec.Struct, frozen=True):
    """The buffers that keep slow clients from holding a slot."""

    request_bytes: int = 0  # received of a body before its request needs a slot
    response_bytes: int = 0  # buffered of a response, so that the slot is free when the pod has finished
    file_bytes: int = 0  # more of each, in a temporary file


class ConnectionSpec(msgspec.Struct, frozen=True):
    """The connections to the pods of a revision."""

    protocol: str = "h1"  # h1 | h2c | h2 | alpn: over TLS, whichever the pod prefers
    tls: PodTls | None = None
    lenient: bool = False  # the response head may have the forms that old servers send
    proxy_protocol: str = ""  # v1 | v2: the header at the beginning of each connection; empty: none


class ProbingSpec(msgspec.Struct, frozen=True):
    """The probes of a revision's pods."""

    probe: ProbeSpec = ProbeSpec()
    checks: HealthCheckSpec | None = None  # checks of ready pods by `probe`; None: there are none


class HealthSpec(msgspec.Struct, frozen=True):
    """When failed requests eject a pod, and when a pod that is not ready is probed again."""

    strikes: int = _HEALTH.strikes
    ejection_share: float = _HEALTH.ejection_share
    stale_after_s: float = float(_HEALTH.stale_after)  # a pod that is not ready for this time is probed again; 0: never


class FiltersSpec(msgspec.Struct, frozen=True):
    """The filters of a revision's requests."""

    allow: tuple[str, ...] = ()  # networks
    rate_limit: RateLimitSpec | None = None
    forward_auth: ForwardAuthSpec | None = None
    of_packages: tuple[FilterSpec, ...] = ()
    fault: FaultSpec | None = None
    no_wake: tuple[QuietSpec, ...] = ()
    respond_async: AsyncSpec | None = None
    progress: ProgressSpec | None = None
    waiting_page: WaitingPageSpec | None = None  # None: browsers wait like other clients
    fallback: FallbackSpec | None = None
    quiet_tunnels_s: float = 0.0  # an open WebSocket counts for this time without traffic; 0.0: always
    quiet_streams_s: float = 0.0  # the same for an event stream
    server_timing: bool = False
    headers: HeaderRulesSpec | None = None
    record: RecordSpec | None = None


class KnativeSpec(msgspec.Struct, frozen=True):
    """The objects that a revision of Knative belongs to, from its labels."""

    service: str = ""
    configuration: str = ""


class RevisionSpec(msgspec.Struct, frozen=True):
    """One revision with resolved defaults; plain values only, because it is sent between the planes."""

    key: str  # namespace/name
    container_concurrency: int = 0
    is_once: bool = False  # a pod takes one request in its life
    upgrades: tuple[str, ...] = ("websocket",)
    routing: RoutingSpec = RoutingSpec()
    params: ParamsSpec = ParamsSpec()
    balancing: BalancingSpec = BalancingSpec()
    queue: QueueSpec = QueueSpec()
    timeouts: TimeoutsSpec = TimeoutsSpec()
    buffers: BuffersSpec = BuffersSpec()
    connection: ConnectionSpec = ConnectionSpec()
    probing: ProbingSpec = ProbingSpec()
    health: HealthSpec = HealthSpec()
    filters: FiltersSpec = FiltersSpec()
    knative: KnativeSpec = KnativeSpec()

    @property
    def drain_timeout_s(self) -> float:
        """The time for which a removed pod may finish its requests, in seconds: as long as a request may take."""
        return max(DRAIN_TIMEOUT_S, self.timeouts.total_s)

    def recorded_requests(self) -> int:
        """Return the number of last requests of which records are kept."""
        return 0 if self.filters.record is None else self.filters.record.requests


def reroute(spec: RevisionSpec, **changes: Any) -> RevisionSpec:
    """Return the revision with other values of fields of `routing`."""
    return msgspec.structs.replace(spec, routing=msgspec.structs.replace(spec.routing, **changes))


def stand_for_many(revision: Revision) -> bool:
    """Return True if the entries of `pods` may stand for more pods: names and files determine how many."""
    if revision.pods_file:
        return True
    for pod in revision.pods:
        if not isinstance(pod, str) and pod.srv:
            return True
        address = pod if isinstance(pod, str) else pod.address
        if is_unix(address):
            continue
        host = address.rpartition(":")[0].strip("[]")
        try:
            ipaddress.ip_address(host)
        except ValueError:
            return True
    return False


def resolve_buffers(buffer: Buffer, container_concurrency: int) -> BuffersSpec:
    """Return the buffers of a revision; by default, where one slow client could occupy a large share of a pod."""
    is_low_limit = 1 <= container_concurrency <= BUFFERED_CONCURRENCY_MAX
    request = (BUFFER_REQUEST_BYTES if is_low_limit else 0) if buffer.request is None else int(buffer.request)
    response = (BUFFER_RESPONSE_BYTES if is_low_limit else 0) if buffer.response is None else int(buffer.response)
    return BuffersSpec(request, response, int(buffer.file))


def concurrency_of(revision: Revision) -> int:
    """Return how many requests a pod takes at a time, 0 for no limit; 1 for a program that ends after one request."""
    return 1 if is_once(revision) else revision.container_concurrency


def is_once(revision: Revision) -> bool:
    """Return True if a pod of the revision takes one request in its life."""
    return revision.process is not None and revision.process.lifetime == LIFETIME_REQUEST


def resolve_program(revision: Revision, processors: int | None = None) -> Process | Container:
    """Return the program of a revision with its defaults resolved, from `scaling` if they are set there.

    `processors`: how many this machine has.
    """
    program = revision.program
    assert program is not None
    scaling = revision.scaling
    limit = concurrency_of(revision)
    min_scale = program.min_scale or scaling.min
    max_scale = program.max_scale or scaling.max
    if max_scale == 0:
        # A program without a limit handles many requests at once by itself; one with a limit needs several copies.
        max_scale = 1 if limit == 0 else processors or len(os.sched_getaffinity(0))
        minimums = (
            min_scale,
            scaling.initial_scale,
            scaling.activation_scale,
            *(entry.min for entry in scaling.schedule),
        )
        max_scale = max(max_scale, *minimums)
    if program.copies_max is not None:
        max_scale = min(max_scale, program.copies_max)
    grace = scaling.scale_to_zero_grace
    return msgspec.structs.replace(
        program,
        min_scale=min_scale,
        max_scale=max_scale,
        target_concurrency=program.target_concurrency or limit or TARGET_CONCURRENCY,
        idle=program.idle if grace is None else grace,
    )


class QuotaSpec(msgspec.Struct, frozen=True):
    """The limits of a user; 0: none."""

    concurrency: int = 0
    requests: int = 0
    requests_period_s: float = 1.0
    tokens: int = 0
    tokens_period_s: float = 1.0
    response_tokens: int = 1_000  # reserved for a response if the request does not bound it


class UserSpec(msgspec.Struct, frozen=True):
    """A user, with the SHA-256 of the key; the digest is empty for requests without a key."""

    name: str
    digest: bytes
    revisions: tuple[str, ...] | None  # namespace/name; None: all
    level: int = NO_LEVEL  # in queues with the discipline `priority`
    quota: QuotaSpec | None = None  # None: no limits
    used: tuple[float, float] | None = None  # requests and tokens of the quota, used before the program started
    weight: int = 1  # in queues with the discipline `fair`


def key_of(name: str) -> str:
    """Return the namespace/name of a revision given by name or namespace/name."""
    return name if "/" in name else f"default/{name}"
