"""One revision: a version of a service."""

from typing import Annotated

import msgspec

from activator.config.model.containers import Container
from activator.config.model.filters import Fault, FilterUse, ForwardAuth, HeaderRules, RateLimit
from activator.config.model.kinds import Count, Duration, Json, Share, Size, Weight, doc
from activator.config.model.pods import POD_PROTOCOLS, PROXY_VERSIONS, Pod, PodTls, Probe, RevisionHealth
from activator.config.model.programs import Process
from activator.config.model.queueing import (
    CANCEL_CLOSE,
    CANCEL_MODES,
    CANCEL_TIMEOUT_S,
    CANCEL_WAIT,
    AdaptiveConcurrency,
    Buffer,
    Queue,
    Timeouts,
)
from activator.config.model.records import Record
from activator.config.model.routing import HASH_ON_CLIENT_IP, HashOn, Match
from activator.config.model.scaling import Scaling
from activator.config.model.waiting import Activity, Fallback, NoWake, Progress, RespondAsync, WaitingPage


class Revision(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One version of a service, with its pods."""

    name: Annotated[str, doc("The name of the revision; unique in its namespace.", "model")]
    namespace: Annotated[str, doc("The namespace, for metrics and for the revision headers.", "production")] = "default"
    hosts: Annotated[
        list[str],
        doc(
            "The hosts, without a port. `*.example.com` matches every name below it, `*` all. Optional only with "
            "`trust_revision_headers`.",
            ["model.localhost", "*.model.example.com"],
        ),
    ] = []
    match: Annotated[
        Match | None,
        doc("The requests for these hosts that the revision serves ([routing](routing.md)). Not set: all."),
    ] = None
    aliases: Annotated[list[str], doc("Other names of its models, besides `match.json.model`.", ["gpt-4o-mini"])] = []
    rewrite_model: Annotated[
        str,
        doc("The `model` that the pod receives if a request names one of `aliases`. Empty: the alias.", "llama-3-8b"),
    ] = ""
    set_params: Annotated[
        dict[str, Json],
        doc(
            "Members that the outermost object of a JSON body gets, in place of the client's.",
            {"temperature": 0.6, "chat_template_kwargs": {"enable_thinking": False}},
        ),
    ] = {}
    strip_params: Annotated[
        list[str], doc("Members that are removed from the outermost object of a JSON body.", ["top_p", "top_k"])
    ] = []
    default: Annotated[
        bool, doc("If true, the revision serves requests that no other matches. At most one per host.", True)
    ] = False
    weight: Annotated[
        Weight | None,
        doc("Its share of the requests, if several revisions have the same `hosts`, `match` and `aliases`.", 90),
    ] = None
    split_on: Annotated[
        str | HashOn | None,
        doc(
            "With `weight`: requests with the same key go to the same revision. Not set: any request by weight.",
            HASH_ON_CLIENT_IP,
            {"cookie": "session"},
        ),
    ] = None
    container_concurrency: Annotated[Count, doc("The requests that one pod may have in flight. 0: no limit.", 1)] = 0
    adaptive_concurrency: Annotated[
        AdaptiveConcurrency | None,
        doc("A limit that is found by the latency of the pods ([queueing](queueing.md#a-limit-that-is-found))."),
    ] = None
    policy: Annotated[
        str,
        doc(
            "The load balancing policy: a name or `package.module:Class`. Empty: by `container_concurrency` "
            "([policies](policies.md#which-one)).",
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
    slow_start: Annotated[Duration, doc("The time in which a new pod reaches its full share of requests.", "30s")] = (
        Duration(0.0)
    )
    prefer_zone: Annotated[
        bool,
        doc("If true, pods of other [zones](pods.md#zones) get requests only if the others are full.", True),
    ] = False
    max_scale: Annotated[
        Count,
        doc(
            "The highest number of pods; the table has twice as many slots. 0: that of `pods` or `process.max_scale`; "
            "without both, it grows.",
            100,
        ),
    ] = 0
    trailing_fragmentation_threshold: Annotated[
        Share | None,
        doc("The value for this revision. Not set: that of the file.", 0.25),
    ] = None
    queue: Annotated[Queue, doc("The queue of waiting requests ([queueing](queueing.md)).")] = Queue()
    timeouts: Annotated[Timeouts, doc("The time limits of a request and of a start.")] = Timeouts()
    on_cancel: Annotated[
        str,
        doc(
            "If the client disconnects or a time limit is reached: `close` closes the connection to the pod "
            "(HTTP/2: resets the stream) and releases the slot. `wait` holds the slot until the pod has answered or "
            "closed, at most for `cancel_timeout`: the program may continue to compute.",
            CANCEL_WAIT,
            words=CANCEL_MODES,
        ),
    ] = CANCEL_CLOSE
    cancel_timeout: Annotated[
        Duration,
        doc("With `on_cancel: wait`: the time after which the connection is closed.", "2m"),
    ] = Duration(CANCEL_TIMEOUT_S)
    buffer: Annotated[Buffer, doc("The buffers that keep slow clients from holding a slot.")] = Buffer()
    health: Annotated[RevisionHealth, doc("Passive health checks that differ from `health`, and active ones.")] = (
        RevisionHealth()
    )
    probe: Annotated[Probe | None, doc("The probe of its pods. Not set: the port must accept connections.")] = None
    upgrades: Annotated[
        list[str],
        doc(
            'Protocols to which a connection may be upgraded. `"*"`: all but HTTP/2 and TLS.', ["websocket", "spdy/3.1"]
        ),
    ] = msgspec.field(default_factory=lambda: ["websocket"])
    no_wake: Annotated[
        list[NoWake],
        doc("Requests that start no pod and are no activity ([waiting](waiting.md))."),
    ] = []
    waiting_page: Annotated[
        WaitingPage | None, doc("A page for browsers while no pod is ready. Not set: they wait like other clients.")
    ] = None
    activity: Annotated[
        Activity, doc("What counts as activity, so that a program is not stopped ([waiting](waiting.md)).")
    ] = Activity()
    respond_async: Annotated[
        RespondAsync | None,
        doc("Asynchronous responses for clients that send `Prefer: respond-async`."),
    ] = None
    progress: Annotated[
        Progress | None,
        doc("Comments in an event stream while a request waits, for clients that accept one."),
    ] = None
    fallback: Annotated[Fallback | None, doc("What clients get instead of a rejection.")] = None
    pods: Annotated[
        list[str | Pod],
        doc(
            "Fixed pods. A revision has one of `pods`, `process` and `container`.",
            ["127.0.0.1:9001", "unix:/run/app.sock", {"address": "127.0.0.1:9002", "weight": 3}],
        ),
    ] = []
    pods_file: Annotated[
        str,
        doc(
            "A file with more fixed pods, as in `pods`, in JSON or YAML. Changes are read at once, in YAML "
            "without a last line `...` after 3 s.",
            "pods.json",
        ),
    ] = ""
    protocol: Annotated[
        str,
        doc(
            "The protocol for pods. `h1`: HTTP/1.1. `h2c`: HTTP/2 without TLS, as for gRPC servers. `h2`: HTTP/2 over "
            "TLS. `auto`: with TLS "
            "what the pod prefers (ALPN), else HTTP/1.1, unless a port name in Kubernetes selects another.",
            "h2c",
            words=POD_PROTOCOLS,
        ),
    ] = "auto"
    proxy_protocol: Annotated[
        str,
        doc(
            "The version of the PROXY protocol that pods get. Each connection then carries one request, in HTTP/1.1.",
            "v2",
            words=("", *PROXY_VERSIONS),
        ),
    ] = ""
    lenient_pods: Annotated[
        bool,
        doc(
            "If true, malformed heads of old servers are accepted: bare line feeds, continued lines, spaces before a "
            "colon, empty lines first.",
            True,
        ),
    ] = False
    server_timing: Annotated[
        bool, doc("Adds the response header `Server-Timing` with the time of each phase.", True)
    ] = False
    allow: Annotated[
        list[str],
        doc(
            "Networks of clients that may use it; `unix`: those of a Unix socket. Others get 403. Empty: all.",
            ["10.0.0.0/8", "2001:db8::/32"],
        ),
    ] = []
    rate_limit: Annotated[RateLimit | None, doc("The requests of each client address, in each worker and replica.")] = (
        None
    )
    forward_auth: Annotated[
        ForwardAuth | None, doc("The authoriser of its requests ([filters](filters.md#external-authorisation)).")
    ] = None
    record: Annotated[
        Record | None,
        doc(
            "Tokens, last requests and captures ([records](records.md)). Not set: the default of a model, else nothing."
        ),
    ] = None
    headers: Annotated[
        HeaderRules, doc("Edits of header fields, on the way to the pods and back ([filters](filters.md)).")
    ] = HeaderRules()
    fault: Annotated[Fault | None, doc("Injected faults, to test clients.")] = None
    filters: Annotated[
        list[FilterUse],
        doc("Filters that are not built in, in their order ([filters](filters.md))."),
    ] = []
    tls: Annotated[PodTls | None, doc("TLS on the connections to the pods.")] = None
    process: Annotated[Process | None, doc("A program on this machine that the activator starts and stops.")] = None
    container: Annotated[
        Container | None,
        doc("A program in a container, which the activator starts and stops ([containers](containers.md))."),
    ] = None
    depends_on: Annotated[
        list[str],
        doc(
            "Revisions with programs that are started before this one, and kept while it is wanted. `timeouts.startup` "
            "includes their starts; they need no `hosts`.",
            ["database"],
        ),
    ] = []
    scaling: Annotated[Scaling, doc("The number of copies of the program, by load.")] = Scaling()
    needs: Annotated[
        dict[str, Size],
        doc(
            "What each copy needs of its group's budget while it starts, runs and stops. For GPUs: "
            "`process.gpus` or `container.gpus`.",
            {"gpu_memory": "10GiB"},
        ),
    ] = {}

    @property
    def program(self) -> Process | Container | None:
        """The program that the activator starts and stops, if there is one."""
        return self.process or self.container
