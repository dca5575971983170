"""The proxies that are measured: each is configured and started so that all do the same work in the same way.

Rules
  1. One worker with one thread, or as many as requested; keep-alive to clients and to the upstream; no access log and
     no tracing, except in the peers that measure the cost of these.
  2. The Host header and all others are passed on unchanged. Each proxy adds what the activator adds by default:
     X-Forwarded-For, -Proto and -Host, and an X-Request-Id if there is none. (Caddy by itself creates no request ids;
     the forwarders of floor.py add nothing.)
  3. All files are in a temporary folder; all programs listen on the loopback interface.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from bench.processes import LOOPBACK, Child, UsageError, find_program, free_port, running
from bench.upstream import BODY_BYTES, body

POOL_CONNECTIONS = 64  # minimum of idle connections kept to the upstream
HAPROXY_CONNECTIONS_MAX = 4000  # haproxy does not start unless it gets twice as many descriptors
REQUESTS_PER_CONNECTION_MAX = 1_000_000_000  # the default of nginx is 1,000


class Started(msgspec.Struct, frozen=True):
    """The command of a program, and where it will listen."""

    command: list[str]
    port: int
    environment: dict[str, str] = {}


class Peer(msgspec.Struct, frozen=True):
    """One row of the table; `prepare` takes a folder and the upstream's port (None: the upstream itself)."""

    name: str
    program: str | None
    prepare: Callable[..., Started] | None  # takes `workers`, their number
    params: dict[str, str | int | float | bool | None] = {}
    only_named: bool = False  # measured only if it is named

    def with_workers(self, count: int) -> Peer:
        """Return the same peer with this many workers."""
        if self.prepare is None or count == 1:
            return self
        prepare = partial(self.prepare, workers=count)
        return Peer(name_of(self.name, count), self.program, prepare, {**self.params, "workers": count})


@asynccontextmanager
async def before_pod(peer: Peer, pod: Callable[[], asyncio.Protocol], folder: Path) -> AsyncIterator[tuple[Child, int]]:
    """Run a proxy in front of one pod of this process. Yield it and its port."""
    server = await asyncio.get_running_loop().create_server(pod, LOOPBACK, 0, backlog=64)
    assert peer.prepare is not None
    started = peer.prepare(folder / peer.name, server.sockets[0].getsockname()[1])
    with running(started.command, folder / f"{peer.name}.log", None, started.environment) as child:
        await asyncio.sleep(1.0)
        child.check_alive()
        yield child, started.port
    server.close()


def name_of(peer: str, workers: int) -> str:
    return peer if workers == 1 else f"{peer}-x{workers}"


# --- nginx ----------------------------------------------------------------------------------------------------------


def nginx(folder: Path, http: str, workers: int = 1) -> list[str]:
    path = find_program("nginx")
    assert path is not None
    folder.mkdir(exist_ok=True)
    # If started by root, its worker would switch to another user, who cannot read this folder.
    user = "user root;" if os.geteuid() == 0 else ""
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    paths = "\n".join(f"    {kind}_temp_path {folder}/{kind};" for kind in kinds)
    configuration = folder / "nginx.conf"
    configuration.write_text(
        f"""{user}
daemon off;
worker_processes {workers};
pid {folder}/nginx.pid;
error_log stderr warn;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    default_type text/plain;
    keepalive_timeout 600s;
    keepalive_requests {REQUESTS_PER_CONNECTION_MAX};
{paths}
{http}
}}
""",
        "utf-8",
    )
    return [path, "-p", str(folder), "-e", "stderr", "-c", str(configuration)]


PODS: Final = 32  # default number of addresses of the upstream
PODS_MAX: Final = 512


def _pod_hosts() -> list[str]:
    """Return the addresses of the pods; on Linux all of 127.0.0.0/8 is usable."""
    if sys.platform != "linux":
        return [LOOPBACK]
    return [f"127.0.{number // 254}.{number % 254 + 1}" for number in range(PODS_MAX)]


POD_HOSTS: Final = _pod_hosts()


def nginx_upstream(folder: Path, port: int) -> list[str]:
    """Configure nginx as the upstream on all POD_HOSTS.

    The small body is part of its configuration; the others are served from files.
    """
    folder.mkdir(exist_ok=True)
    listens = "\n        ".join(f"listen {host}:{port} backlog=1024;" for host in POD_HOSTS)
    for name in BODY_BYTES:
        (folder / name).write_bytes(body(name))
    return nginx(
        folder,
        f"""    sendfile on;
    tcp_nopush on;
    open_file_cache max=16;
    server {{
        {listens}
        root {folder};
        location = /small {{ return 200 "{body("small").decode()}"; }}
    }}""",
    )


def _nginx_proxy(
    folder: Path,
    upstream_port: int,
    of_server: str = "",
    location: str = "proxy_max_temp_file_size 0;",
    workers: int = 1,
) -> Started:
    port = free_port()
    shared = " reuseport" if workers > 1 else ""
    command = nginx(
        folder,
        f"""    upstream up {{
        server {LOOPBACK}:{upstream_port}{of_server};
        keepalive {POOL_CONNECTIONS};
        keepalive_requests {REQUESTS_PER_CONNECTION_MAX};
        keepalive_timeout 600s;
    }}
    server {{
        listen {LOOPBACK}:{port} backlog=1024{shared};
        location / {{
            proxy_pass http://up;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_set_header Host $http_host;
            proxy_set_header X-Forwarded-For $remote_addr;
            proxy_set_header X-Forwarded-Proto $scheme;
            proxy_set_header X-Forwarded-Host $http_host;
            proxy_set_header X-Request-Id $request_id;
            {location}
        }}
    }}""",
        workers,
    )
    return Started(command, port)


# --- haproxy --------------------------------------------------------------------------------------------------------


def haproxy(folder: Path, upstream_port: int, of_server: str = "", of_front: str = "", workers: int = 1) -> Started:
    path = find_program("haproxy")
    assert path is not None
    port = free_port()
    folder.mkdir(exist_ok=True)
    configuration = folder / "haproxy.cfg"
    configuration.write_text(
        f"""global
    nbthread {workers}
    maxconn {HAPROXY_CONNECTIONS_MAX}
defaults
    mode http
    timeout connect 5s
    timeout client 60s
    timeout server 60s
    http-reuse always
frontend front
    bind {LOOPBACK}:{port} backlog 1024
    {of_front}
    http-request set-header X-Forwarded-For %[src]
    http-request set-header X-Forwarded-Proto http
    http-request set-header X-Forwarded-Host %[req.hdr(host)]
    http-request set-header X-Request-Id %[uuid()] unless {{ req.hdr(X-Request-Id) -m found }}
    default_backend back
backend back
    server up {LOOPBACK}:{upstream_port}{of_server}
""",
        "utf-8",
    )
    return Started([path, "-db", "-f", str(configuration)], port)


# --- caddy ----------------------------------------------------------------------------------------------------------


def _caddy(folder: Path, upstream_port: int, workers: int = 1) -> Started:
    path = find_program("caddy")
    assert path is not None
    port = free_port()
    folder.mkdir(exist_ok=True)
    configuration = folder / "Caddyfile"
    configuration.write_text(
        f"""{{
    admin off
    auto_https off
    log {{
        output discard
    }}
}}
http://:{port} {{
    bind {LOOPBACK}
    reverse_proxy {LOOPBACK}:{upstream_port} {{
        transport http {{
            keepalive_idle_conns_per_host {POOL_CONNECTIONS}
            compression off
        }}
    }}
}}
""",
        "utf-8",
    )
    homes = {name: str(folder) for name in ("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME")}
    command = [path, "run", "--config", str(configuration), "--adapter", "caddyfile"]
    return Started(command, port, {"GOMAXPROCS": str(workers), **homes})


# --- the floor ------------------------------------------------------------------------------------------------------


def _floor(kind: str) -> Callable[..., Started]:
    """Return how to start a forwarder of bench/floor.py."""

    def prepare(folder: Path, upstream_port: int, workers: int = 1) -> Started:
        port = free_port()
        command = [sys.executable, "-m", "bench.floor", kind, str(port), f"{LOOPBACK}:{upstream_port}", str(workers)]
        return Started(command, port)

    return prepare


# --- the activator --------------------------------------------------------------------------------------------------


def activator(
    container_concurrency: int, more: str = "", of_revision: str = "", pods: int = 1
) -> Callable[..., Started]:
    """Return how to start an activator with one revision.

    `more`: additional lines of its configuration, in which {upstream} is replaced with the upstream's address.
    `of_revision`: a line for its revision. `pods`: the number of the upstream's addresses, each of which is a pod.
    """

    def prepare(folder: Path, upstream_port: int, workers: int = 1) -> Started:
        port = free_port()
        folder.mkdir(exist_ok=True)
        configuration = folder / "activator.yaml"
        configuration.write_text(
            f"""listen: {LOOPBACK}:{port}
admin: {LOOPBACK}:{free_port()}
workers: {workers}
revisions:
  - name: bench
    hosts: ["*"]
    container_concurrency: {container_concurrency}
    pods: {[f"{host}:{upstream_port}" for host in POD_HOSTS[:pods]]}
    {of_revision}
{more.replace("{upstream}", f"{LOOPBACK}:{upstream_port}")}
""",
            "utf-8",
        )
        command = [sys.executable, "-m", "activator.cli", "run", "-c", str(configuration), "--log-level", "warning"]
        return Started(command, port)

    return prepare


def _activator_for_knative(folder: Path, upstream_port: int, workers: int = 1) -> Started:
    """Return how to start an activator with Knative's dialect on the request path.

    It recognises probes, rewrites header fields and takes times from the arrival. The revision is in the configuration
    file, and there is no cluster: only the path of a request is measured.
    """
    started = activator(0, "kubernetes: {}\nlimits: {body_rate: 0}")(folder, upstream_port, workers)
    nowhere = folder / "kubeconfig"
    nowhere.write_text(
        """{"clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
"users": [{"name": "u", "user": {}}], "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
"current-context": "x"}"""
    )
    knative = {"POD_NAME": "bench", "POD_IP": LOOPBACK, "SYSTEM_NAMESPACE": "bench", "KUBECONFIG": str(nowhere)}
    return Started(started.command, started.port, knative)


def _filters(count: int) -> str:
    use = "{name: 'bench.trivial_filter:Trivial'}"
    return f"filters: [{', '.join([use] * count)}]"


# --- the list -------------------------------------------------------------------------------------------------------

# The upstream accepts any POST, so it also serves as the collector.
_TRACED = "tracing: {exporter: otlp, endpoint: 'http://{upstream}/small', sampling_rate: 0.01}"

REFERENCE = "haproxy"  # the denominator of the ratios
FLOORS = ["floor-transports", "floor-descriptors"]  # subtracted for the own part of a proxy

PEERS = [
    Peer("direct", None, None),
    Peer("haproxy", "haproxy", haproxy),
    Peer("nginx", "nginx", _nginx_proxy),
    Peer("caddy", "caddy", _caddy),
    *[Peer(name, None, _floor(name.removeprefix("floor-"))) for name in FLOORS],
    Peer("activator-cc0", None, activator(0), {"container_concurrency": 0}),
    Peer("activator-cc100", None, activator(100), {"container_concurrency": 100}),
    # The cost of the line: with one request at a time most requests wait.
    Peer("activator-cc1", None, activator(1), {"container_concurrency": 1}, only_named=True),
    # The same with many pods, so that many slots are handed over in one turn of the event loop.
    *[
        Peer(
            f"activator-cc1-pods{'' if pods == PODS else pods}",
            None,
            activator(1, pods=pods),
            {"container_concurrency": 1, "pods": pods},
            only_named=True,
        )
        for pods in (PODS, 128, PODS_MAX)
    ],
    Peer("activator-knative", None, _activator_for_knative, {"dialect": "knative"}, only_named=True),
    Peer(
        "activator-no-histograms",
        None,
        activator(0, "metrics: {histograms: false}"),
        {"histograms": False},
        only_named=True,
    ),
    *[
        Peer(f"activator-filters-{count}", None, activator(0, "", _filters(count)), {"filters": count}, only_named=True)
        for count in (1, 5)
    ],
    Peer("activator-json-log", None, activator(0, "access_log: json"), {"access_log": "json"}, only_named=True),
    Peer("activator-traced", None, activator(0, _TRACED), {"sampling_rate": 0.01}, only_named=True),
]

# The same with one request at a time at the upstream.
ONE_AT_A_TIME = [
    Peer("haproxy", "haproxy", partial(haproxy, of_server=" maxconn 1")),
    Peer(
        "haproxy-buffer-request",
        "haproxy",
        partial(haproxy, of_server=" maxconn 1", of_front="option http-buffer-request"),
    ),
    # Both buffers are on by default, in memory and beyond that in files. nginx has no line: others get a 502.
    Peer("nginx", "nginx", partial(_nginx_proxy, of_server=" max_conns=1 max_fails=0", location="")),
    Peer("activator-no-buffer", None, activator(1, "", "buffer: {request: 0, response: 0}"), {"buffer": False}),
    Peer("activator", None, activator(1)),
]

GROUPS = {
    # The cost of calling filters that do nothing.
    "filters": ["activator-cc0", "activator-filters-1", "activator-filters-5"],
    "activator": ["activator-cc0", "activator-cc100"],
    "floor": FLOORS,
    # The cost of each of its parts.
    "telemetry": ["activator-no-histograms", "activator-cc0", "activator-json-log", "activator-traced"],
}


def choose(names: str | None, workers: str = "1") -> list[Peer]:
    """Return all available peers or the named ones, with each number of workers. Raises UsageError.

    `names` is a list such as `haproxy,activator`, `workers` one such as `1,2,4`.
    """
    counts = workers.split(",")
    if not all(count.isdecimal() and int(count) > 0 for count in counts):
        raise UsageError("--workers: numbers such as 1,2,4")
    chosen = [peer.with_workers(int(count)) for peer in _chosen(names) for count in counts]
    return list({peer.name: peer for peer in chosen}.values())


def _chosen(names: str | None) -> list[Peer]:
    if names is None:
        every = [peer for peer in PEERS if not peer.only_named]
        return [peer for peer in every if peer.program is None or find_program(peer.program) is not None]
    by_name = {peer.name: peer for peer in PEERS}
    wanted = [one for name in names.split(",") for one in GROUPS.get(name.strip(), [name.strip()])]
    for name in wanted:
        if name not in by_name:
            raise UsageError(f"--peers: unknown: {name!r}; known: {', '.join([*by_name, *GROUPS])}")
        program = by_name[name].program
        if program is not None and find_program(program) is None:
            raise UsageError(f"--peers: {program} is not on PATH")
    return [by_name[name] for name in dict.fromkeys(wanted)]
