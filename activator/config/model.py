"""The configuration file, key by key: the name, meaning, unit, bounds, default and an example of each.

Rules
  1. The structs mirror the file of `activator run -c`; `file.py` reads it into them, `specs.py` has what the rest
     of the program sees of a revision. A bound that no file can change stands in the module that keeps it.
  2. A duration is seconds as float (`Duration`), a size is bytes as int (`Size`); in a file they are written `300ms`,
     `5s`, `2m`, `32KiB`, `1MiB`, or as plain numbers of seconds or bytes.
  3. Each key is described where it is defined, with `doc`. `activator schema`, editors and docs/configuration.md show
     that text; `make docs` writes the page.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec

from activator.runtime.units import GIB, KIB, MIB


class Duration(float):
    """Seconds."""


class Size(int):
    """Bytes."""


def doc(meaning: str, *examples: Any, words: tuple[str, ...] = ()) -> msgspec.Meta:
    """The documentation of one key. `examples` as in a file; `words`: the values that are allowed, if they are few."""
    return msgspec.Meta(
        description=meaning,
        examples=list(examples) or None,
        extra_json_schema={"enum": list(words)} if words else None,
    )


# --- bounds and words of what a file may hold -----------------------------------------------------------------------

DEFAULT_LISTEN: Final = "127.0.0.1:8012"
DEFAULT_ADMIN: Final = "127.0.0.1:8008"
PRIORITY_LEVELS: Final = 8  # of the discipline `priority`: 0 … 7
FAIR_WEIGHT_MAX: Final = 1_000
CHARGE_MAX: Final = 1_000
QUEUE_TIMEOUT_S: Final = 60.0  # the queue timeout of a revision that has had a ready pod
TARGET_CONCURRENCY: Final = 100  # of a pod, where the revision has no limit
TARGET_RPS: Final = 200  # of a pod, with `metric: rps`
STABLE_WINDOW_S: Final = 60.0
PROCESS_STABLE_WINDOW_S: Final = 10.0  # a process starts in a moment, so one that was stopped too early costs little
PANIC_WINDOW_SHARE: Final = 0.1  # of the stable window, rounded to whole seconds
SCALING_WINDOW_MAX_S: Final = 3600.0  # the stable window, the scale-down delay and the retention of the last pod
SCALE_TO_ZERO_GRACE_S: Final = 60.0
SCHEDULE_MAX: Final = 32  # entries of one revision
BUFFERED_CONCURRENCY_MAX: Final = 10  # up to this limit a slow client is a good part of a pod: it is buffered …
BUFFER_REQUEST_BYTES: Final = 64 * KIB  # … by default so much of its request …
BUFFER_RESPONSE_BYTES: Final = MIB  # … and of its response
TRACING_RATE: Final = 0.1
HEALTH_INTERVAL_S: Final = 2.0  # between two active health checks of a pod
HEALTH_RISE: Final = 2
HEALTH_FALL: Final = 3
WORKERS_MAX: Final = 256
AUTO: Final = "auto"
HASH_ON_CLIENT_IP: Final = "client_ip"
KNATIVE: Final = "knative"
ACTIVATIONS: Final = "activations"
SHARING_NONE: Final = "none"
SHARING_KNATIVE: Final = "knative"
SHARING_EXACT: Final = "exact"
STRICT: Final = "strict"
PROMPT: Final = "prompt"
METRIC_CONCURRENCY: Final = "concurrency"
METRIC_RPS: Final = "rps"
PROBE_TCP: Final = "tcp"
PROBE_HTTP: Final = "http"
PROBE_QUEUE_PROXY: Final = "queue-proxy"

TLS_VERSIONS: Final = ("1.2", "1.3")
ALPN_PROTOCOLS: Final = ("h2", "http/1.1")
POD_PROTOCOLS: Final = ("auto", "h1", "h2c", "h2")
SCALING_METRICS: Final = (METRIC_CONCURRENCY, METRIC_RPS)
WEEKDAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
ADMISSIONS: Final = ("off", "predictive")
DISCIPLINES: Final = ("fifo", "priority", "fair")
PROBE_GRPC: Final = "grpc"
PROBE_KINDS: Final = (PROBE_TCP, PROBE_HTTP, PROBE_GRPC, PROBE_QUEUE_PROXY)
FORWARDED_HEADERS: Final = ("x-forwarded", "forwarded", "both", "x-forwarded-for", "none")
KUBERNETES_MODES: Final = (KNATIVE, ACTIVATIONS)
SHARINGS: Final = (SHARING_NONE, SHARING_KNATIVE, SHARING_EXACT)
PROOFS: Final = (STRICT, PROMPT)
LOG_FORMATS: Final = ("console", "json")
LOG_LEVELS: Final = ("debug", "info", "warning", "error")
METRICS_PROTOCOLS: Final = ("none", "prometheus", "http/protobuf")
EXPORTERS: Final = ("none", "otlp")

# By name: whether it is a part of ours, or a library.
LOG_PARTS: Final[dict[str, bool]] = {
    "access_log": True,
    "autoscaler": True,
    "certificates": True,
    "control": True,
    "data": True,
    "knative": True,
    "kubernetes": True,
    "members": True,
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

# --- the file -------------------------------------------------------------------------------------------------------

Count = Annotated[int, msgspec.Meta(ge=0)]
WorkerCount = Annotated[int, msgspec.Meta(ge=1, le=WORKERS_MAX)]
Positive = Annotated[int, msgspec.Meta(ge=1)]
Nice = Annotated[int, msgspec.Meta(ge=-20, le=19)]
Weight = Annotated[int, msgspec.Meta(ge=0, le=1000)]
Share = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
Utilization = Annotated[float, msgspec.Meta(ge=0.01, le=1.0)]
Target = Annotated[float, msgspec.Meta(ge=0.01)]
PanicThreshold = Annotated[float, msgspec.Meta(ge=1.1, le=10.0)]
ScaleRate = Annotated[float, msgspec.Meta(ge=1.01, le=10_000.0)]
Level = Annotated[int, msgspec.Meta(ge=0, le=PRIORITY_LEVELS - 1)]
Charge = Annotated[int, msgspec.Meta(ge=1, le=CHARGE_MAX)]
FairWeight = Annotated[int, msgspec.Meta(ge=1, le=FAIR_WEIGHT_MAX)]
Port = Annotated[int, msgspec.Meta(ge=1, le=65_535)]


class CertificateFiles(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One of several certificates of a listener. A client gets the first that has the name that it asks for (SNI)."""

    certificate: Annotated[str, doc("A file with the certificate chain, in PEM.", "a.crt")]
    key: Annotated[str, doc("A file with the private key of the certificate, in PEM.", "a.key")]


class Tls(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A listener with TLS. It has either `certificate` and `key`, or `certificates`."""

    address: Annotated[str, doc("The host and port to listen on.", "0.0.0.0:8443")]
    certificate: Annotated[
        str,
        doc("A file with the certificate chain, in PEM. The files are read again when they change.", "tls.crt"),
    ] = ""
    key: Annotated[str, doc("A file with the private key of the certificate, in PEM.", "tls.key")] = ""
    min_version: Annotated[str, doc("The lowest TLS version that is accepted.", "1.3", words=TLS_VERSIONS)] = "1.2"
    certificates: Annotated[
        list[CertificateFiles],
        doc(
            "Several certificates; a client gets the first that has the name that it asks for, exactly or by a "
            "wildcard, else the first of all. Two for the same names may have keys of different types.",
            [{"certificate": "a.crt", "key": "a.key"}, {"certificate": "b.crt", "key": "b.key"}],
        ),
    ] = []
    alpn: Annotated[
        list[Annotated[str, doc("A protocol.", "h2", words=ALPN_PROTOCOLS)]],
        doc("The protocols that are offered to clients, the preferred one first.", ["http/1.1"]),
    ] = msgspec.field(default_factory=lambda: [*ALPN_PROTOCOLS])


class PodTls(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """TLS on the connections to the pods of a revision."""

    ca: Annotated[
        str,
        doc(
            "The certificate authorities that sign the certificates of the pods: a file in PEM, or the PEM text. "
            "Empty: the authorities of the system.",
            "ca.crt",
        ),
    ] = ""
    server_name: Annotated[
        str,
        doc(
            "The name that is sent in SNI and that the certificate must have. Empty: the address of the pod.",
            "model.internal",
        ),
    ] = ""
    san: Annotated[str, doc("One more DNS name that the certificate must have. Empty: none.", "kn-user-default")] = ""
    min_version: Annotated[str, doc("The lowest TLS version that is accepted.", "1.3", words=TLS_VERSIONS)] = "1.2"
    verify: Annotated[bool, doc("Whether the certificate of the pod is verified.", False)] = True
    certificate: Annotated[
        str, doc("A file with a client certificate, in PEM, for pods that require one. Empty: none.", "client.crt")
    ] = ""
    key: Annotated[str, doc("A file with the private key of the client certificate, in PEM.", "client.key")] = ""


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bounds of one activator process. A request above a bound is rejected with the status that is given here."""

    header_bytes: Annotated[
        Size, doc("The request line and all header fields together, in bytes. Above: 431.", "64KiB")
    ] = Size(32 * KIB)
    headers: Annotated[Positive, doc("The number of header fields of a request. Above: 431.", 200)] = 100
    body_bytes: Annotated[Size, doc("The body of a request, in bytes. Above: 413. 0: no limit.", "10MiB")] = Size(0)
    held_bytes: Annotated[
        Size,
        doc(
            "The bodies that are held for all requests of the process, in bytes. Above: 503. Buffers (`buffer`) use "
            "half of it at most.",
            "1GiB",
        ),
    ] = Size(256 * MIB)
    held_requests: Annotated[
        Positive, doc("The number of waiting requests of all revisions together. Above: 503.", 50_000)
    ] = 10_000
    connections: Annotated[
        Positive,
        doc(
            "The number of connections of clients. Above: 503, and the connection is closed. Half of the file "
            "descriptors that the system allows, less 128, is a second limit.",
            20_000,
        ),
    ] = 10_000
    worker_stall: Annotated[
        Duration,
        doc(
            "A worker process whose event loop has not turned for this time is killed and replaced. 0: never. Only if "
            "there are several `workers`.",
            "30s",
        ),
    ] = Duration(10.0)
    idle: Annotated[
        Duration, doc("The time that a connection of a client may stay without a request. Then it is closed.", "5m")
    ] = Duration(75.0)
    file_bytes: Annotated[
        Size, doc("The temporary files of all requests together (`buffer.file`), in bytes.", "10GiB")
    ] = Size(GIB)
    send_timeout: Annotated[
        Duration,
        doc(
            "The time in which a client must take some of a response that waits for it. Longer: the response is cut. "
            "0: no limit.",
            "5m",
        ),
    ] = Duration(60.0)
    streams: Annotated[
        Positive,
        doc("The number of requests that a client may have open on one HTTP/2 connection. Above: REFUSED_STREAM.", 250),
    ] = 128
    body_rate: Annotated[
        Count,
        doc(
            "The lowest rate of a request body, in bytes per second, measured over 5 s until the response begins. "
            "Slower: 408. 0: no limit.",
            1_000,
        ),
    ] = 240


class QueueRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An exception for some requests. The first rule that matches a request applies."""

    path_prefix: Annotated[str, doc("The beginning of the path, as it was sent.", "/healthz")] = "/"
    methods: Annotated[list[str], doc("The methods that match. Empty: all methods.", ["GET", "HEAD"])] = []
    exempt: Annotated[bool, doc("The request does not wait, also when every pod is full.", True)] = False
    charge: Annotated[
        Charge, doc("With `discipline: fair`: the request counts as this many requests of its key.", 5)
    ] = 1


class Queue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The queue of requests that wait for a slot of this revision."""

    depth: Annotated[
        Count, doc("The number of requests that may wait. Above: 503 with `Retry-After`. 0: none may wait.", 100)
    ] = 10_000
    bytes: Annotated[
        Size,
        doc("The request bodies held for them, in bytes. Above: 503. 0: only `limits.held_bytes` applies.", "64MiB"),
    ] = Size(0)
    timeout: Annotated[
        Duration | None,
        doc(
            "The time that a request may wait; then 504. Not set: `timeouts.startup` and 5 s until a pod of the "
            f"revision has been ready, {QUEUE_TIMEOUT_S:.0f} s after that.",
            "30s",
        ),
    ] = None
    request_timeout: Annotated[
        bool,
        doc("Whether a client may set the time with `Activator-Queue-Timeout` or `Activator-Deadline`.", True),
    ] = False
    request_timeout_max: Annotated[
        Duration | None,
        doc("The longest time that `Activator-Queue-Timeout` may set. Not set: it can only shorten the time.", "2m"),
    ] = None
    admission: Annotated[
        str,
        doc(
            "`predictive` rejects a request at arrival if no slot can be free before its deadline.",
            "predictive",
            words=ADMISSIONS,
        ),
    ] = "off"
    discipline: Annotated[
        str,
        doc(
            "The order of the queue: by arrival, by the level in `header`, or in turns between the keys in `header`.",
            "priority",
            words=DISCIPLINES,
        ),
    ] = "fifo"
    header: Annotated[
        str,
        doc("The request header with the level (`priority`) or with the key (`fair`). Both need it.", "X-Priority"),
    ] = ""
    ageing: Annotated[
        Duration,
        doc("With `discipline: priority`: a request moves up one level for each such time that it waits.", "5s"),
    ] = Duration(10.0)
    default: Annotated[Level, doc("With `discipline: priority`: the level of a request without a valid one.", 3)] = 0
    weights: Annotated[
        dict[str, FairWeight],
        doc("With `discipline: fair`: the weights of keys. A key that is not in the list has weight 1.", {"paying": 3}),
    ] = {}
    rules: Annotated[list[QueueRule], doc("Exceptions for some requests, at most 32.")] = []


class Buffer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is kept for slow clients, so that they hold no slot of a pod. Server-sent events, gRPC and upgraded
    connections are not buffered, nor responses with `X-Accel-Buffering: no`.
    """

    request: Annotated[
        Size | None,
        doc(
            "The part of a request body that is received before the request gets a slot. 0: none. Not set: 64KiB if "
            f"`container_concurrency` is 1 to {BUFFERED_CONCURRENCY_MAX}, else 0.",
            "1MiB",
        ),
    ] = None
    response: Annotated[
        Size | None,
        doc(
            "The part of a response that is kept when its client is slow; the slot is free when the pod has finished. "
            f"0: none. Not set: 1MiB if `container_concurrency` is 1 to {BUFFERED_CONCURRENCY_MAX}, else 0.",
            "8MiB",
        ),
    ] = None
    file: Annotated[
        Size,
        doc(
            "What may be kept beyond that, of each, in an unnamed temporary file (in the directory of `TMPDIR`).",
            "1GiB",
        ),
    ] = Size(0)


class Timeouts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The times that one request may take after it has a slot, and the time of a start."""

    total: Annotated[Duration, doc("From the slot to the end of the response. Longer: 504. 0: no limit.", "10m")] = (
        Duration(300.0)
    )
    first_byte: Annotated[
        Duration, doc("From the slot to the first byte of the response. Longer: 504. 0: no limit.", "30s")
    ] = Duration(0.0)
    idle: Annotated[
        Duration, doc("Between two parts of the response. Longer: 504, or the response is cut. 0: no limit.", "30s")
    ] = Duration(0.0)
    tunnel_idle: Annotated[
        Duration,
        doc("The time that an upgraded connection may carry nothing in either direction. 0: no limit.", "10m"),
    ] = Duration(3600.0)
    connect: Annotated[Duration, doc("The time of a connection attempt to a pod. Longer: another pod.", "1s")] = (
        Duration(5.0)
    )
    unreachable: Annotated[
        Duration,
        doc(
            "The time that all fixed pods of a revision may not answer. Longer: 503 with the cause, until one answers. "
            "0: requests wait.",
            "30s",
        ),
    ] = Duration(3.0)
    startup: Annotated[Duration, doc("The time that a revision may need from zero to its first ready pod.", "10m")] = (
        Duration(300.0)
    )


class Readiness(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a local process is probed."""

    http_get: Annotated[
        str, doc("A path that must be answered with 2xx or 3xx. Empty: the port must accept connections.", "/health")
    ] = ""
    grpc: Annotated[
        str | None,
        doc(
            "The service that gRPC's health service must call SERVING; empty: the server as a whole. Not set: it is "
            "not asked.",
            "",
        ),
    ] = None
    log: Annotated[
        str,
        doc(
            "A regular expression: the first line of the output that it is found in shows that the process is ready; "
            "no connection is made. Of a line the first 4096 bytes count. Many programs buffer their standard output "
            "when it is no terminal (Python: set `PYTHONUNBUFFERED`). Empty: the output is not looked at.",
            "listening on port [0-9]+",
        ),
    ] = ""
    command: Annotated[
        list[str],
        doc(
            "A command that shows by the exit code 0 that the process is ready; nothing else connects to the program "
            "before. It is run as the program is (directory, variables, user), with `{port}` replaced. It is asked "
            "again after `interval`; one that takes longer than 10 s is ended. Empty: none.",
            ["pg_isready", "-p", "{port}"],
        ),
    ] = []
    interval: Annotated[
        Duration, doc("The longest time between two probes while the process starts. The first steps are 2 ms.", "1s")
    ] = Duration(0.1)


class Stop(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a local process is ended, once it has no request any more."""

    signal: Annotated[
        str,
        doc("The name of the signal that its process group gets first.", "SIGINT"),
    ] = "SIGTERM"
    command: Annotated[
        list[str],
        doc(
            "A command that is run in the place of the signal, as the program is, with `{port}` replaced. Empty: none.",
            ["nginx", "-s", "quit"],
        ),
    ] = []
    grace: Annotated[
        Duration, doc("The time that it has to end then. Longer: its process group gets SIGKILL.", "20s")
    ] = Duration(10.0)


class Logs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the output of a program goes. `activator logs NAME` shows the last lines in every case."""

    show: Annotated[
        bool,
        doc("Whether lines are written to the output of the activator, with the name of the process in front.", False),
    ] = True
    file: Annotated[
        str,
        doc(
            "A file that lines are appended to, with the time and the name of the process in front. A relative path "
            "begins at `directory`; `~`, `$VAR` and `${VAR}` are expanded. Empty: none.",
            "~/logs/model.log",
        ),
    ] = ""
    max_size: Annotated[
        Size, doc("The size at which the file is renamed to `FILE.1`, an older one to `FILE.2`, and so on.", "50MiB")
    ] = Size(10 * MIB)
    keep: Annotated[Positive, doc("The number of older files that are kept.", 9)] = 5


class Process(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A program on this machine. Each process of it is a pod; the activator starts and stops them by load."""

    command: Annotated[
        list[str],
        doc(
            "The program and its arguments. `{port}` is replaced by the port that the process must listen on; the "
            "environment variable `PORT` has the same value. No shell reads it: nothing else is expanded.",
            ["python3", "serve.py", "--port", "{port}"],
        ),
    ]
    port: Annotated[
        Port | None,
        doc(
            "The port that the program listens on, if it cannot be told one: there is one copy then. A port that "
            "another program uses is an error at the start. Not set: a free port for each process.",
            8080,
        ),
    ] = None
    readiness: Annotated[Readiness, doc("How a process is probed before it gets requests.")] = Readiness()
    stop: Annotated[Stop, doc("How a process is ended.")] = Stop()
    logs: Annotated[Logs, doc("Where its output goes.")] = Logs()
    min_scale: Annotated[
        Count, doc("The number of processes that always run. 0: the program is stopped when it is idle.", 1)
    ] = 0
    max_scale: Annotated[
        Count,
        doc(
            "The highest number of processes. 0: one if `container_concurrency` is 0, else the number of processors; "
            "at least `min_scale`.",
            4,
        ),
    ] = 0
    target_concurrency: Annotated[
        Count,
        doc(
            "The number of requests per process that the scaling aims at: wanted processes = requests in flight and "
            f"waiting / this number. 0: `container_concurrency`, or {TARGET_CONCURRENCY} if that is 0.",
            10,
        ),
    ] = 0
    idle: Annotated[Duration, doc("The time without a request after which the number falls to `min_scale`.", "5m")] = (
        Duration(60.0)
    )
    environment: Annotated[
        dict[str, str],
        doc(
            "Environment variables of the program, added to those of the activator and of `env_file`.",
            {"MODEL": "small"},
        ),
    ] = {}
    env_file: Annotated[
        str,
        doc(
            "A file with more variables, `KEY=VALUE` in each line; it is read at each start of a process. A relative "
            "path begins at `directory`. `~`, `$VAR` and `${VAR}` are expanded, as in `directory`. Empty: none.",
            ".env",
        ),
    ] = ""
    directory: Annotated[
        str,
        doc(
            "The working directory of the program. `~`, `$VAR` and `${VAR}` are expanded. Empty: that of the "
            "activator.",
            "~/models/$MODEL",
        ),
    ] = ""
    user: Annotated[
        str,
        doc(
            "The user that the program runs as: a name or a number, and behind a colon the group, if it is another one "
            "than the user's own. The activator must be root. HOME, USER and LOGNAME are set. Empty: the user of the "
            "activator.",
            "www-data",
        ),
    ] = ""
    nice: Annotated[Nice, doc("The niceness of the program: 19 gives way to all others; below 0 needs root.", 10)] = 0
    cpus: Annotated[
        str, doc("The processors that the program may run on, numbers and ranges. Empty: all.", "0-3,6")
    ] = ""
    memory: Annotated[
        Size,
        doc(
            "The memory that each process of the program may ask for (RLIMIT_DATA: heap and private mappings). What it "
            "asks for beyond that is refused. 0: no limit.",
            "2GiB",
        ),
    ] = Size(0)


class ScheduledScale(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Hours in which there are at least so many pods."""

    min: Annotated[Positive, doc("The number of pods that run in these hours, also without load.", 2)]
    from_: Annotated[str, doc("The hour at which it begins, `HH:MM`.", "08:00")] = msgspec.field(
        name="from", default="00:00"
    )
    until: Annotated[
        str,
        doc(
            "The hour at which it ends, `HH:MM`. Not later than `from`: on the next day. The same as `from`: 24 hours.",
            "18:30",
        ),
    ] = "00:00"
    days: Annotated[
        list[Annotated[str, doc("A day of the week.", "mon", words=WEEKDAYS)]],
        doc("The days on which it begins.", ["mon", "tue", "wed", "thu", "fri"]),
    ] = msgspec.field(default_factory=lambda: [*WEEKDAYS])
    time_zone: Annotated[str, doc("The IANA name of the time zone of the hours.", "Europe/Berlin")] = "UTC"


class Scaling(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many pods there are, by load. Names and rules are those of the autoscaler of Knative (docs/scaling.md)."""

    min: Annotated[Count, doc("The number of pods that always run. 0: none, if there is no load.", 1)] = 0
    max: Annotated[
        Count, doc("The highest number of pods. 0: as `process.max_scale`; without a process, no bound.", 10)
    ] = 0
    metric: Annotated[
        str,
        doc(
            "`concurrency`: requests that are here at the same time. `rps`: requests per second.",
            METRIC_RPS,
            words=SCALING_METRICS,
        ),
    ] = METRIC_CONCURRENCY
    target: Annotated[
        Target | None,
        doc(
            "The value of the metric that is aimed at for each pod. Not set: `container_concurrency`, or "
            f"{TARGET_CONCURRENCY} if that is 0; with `metric: rps` {TARGET_RPS}.",
            10,
        ),
    ] = None
    utilization: Annotated[
        Utilization, doc("The share of the target that is aimed at, to have room for more requests.", 0.7)
    ] = 1.0
    stable_window: Annotated[
        Duration | None,
        doc(
            "The time over which the load is averaged; whole seconds. Not set: "
            f"{PROCESS_STABLE_WINDOW_S:.0f} s for processes, else {STABLE_WINDOW_S:.0f} s.",
            "60s",
        ),
    ] = None
    panic_window: Annotated[
        Duration | None,
        doc(
            "The shorter time over which a sudden rise of the load is noticed; whole seconds. Not set: a tenth of "
            "`stable_window`, at least 1 s.",
            "6s",
        ),
    ] = None
    panic_threshold: Annotated[
        PanicThreshold,
        doc(
            "Panic begins when the average over the panic window needs this many times the ready pods. In panic the "
            "number does not fall until the load was below this for `stable_window`.",
            1.5,
        ),
    ] = 2.0
    scale_up_rate: Annotated[
        ScaleRate, doc("The number may grow to this many times the ready pods at one decision (every 2 s).", 10)
    ] = 1000.0
    scale_down_rate: Annotated[
        ScaleRate, doc("The number may fall to the ready pods divided by this at one decision (every 2 s).", 4)
    ] = 2.0
    scale_down_delay: Annotated[
        Duration, doc("The number falls only to the most that was wanted in this time.", "5m")
    ] = Duration(0.0)
    initial_scale: Annotated[
        Count, doc("The number of pods that a new revision begins with, until so many have been ready.", 1)
    ] = 0
    activation_scale: Annotated[
        Positive, doc("The least number of pods while there is load: from zero it rises to this number.", 2)
    ] = 1
    scale_to_zero_grace: Annotated[
        Duration | None,
        doc(
            "The time without a request after which the number falls to `min`. Not set: `process.idle`; without a "
            f"process {SCALE_TO_ZERO_GRACE_S:.0f} s.",
            "5m",
        ),
    ] = None
    last_pod_retention: Annotated[
        Duration, doc("The time that the last pod stays after that, before the number falls to zero.", "10m")
    ] = Duration(0.0)
    burst: Annotated[
        bool | None,
        doc(
            "Whether the number rises at once when more requests are here than the pods are meant for, without waiting "
            "for an average. Not set: true for processes with `metric: concurrency`, else false.",
            False,
        ),
    ] = None
    schedule: Annotated[
        list[ScheduledScale],
        doc(
            f"Minimum numbers of pods by weekday and hour, at most {SCHEDULE_MAX}. The greatest that applies counts.",
            [{"min": 2, "from": "08:00", "until": "18:00", "days": ["mon", "fri"], "time_zone": "Europe/Berlin"}],
        ),
    ] = []


class Pod(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A fixed pod with settings of its own."""

    address: Annotated[
        str, doc("The host and port of the pod. A name stands for a pod at each of its addresses.", "127.0.0.1:9001")
    ] = ""
    weight: Annotated[
        Weight,
        doc(
            "With `policy: weighted`: its share of the requests. 0: only when no other pod has a free slot. Pods of "
            "`srv` have the weights of their records.",
            3,
        ),
    ] = 1
    srv: Annotated[
        str,
        doc(
            "In the place of `address`: a name whose SRV records tell addresses and ports.", "_http._tcp.model.internal"
        ),
    ] = ""


class HashOn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The key of a request for `policy: consistent-hash`. Exactly one of the two."""

    header: Annotated[str, doc("The request header whose value is the key.", "X-User")] = ""
    cookie: Annotated[str, doc("The cookie whose value is the key.", "session")] = ""


class Probe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How fixed pods, and pods that report themselves, are probed."""

    kind: Annotated[
        str,
        doc(
            "`tcp`: the port accepts connections. `http`: `path` is answered with 2xx or 3xx. `grpc`: gRPC's health "
            "service says SERVING. `queue-proxy`: the probe of Knative. Empty: `http` if `path` or `identity_header` "
            "is set, else `tcp`.",
            "http",
            words=("", *PROBE_KINDS),
        ),
    ] = ""
    path: Annotated[str, doc("With `http`: the path of the probe. Empty: `/`.", "/ready")] = ""
    service: Annotated[
        str, doc("With `grpc`: the service that is asked about. Empty: the server as a whole.", "model.Inference")
    ] = ""
    host: Annotated[
        str, doc("With `http`: the `Host` of the probe. Empty: the address of the pod.", "model.internal")
    ] = ""
    identity_header: Annotated[
        str,
        doc(
            "With `http`: the response header that must hold the identity of the pod. Each new connection to the pod "
            "is checked as well. Not for fixed pods.",
            "X-Pod-Uid",
        ),
    ] = ""


class Health(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What becomes of pods that fail or are not ready for long. For every revision that has no value of its own."""

    strikes: Annotated[
        Positive,
        doc("The number of failures in a row (no answer, broken connection) that put a pod into quarantine.", 5),
    ] = 3
    ejection_share: Annotated[
        Share,
        doc(
            "The share of the pods that may be in quarantine for such failures at the same time. It is rounded down, "
            "to at least one pod; the last ready pod stays.",
            0.3,
        ),
    ] = 0.5
    stale_after: Annotated[
        Duration,
        doc(
            "A pod that has not been ready for this time is probed again, unless its source decides whether it is "
            "ready (Kubernetes does for an exec readiness probe or a startup probe). 0: never.",
            "1m",
        ),
    ] = Duration(600.0)


class RevisionHealth(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The same of one revision, and active health checks of its ready pods."""

    strikes: Annotated[Positive | None, doc("As `health.strikes`. Not set: that value.", 5)] = None
    ejection_share: Annotated[Share | None, doc("As `health.ejection_share`. Not set: that value.", 0.3)] = None
    stale_after: Annotated[Duration | None, doc("As `health.stale_after`. Not set: that value.", "1m")] = None
    http_get: Annotated[
        str,
        doc(
            "A path that pods must answer with 2xx or 3xx, before they get requests and while they are ready (active "
            "health checks). Empty: as `probe`.",
            "/health",
        ),
    ] = ""
    interval: Annotated[
        Duration | None,
        doc(
            "The time between two health checks of a ready pod. 0: ready pods are not checked. Not set: 2 s with "
            "`http_get`, else 0.",
            "5s",
        ),
    ] = None
    rise: Annotated[
        Positive | None, doc("The checks in a row that a failed pod must pass before its trial. Not set: 2.", 1)
    ] = None
    fall: Annotated[
        Positive | None, doc("The checks in a row that a ready pod fails before it is taken out. Not set: 3.", 2)
    ] = None


class JsonMatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a member of the request body, a JSON object, must be. It must stand in the first 64 KiB of the body."""

    model: Annotated[
        list[str],
        doc("The values of `model` that match; `name*` matches all that begin so.", ["llama-3-8b", "llama-*"]),
    ]


class Match(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which requests for its hosts a revision takes. All keys that are set must match; without any, all requests do."""

    path: Annotated[
        str, doc("A beginning of the path, in whole segments: `/v1` matches /v1 and /v1/x. Empty: any.", "/v1")
    ] = ""
    strip_path: Annotated[
        bool,
        doc("Whether the pod gets the path without `path`. `X-Forwarded-Prefix` tells it what was left out.", True),
    ] = False
    methods: Annotated[list[str], doc("The methods that match. Empty: all methods.", ["POST"])] = []
    headers: Annotated[
        dict[str, str],
        doc(
            "Request headers and their exact values; all must match. Of several of one name the first counts.",
            {"x-team": "ml"},
        ),
    ] = {}
    json: Annotated[JsonMatch | None, doc("What the request body must say. Not set: it is not looked at.")] = None


class Revision(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One version of a service, with its pods."""

    name: Annotated[str, doc("The name of the revision; unique in its namespace.", "model")]
    namespace: Annotated[str, doc("The namespace, for metrics and for the revision headers.", "production")] = "default"
    hosts: Annotated[
        list[str],
        doc(
            "The hosts that lead to this revision, without a port. `*.example.com` matches every name below it, `*` "
            "matches all. Optional only with `trust_revision_headers`.",
            ["model.localhost", "*.model.example.com"],
        ),
    ] = []
    match: Annotated[
        Match | None,
        doc("Which requests for these hosts are for this revision ([routing](routing.md)). Not set: all."),
    ] = None
    aliases: Annotated[list[str], doc("Other names of its models, beside `match.json.model`.", ["gpt-4o-mini"])] = []
    rewrite_model: Annotated[
        str,
        doc(
            "The name that the pod reads as `model` if one of `aliases` was asked for. Empty: the alias.", "llama-3-8b"
        ),
    ] = ""
    default: Annotated[
        bool, doc("Whether the revision takes what no revision matches. At most one for each host.", True)
    ] = False
    weight: Annotated[
        Weight | None,
        doc("The share of requests, if several revisions have the same `hosts`, `match` and `aliases`.", 90),
    ] = None
    split_on: Annotated[
        str | HashOn | None,
        doc(
            "With `weight`: requests of one key go to the same revision. Not set: the revisions take turns.",
            HASH_ON_CLIENT_IP,
            {"cookie": "session"},
        ),
    ] = None
    container_concurrency: Annotated[
        Count, doc("The number of requests that one pod may have in flight. 0: no limit.", 1)
    ] = 0
    policy: Annotated[
        str,
        doc(
            "The load balancing policy, by name, or `package.module:Class`. Empty: `choice-of-2` if "
            "`container_concurrency` is 0, `first-available` for 1 to 3, `round-robin` from 4 on.",
            "least-connections",
        ),
    ] = ""
    hash_on: Annotated[
        str | HashOn | None,
        doc(
            "With `policy: consistent-hash`: the key of a request. Not set: `client_ip`.",
            HASH_ON_CLIENT_IP,
            {"cookie": "session"},
        ),
    ] = None
    slow_start: Annotated[
        Duration, doc("The time in which the share of a new pod grows to its full share. 0: none.", "30s")
    ] = Duration(0.0)
    max_scale: Annotated[
        Count,
        doc(
            "The highest number of pods; the table of slots has twice that size. 0: the number of `pods`, or "
            "`process.max_scale`; without both it is unknown and the table grows when needed.",
            100,
        ),
    ] = 0
    trailing_fragmentation_threshold: Annotated[
        Share | None,
        doc("As the key of the same name for all revisions. Not set: that value.", 0.25),
    ] = None
    queue: Annotated[Queue, doc("The queue of waiting requests.")] = Queue()
    timeouts: Annotated[Timeouts, doc("The times that a request and a start may take.")] = Timeouts()
    buffer: Annotated[Buffer, doc("What is kept for slow clients, so that they hold no slot.")] = Buffer()
    health: Annotated[
        RevisionHealth, doc("Health checks: passive ones where they differ from `health`, and active ones.")
    ] = RevisionHealth()
    probe: Annotated[Probe | None, doc("How the pods are probed. Not set: the port must accept connections.")] = None
    upgrades: Annotated[
        list[str],
        doc(
            'Protocols that a connection may be upgraded to. `"*"`: all but HTTP/2 and TLS.', ["websocket", "spdy/3.1"]
        ),
    ] = msgspec.field(default_factory=lambda: ["websocket"])
    pods: Annotated[
        list[str | Pod],
        doc(
            "Fixed pods, each an address or a mapping. A revision has either `pods` or `process`.",
            ["127.0.0.1:9001", {"address": "127.0.0.1:9002", "weight": 3}],
        ),
    ] = []
    pods_file: Annotated[
        str,
        doc(
            "A file with more fixed pods: a list as in `pods`, in JSON or YAML. It is read again when it changes.",
            "pods.json",
        ),
    ] = ""
    protocol: Annotated[
        str,
        doc(
            "What is spoken with the pods. `h1`: HTTP/1.1. `h2c`: HTTP/2 without TLS, as gRPC servers do. `h2`: HTTP/2 "
            "over TLS. `auto`: over TLS what the pod prefers (ALPN), else HTTP/1.1, unless Kubernetes says otherwise "
            "by the name of a port.",
            "h2c",
            words=POD_PROTOCOLS,
        ),
    ] = "auto"
    lenient_pods: Annotated[
        bool,
        doc(
            "Whether heads of responses may have the shapes of old servers: bare line feeds, continued lines, spaces "
            "before a colon, empty lines before the status line. Clients get them in order.",
            True,
        ),
    ] = False
    server_timing: Annotated[
        bool, doc("Adds the response header `Server-Timing` with the time of each phase of the request.", True)
    ] = False
    tls: Annotated[PodTls | None, doc("TLS on the connections to the pods. Not set: without TLS.")] = None
    process: Annotated[Process | None, doc("A program on this machine that the activator starts and stops.")] = None
    scaling: Annotated[Scaling, doc("How many processes there are, by load.")] = Scaling()


class Dns(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who is asked for the addresses of names in `pods`."""

    servers: Annotated[
        list[str],
        doc(
            "Name servers, each an IP address, with a port if it is not 53. Empty: those of /etc/resolv.conf.",
            ["10.0.0.2"],
        ),
    ] = []
    timeout: Annotated[Duration, doc("The time of one question, with its repetitions.", "2s")] = Duration(5.0)


class Forwarded(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The header fields that tell pods where a request came from."""

    trust: Annotated[
        list[str],
        doc("Networks of proxies whose `X-Forwarded-…` and `Forwarded` fields are trusted.", ["10.0.0.0/8"]),
    ] = []
    headers: Annotated[
        str,
        doc(
            "The fields that are written: `X-Forwarded-For`, `-Proto` and `-Host`; `Forwarded` (RFC 7239); both; "
            "`X-Forwarded-For` alone; none.",
            "both",
            words=FORWARDED_HEADERS,
        ),
    ] = "x-forwarded"
    request_id: Annotated[
        bool,
        doc(
            "Whether `X-Request-Id` is written: a valid one is kept, otherwise a new one is made. `false`: it is "
            "passed on unchanged.",
            False,
        ),
    ] = True
    via: Annotated[str, doc("The name of this proxy in `Via`. Empty: `Via` is not written.", "activator")] = ""


class Shutdown(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What happens after SIGTERM."""

    delay: Annotated[
        Duration,
        doc("The program is not ready but still serves for this time, until all load balancers know.", "10s"),
    ] = Duration(0.0)
    timeout: Annotated[Duration, doc("After `delay`: the time for requests to end. Then they are aborted.", "5m")] = (
        Duration(30.0)
    )
    tunnels: Annotated[
        Duration, doc("After `delay`: the time for upgraded connections to end. Then they are closed.", "1m")
    ] = Duration(30.0)
    panic_grace: Annotated[
        Duration,
        doc(
            "The control plane has failed too often in a row: after this time more the program drains and exits with "
            "code 4. 0: never.",
            "5m",
        ),
    ] = Duration(60.0)


class Push(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The endpoint where pods report their own state."""

    listen: Annotated[str, doc("The host and port to listen on. Empty: no endpoint.", "127.0.0.1:8014")] = ""
    token: Annotated[
        str, doc("The bearer token that a report needs. Required if others than this machine can connect.", "s3cret")
    ] = ""
    token_file: Annotated[str, doc("A file that holds the token, instead of `token`.", "/run/activator/token")] = ""
    networks: Annotated[
        list[str],
        doc("Pods with an address in these networks may be reported from another address.", ["10.0.0.0/8"]),
    ] = []


class Members(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Replicas of this program that hold the limits of revisions together, each on a machine or a port of its own."""

    listen: Annotated[str, doc("Where the other members connect. Empty: this program is alone.", "0.0.0.0:8015")] = ""
    address: Annotated[
        str,
        doc(
            "How the other members reach this one. Empty: the one of `peers` that is an address of this machine, with "
            "the port of `listen`.",
            "10.0.0.1:8015",
        ),
    ] = ""
    peers: Annotated[
        list[str],
        doc(
            "All members, this one among them. The same list in the file of each.",
            ["10.0.0.1:8015", "10.0.0.2:8015", "10.0.0.3:8015"],
        ),
    ] = []
    group: Annotated[str, doc("The name of the group. Members of other groups are refused.", "edge")] = "activator"
    key_file: Annotated[
        str,
        doc(
            "A file with the key of the group, 16 bytes or more, the same for all members: who does not have it cannot "
            "take part.",
            "/etc/activator/members.key",
        ),
    ] = ""
    on_silence: Annotated[
        str,
        doc(
            "A member says nothing, and it is not known whether it has ended. `strict`: its slots stay taken until "
            "that is known. `prompt`: they are given on after `release`; a pod may then get more than its limit.",
            PROMPT,
            words=PROOFS,
        ),
    ] = STRICT
    on_partition: Annotated[
        str,
        doc(
            "A member does not reach a majority. `strict`: it grants no slots until it does. `prompt`: it goes on; a "
            "pod may then get its limit from each part of the group.",
            PROMPT,
            words=PROOFS,
        ),
    ] = STRICT
    silence: Annotated[
        Duration, doc("A member that has said nothing for this time is not reached, for the time being.", "3s")
    ] = Duration(1.0)
    release: Annotated[Duration, doc("With `on_silence: prompt`: the time after which slots are given on.", "30s")] = (
        Duration(10.0)
    )


class ExternalScaler(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The port on which KEDA asks for the load of revisions (external scaler); KEDA then scales them."""

    listen: Annotated[
        str,
        doc(
            "The host and port to listen on, without TLS: only KEDA should reach it. Empty: no such port.",
            "0.0.0.0:8016",
        ),
    ] = ""


class Kubernetes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Revisions and pods come from a cluster, not from the file."""

    mode: Annotated[
        str,
        doc(
            "`knative`: this program replaces the activator of Knative. `activations`: a cluster without Knative; "
            "objects of the kind Activation, or annotated Services, declare which workloads are served and scaled.",
            ACTIVATIONS,
            words=KUBERNETES_MODES,
        ),
    ] = KNATIVE
    namespace: Annotated[
        str, doc("With `activations`: the only namespace that is looked at. Empty: all of them.", "models")
    ] = ""
    service: Annotated[
        str,
        doc(
            "With `activations`: the Service of this program, as namespace/name. HTTPRoutes that lead to it are read "
            "for their hosts. Empty: none are.",
            "platform/activator",
        ),
    ] = ""
    sharing: Annotated[
        str,
        doc(
            "`none`: each replica uses every pod. `knative`: each replica uses its share of the pods, as the activator "
            "of Knative does. `exact`: each replica uses every pod, and they hold the limits together (`members`).",
            SHARING_KNATIVE,
            words=SHARINGS,
        ),
    ] = SHARING_NONE
    reconcile_interval: Annotated[
        Duration, doc("The time between two comparisons of the known objects with a list of the API.", "1m")
    ] = Duration(30.0)
    autoscaler: Annotated[
        str, doc("The WebSocket of the autoscaler. Empty: that of Knative.", "ws://autoscaler.internal:8080")
    ] = ""
    scale_fallback: Annotated[
        Duration,
        doc(
            "Requests wait for a revision at zero, and the autoscaler has been away for this time: the activator "
            "scales it to one pod. 0: never.",
            "30s",
        ),
    ] = Duration(0.0)
    external_scaler: Annotated[ExternalScaler, doc("The port for KEDA.")] = ExternalScaler()


class Log(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The log of the program itself, on standard error."""

    format: Annotated[str, doc("The format of a line.", "json", words=LOG_FORMATS)] = "console"
    level: Annotated[str, doc("The lowest level that is written.", "warning", words=LOG_LEVELS)] = "info"
    levels: Annotated[
        dict[str, str],
        doc(
            f"Levels of single parts of the program. Parts: {', '.join(f'`{part}`' for part in LOG_PARTS)}.",
            {"state": "debug"},
        ),
    ] = {}


class KnativeExport(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Metrics with the names of Knative, beside those of the activator."""

    protocol: Annotated[
        str,
        doc(
            "`prometheus`: on a port of their own. `http/protobuf`: sent as OTLP over HTTP.",
            "prometheus",
            words=METRICS_PROTOCOLS,
        ),
    ] = "none"
    endpoint: Annotated[
        str,
        doc(
            "With `prometheus`: the address to listen on; empty: port 9090. With `http/protobuf`: the whole URL.",
            "0.0.0.0:9090",
        ),
    ] = ""
    export_interval: Annotated[Duration, doc("With `http/protobuf`: the time between two exports.", "30s")] = Duration(
        60.0
    )


class Metrics(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Metrics on the admin port."""

    histograms: Annotated[bool, doc("Histograms of duration, first byte and queue wait for each revision.", False)] = (
        True
    )
    knative: Annotated[KnativeExport, doc("Metrics with the names of Knative.")] = KnativeExport()


class Tracing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Spans of requests, sent as OTLP over HTTP. A key that is not set follows the variables of OpenTelemetry."""

    exporter: Annotated[
        str,
        doc(
            "Where spans are sent. Empty: as `OTEL_TRACES_EXPORTER` sets, else `none`.",
            "otlp",
            words=("", *EXPORTERS),
        ),
    ] = ""
    endpoint: Annotated[
        str,
        doc(
            "The URL of the collector. Empty: as `OTEL_EXPORTER_OTLP_ENDPOINT` sets, else port 4318 of this machine.",
            "http://collector:4318",
        ),
    ] = ""
    sampling_rate: Annotated[
        Share | None,
        doc(
            "The share of the requests without a trace context that are traced. Not set: as `OTEL_TRACES_SAMPLER` "
            f"sets, else {TRACING_RATE:g}.",
            0.01,
        ),
    ] = None


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    listen: Annotated[
        str | Tls | list[str | Tls],
        doc(
            "Where clients connect: an address, a mapping for TLS, or a list of both. Port 0: any free port.",
            "127.0.0.1:8080",
            ["127.0.0.1:8080", {"address": "0.0.0.0:8443", "certificate": "tls.crt", "key": "tls.key"}],
        ),
    ] = DEFAULT_LISTEN
    admin: Annotated[
        str, doc("The address of the admin port: health, metrics, debug pages. Empty: none.", "0.0.0.0:8008")
    ] = DEFAULT_ADMIN
    workers: Annotated[
        WorkerCount | Literal["auto"],
        doc(
            f"The number of processes that serve, 1 to {WORKERS_MAX}, or `auto`: one for each processor that the "
            "program may use. Limits of revisions hold over all of them together; `limits` hold for each.",
            4,
            AUTO,
        ),
    ] = 1
    trailing_fragmentation_threshold: Annotated[
        Share,
        doc(
            "A table of slots is trimmed when its share of empty slots is above this value. 0: at every chance. "
            "1: never.",
            0.25,
        ),
    ] = 0.5
    access_log: Annotated[
        bool | str,
        doc(
            "The access log on standard output: `false`, `json`, `common`, `knative`, or a template with names of "
            "fields in braces.",
            "json",
            "{method} {target} {status}",
        ),
    ] = False
    log: Annotated[Log, doc("The log of the program itself.")] = Log()
    metrics: Annotated[Metrics, doc("Which metrics there are.")] = Metrics()
    tracing: Annotated[Tracing, doc("Which requests are traced, and where their spans are sent.")] = Tracing()
    abort_on_half_close: Annotated[
        bool,
        doc(
            "A client that ends its side of the connection (FIN) behind a whole request has gone: its request is "
            "dropped at once. False: it is answered; to find out whether it has gone, it is sent a 100 (Continue).",
            True,
        ),
    ] = False
    trust_revision_headers: Annotated[
        bool,
        doc(
            "Whether the request headers `Knative-Serving-Namespace` and `Knative-Serving-Revision` select the "
            "revision. Only for an activator that clients cannot reach directly.",
            True,
        ),
    ] = False
    forwarded: Annotated[Forwarded, doc("What pods are told about the client of a request.")] = Forwarded()
    shutdown: Annotated[Shutdown, doc("The times of a shutdown.")] = Shutdown()
    push: Annotated[Push, doc("The endpoint where pods report their own state.")] = Push()
    members: Annotated[Members, doc("The replicas that hold the limits of revisions together.")] = Members()
    health: Annotated[Health, doc("Passive health checks of all revisions.")] = Health()
    dns: Annotated[Dns, doc("Who is asked for names.")] = Dns()
    limits: Annotated[Limits, doc("Bounds of the process.")] = Limits()
    revisions: Annotated[list[Revision], doc("The revisions. At least one, unless `kubernetes` is set.")] = []
    kubernetes: Annotated[Kubernetes | None, doc("Revisions and pods from a cluster. Not set: from this file.")] = None


# What a reload cannot change.
FIXED_KEYS: Final = (
    "admin",
    "workers",
    "limits",
    "abort_on_half_close",
    "trust_revision_headers",
    "forwarded",
    "push",
    "members",
    "dns",
    "kubernetes",
)
