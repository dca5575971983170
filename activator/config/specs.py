"""One revision with its defaults resolved: what sources make of the file or of a cluster, and messages carry.

Plain values only, since a specification is sent from the control plane to the data plane.
"""

from __future__ import annotations

import ipaddress
import os
from typing import Final

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
DRAIN_TIMEOUT_S: Final = 300.0  # of a removed pod, at the least: then its exchanges are aborted


# The file's defaults are those of a specification, too: each stands in `model/` only.
_HEALTH: Final = Health()
_QUEUE: Final = Queue()
_TIMEOUTS: Final = Timeouts()
_FALLBACK: Final = Fallback()
_CONFIG: Final = Config()


class DisciplineSpec(msgspec.Struct, frozen=True):
    """The order of waiting requests; what a discipline does not use is left at its default, so that equal is equal."""

    name: str = _QUEUE.discipline
    header: str = ""
    ageing_s: float = 0.0
    default: int = 0
    weights: dict[str, int] = {}


class RuleSpec(msgspec.Struct, frozen=True):
    path_prefix: str = "/"
    methods: tuple[str, ...] = ()
    exempt: bool = False
    charge: int = 1


class QuietSpec(msgspec.Struct, frozen=True):
    """Requests that wake nothing. What is empty is not looked at."""

    path: str = ""
    methods: tuple[str, ...] = ()
    user_agent: str = ""
    status: int = ASLEEP_STATUS


class AsyncSpec(msgspec.Struct, frozen=True):
    """How requests are answered later (RFC 7240) whose clients prefer that."""

    keep_s: float
    requests_max: int
    answer_bytes_max: int
    bytes_max: int  # of all its answers
    body_bytes_max: int  # of a request


class ProgressSpec(msgspec.Struct, frozen=True):
    """Comments in an event stream while a request has no answer."""

    after_s: float
    interval_s: float


class WaitingPageSpec(msgspec.Struct, frozen=True):
    """The page that browsers are shown during a start."""

    refresh_s: float
    template: str = ""  # empty: ours
    output: bool = False  # it shows the last lines of the program


class FallbackSpec(msgspec.Struct, frozen=True):
    """The substitute for a refusal: a body, a redirect or another revision."""

    body: str = ""
    content_type: str = _FALLBACK.content_type
    redirect: str = ""
    revision: str = ""  # namespace/name
    while_starting: bool = False  # also instead of the wait for a start


class ProbeSpec(msgspec.Struct, frozen=True):
    """How a pod is asked whether it takes requests."""

    # tcp: the port accepts; http: `path` answers 2xx or 3xx; grpc: gRPC's health service; queue-proxy: Knative's probe
    kind: str = PROBE_TCP
    path: str = ""  # empty: / for http, /healthz for queue-proxy
    host: str = ""  # empty: the pod's address
    headers: tuple[tuple[str, str], ...] = ()  # beside those that the kind has
    # Of the program behind queue-proxy: when it opens, asking is worthwhile (probes/tcp_probe.py); 0: unknown.
    port: int = 0
    port_suffices: bool = False  # queue-proxy itself looks for no more than that this port takes connections
    lenient: bool = False  # the answer's head may have the shapes of old servers
    identity_header: str = ""  # the answer's header that must hold the pod's identity; empty: it is not asked for
    http2: bool = False  # http: over HTTP/2, since the pod may speak nothing else
    service: str = ""  # grpc: the service asked about; empty: the server as a whole
    proxy_protocol: str = ""  # v1 | v2: what the connection begins with; empty: nothing


class HealthCheckSpec(msgspec.Struct, frozen=True):
    """Active health checks of ready pods: how often, and how many in a row count."""

    interval_s: float
    rise: int
    fall: int


class MatchSpec(msgspec.Struct, frozen=True):
    """Which requests for its hosts a revision takes. What is empty is not looked at."""

    path: str = ""  # a prefix of whole segments, normal (runtime/url_path.py), without a slash at its end
    strip_path: bool = False
    methods: tuple[str, ...] = ()
    headers: tuple[tuple[str, str], ...] = ()  # lowered names, sorted; all must have these values
    models: tuple[str, ...] = ()  # values of `model` in a JSON body; `name*`: all that begin so

    def is_every(self) -> bool:
        """Every request matches."""
        return not (self.path or self.methods or self.headers or self.models)


class FieldRulesSpec(msgspec.Struct, frozen=True):
    """Edits of header fields, in this order."""

    remove: tuple[str, ...] = ()
    set: tuple[tuple[str, str], ...] = ()
    append: tuple[tuple[str, str], ...] = ()


class HeaderRulesSpec(msgspec.Struct, frozen=True):
    """Edits of what pods are sent, and of what they respond."""

    request: FieldRulesSpec = FieldRulesSpec()
    response: FieldRulesSpec = FieldRulesSpec()


class FaultSpec(msgspec.Struct, frozen=True):
    """Requests that are delayed or refused on purpose."""

    delay_s: float
    delay_share: float
    status: int  # 0: none
    status_share: float


class FilterSpec(msgspec.Struct, frozen=True):
    """A filter that is not built in. A secret among its options is the place where it stands, or hidden in messages."""

    name: str
    options: tuple[tuple[str, str], ...] = ()

    def __repr__(self) -> str:
        return f"FilterSpec({self.name!r}, {[name for name, _ in self.options]})"


class RevisionSpec(msgspec.Struct, frozen=True):
    """One revision, defaults resolved; sent from the control plane to the data plane, so plain values only."""

    key: str  # namespace/name
    hosts: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()  # of its own: what comes there is for it, whatever the host
    is_left: bool = False  # clients that come there reach its pods without this program: their connections may end
    order: int = 0  # in the file, among revisions of one host: the first that matches is taken
    match: MatchSpec = MatchSpec()
    aliases: tuple[str, ...] = ()  # other names of its models
    rewrite_model: str = ""  # what the pod reads in the place of an alias; empty: the alias
    default: bool = False  # takes what no revision of its hosts matches
    weight: int = -1  # its part of the requests that others with the same `match` take as well; -1: it has none
    split_on: str = ""  # what decides of one request, as in `hash_on`; empty: each is the next one's turn
    container_concurrency: int = 0
    is_once: bool = False  # a pod takes one request in its life
    policy: str = "choice-of-2"
    hash_on: str = ""  # client_ip | header:… | cookie:…; empty: client_ip, if the policy asks
    slow_start_s: float = 0.0
    strikes: int = _HEALTH.strikes
    ejection_share: float = _HEALTH.ejection_share
    stale_after_s: float = float(_HEALTH.stale_after)  # a pod that is not ready for so long is asked again; 0: never
    probe: ProbeSpec = ProbeSpec()
    health_checks: HealthCheckSpec | None = None  # of ready pods, by `probe`; None: they are not asked
    max_scale: int = 0
    trailing_fragmentation_threshold: float = _CONFIG.trailing_fragmentation_threshold
    queue_depth: int = _QUEUE.depth
    queue_bytes: int = int(_QUEUE.bytes)  # 0: no bound of its own
    queue_timeout_s: float | None = None
    request_timeout: bool = False
    request_timeout_max_s: float | None = None
    admission: str = _QUEUE.admission
    discipline: DisciplineSpec = DisciplineSpec()
    queue_rules: tuple[RuleSpec, ...] = ()
    startup_timeout_s: float = float(_TIMEOUTS.startup)
    connect_timeout_s: float = float(_TIMEOUTS.connect)
    first_byte_timeout_s: float = float(_TIMEOUTS.first_byte)
    idle_timeout_s: float = float(_TIMEOUTS.idle)
    total_timeout_s: float = float(_TIMEOUTS.total)
    tunnel_idle_timeout_s: float = float(_TIMEOUTS.tunnel_idle)
    cancel_wait_s: float = 0.0  # how long a pod may finish a request that was given up; 0.0: its connection is closed
    times_from_arrival: bool = False  # the total and first-byte timeouts count the wait for a pod too, as Knative's do
    buffer_request_bytes: int = 0  # of a body, that is received before its request asks for a slot
    buffer_response_bytes: int = 0  # that is kept for a slow client, so that the slot is free when the pod has finished
    buffer_file_bytes: int = 0  # of each of both, that goes to a temporary file beyond that
    upgrades: tuple[str, ...] = ("websocket",)
    protocol: str = "h1"  # h1 | h2c | h2 | alpn: over TLS, what the pod prefers of both
    lenient_pods: bool = False
    proxy_protocol: str = ""  # v1 | v2: the header that each connection to a pod begins with; empty: none
    server_timing: bool = False
    headers: HeaderRulesSpec | None = None
    fault: FaultSpec | None = None
    filters: tuple[FilterSpec, ...] = ()
    no_wake: tuple[QuietSpec, ...] = ()
    waiting_page: WaitingPageSpec | None = None  # None: browsers wait like all others
    quiet_tunnels_s: float = 0.0  # without traffic: then an open WebSocket is no activity any more; 0.0: it always is
    quiet_streams_s: float = 0.0  # the same of an event stream
    respond_async: AsyncSpec | None = None
    progress: ProgressSpec | None = None
    fallback: FallbackSpec | None = None
    tls: PodTls | None = None
    knative_service: str = ""  # of its labels: what it belongs to
    knative_configuration: str = ""

    @property
    def drain_timeout_s(self) -> float:
        """How long a pod that was removed may go on with what it carries: as long as a request may take."""
        return max(DRAIN_TIMEOUT_S, self.total_timeout_s)


def stand_for_many(revision: Revision) -> bool:
    """Whether its fixed pods may be more than the entries of `pods`: names and files tell how many."""
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


def resolve_buffer(buffer: Buffer, container_concurrency: int) -> tuple[int, int, int]:
    """The bytes of requests, of responses and of files that a revision buffers.

    Where one client can hold a good part of a pod, its slowness is not to be the pod's: by default.
    """
    few = 1 <= container_concurrency <= BUFFERED_CONCURRENCY_MAX
    request = (BUFFER_REQUEST_BYTES if few else 0) if buffer.request is None else int(buffer.request)
    response = (BUFFER_RESPONSE_BYTES if few else 0) if buffer.response is None else int(buffer.response)
    return request, response, int(buffer.file)


def concurrency_of(revision: Revision) -> int:
    """Requests in one pod at a time; a program that ends after one takes one, whether the file says so or not."""
    return 1 if is_once(revision) else revision.container_concurrency


def is_once(revision: Revision) -> bool:
    return revision.process is not None and revision.process.lifetime == LIFETIME_REQUEST


def resolve_program(revision: Revision, processors: int | None = None) -> Process | Container:
    """The program of a revision that has one, with its defaults settled, from `scaling` where they stand there;
    `processors`: how many this machine has.
    """
    program = revision.program
    assert program is not None
    scaling = revision.scaling
    limit = concurrency_of(revision)
    min_scale = program.min_scale or scaling.min
    max_scale = program.max_scale or scaling.max
    if max_scale == 0:
        # A program that sets no limit handles many requests at once by itself; one with a limit needs company.
        max_scale = 1 if limit == 0 else processors or len(os.sched_getaffinity(0))
        least = (min_scale, scaling.initial_scale, scaling.activation_scale, *(one.min for one in scaling.schedule))
        max_scale = max(max_scale, *least)
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
