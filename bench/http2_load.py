"""`python -m bench load --h2 h1|h2c`: h2load through each proxy, over HTTP/2 without TLS.

Rules
  1. As in load.py: interleaved rounds, ratios within a round, and only the CPU of the proxy's process tree.
  2. Pods that speak HTTP/1.1 are nginx, those that speak HTTP/2 are nghttpd. Every proxy sends the pods the same header
     fields about the client (peers.py, rule 2), as far as it can: nghttpx creates no request ids.
  3. `--grpc`: a message of 20 bytes in each direction, with the header fields of gRPC and trailers after the response.
"""

from __future__ import annotations

import contextlib
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import msgspec

import lb
from bench import header, load, peers, results
from bench.generator import Generator, Shape, Summary, headers
from bench.load import Turn, Turns
from bench.peers import HAPROXY_CONNECTIONS_MAX, POOL_CONNECTIONS, REQUESTS_PER_CONNECTION_MAX, Peer, Started
from bench.processes import LOOPBACK, BenchError, Cores, UsageError, find_program, free_port, running
from bench.results import Document, Result
from bench.upstream import BODY_BYTES, body

PODS = ("h1", "h2c")
MESSAGE_BYTES = 20  # size of a gRPC message, including its prefix
_GRACE_S = 20.0
_GRPC = [("content-type", "application/grpc"), ("te", "trailers"), ("grpc-timeout", "20S"), ("user-agent", "grpc/1.60")]
_SUMMARY = re.compile(r"requests: (\d+) total, \d+ started, (\d+) done, (\d+) succeeded, (\d+) failed, (\d+) errored")
_FINISHED = re.compile(r"finished in ([\d.]+)(us|ms|s)")
_MEAN = re.compile(r"time for request:\s+\S+\s+(\S+)\s+(\S+)")


class Options(msgspec.Struct, frozen=True):
    """The options of the command line."""

    pods: str = "h1"
    grpc: bool = False
    peers: str | None = None
    rounds: int = 3
    seconds: int = 4
    connections: int = 8
    streams: int = 8  # concurrent streams of each connection
    body: str = "small"
    headers: int = 12


# --- the proxies ----------------------------------------------------------------------------------------------------


def _haproxy(folder: Path, upstream_port: int, pods: str = "h1") -> Started:
    port = free_port()
    folder.mkdir(exist_ok=True)
    configuration = folder / "haproxy.cfg"
    configuration.write_text(
        f"""global
    nbthread 1
    maxconn {HAPROXY_CONNECTIONS_MAX}
defaults
    mode http
    timeout connect 5s
    timeout client 60s
    timeout server 60s
    http-reuse always
frontend front
    bind {LOOPBACK}:{port} backlog 1024 proto h2
    http-request set-header X-Forwarded-For %[src]
    http-request set-header X-Forwarded-Proto http
    http-request set-header X-Forwarded-Host %[req.hdr(host)]
    http-request set-header X-Request-Id %[uuid()] unless {{ req.hdr(X-Request-Id) -m found }}
    default_backend back
backend back
    server up {LOOPBACK}:{upstream_port}{" proto h2" if pods == "h2c" else ""}
""",
        "utf-8",
    )
    return Started([find_program("haproxy") or "haproxy", "-db", "-f", str(configuration)], port)


def _nginx(folder: Path, upstream_port: int, pods: str = "h1") -> Started:
    port = free_port()
    kind = "grpc" if pods == "h2c" else "proxy"
    passing = "grpc_pass grpc://up;" if pods == "h2c" else "proxy_pass http://up; proxy_http_version 1.1;"
    connection = "" if pods == "h2c" else 'proxy_set_header Connection "";'
    command = peers.nginx(
        folder,
        f"""    upstream up {{
        server {LOOPBACK}:{upstream_port};
        keepalive {POOL_CONNECTIONS};
        keepalive_requests {REQUESTS_PER_CONNECTION_MAX};
        keepalive_timeout 600s;
    }}
    server {{
        listen {LOOPBACK}:{port} backlog=1024 http2;
        location / {{
            {passing}
            {connection}
            {kind}_set_header Host $http_host;
            {kind}_set_header X-Forwarded-For $remote_addr;
            {kind}_set_header X-Forwarded-Proto $scheme;
            {kind}_set_header X-Forwarded-Host $http_host;
            {kind}_set_header X-Request-Id $request_id;
            {"" if pods == "h2c" else "proxy_max_temp_file_size 0;"}
        }}
    }}""",
    )
    return Started(command, port)


def _nghttpx(folder: Path, upstream_port: int, pods: str = "h1") -> Started:
    port = free_port()
    protocol = "h2" if pods == "h2c" else "http/1.1"
    command = [
        find_program("nghttpx") or "nghttpx",
        f"--frontend={LOOPBACK},{port};no-tls",
        f"--backend={LOOPBACK},{upstream_port};;proto={protocol}",
        "--workers=1",
        "--add-x-forwarded-for",
        "--accesslog-file=/dev/null",
        "--errorlog-file=/dev/null",
        "--no-ocsp",
        "--conf=/dev/null",
    ]
    folder.mkdir(exist_ok=True)
    return Started(command, port)


def _caddy(folder: Path, upstream_port: int, pods: str = "h1") -> Started:
    port = free_port()
    folder.mkdir(exist_ok=True)
    configuration = folder / "Caddyfile"
    upstream = f"h2c://{LOOPBACK}:{upstream_port}" if pods == "h2c" else f"{LOOPBACK}:{upstream_port}"
    configuration.write_text(
        f"""{{
    admin off
    auto_https off
    log {{
        output discard
    }}
    servers {{
        protocols h1 h2 h2c
    }}
}}
http://:{port} {{
    bind {LOOPBACK}
    reverse_proxy {upstream}
}}
""",
        "utf-8",
    )
    homes = {name: str(folder) for name in ("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME")}
    command = [find_program("caddy") or "caddy", "run", "--config", str(configuration), "--adapter", "caddyfile"]
    return Started(command, port, {"GOMAXPROCS": "1", **homes})


def _activator(folder: Path, upstream_port: int, pods: str = "h1", concurrency: int = 0) -> Started:
    return peers.activator(concurrency, "", f"protocol: {pods}")(folder, upstream_port)


_PREPARED: list[tuple[str, str | None, Callable[..., Started]]] = [
    ("haproxy", "haproxy", _haproxy),
    ("nginx", "nginx", _nginx),
    ("nghttpx", "nghttpx", _nghttpx),
    ("caddy", "caddy", _caddy),
    ("activator-cc0", None, _activator),
    ("activator-cc100", None, partial(_activator, concurrency=100)),
]
OWN_HTTP1 = "activator-http1"  # wrk and HTTP/1.1 from end to end, for pods that speak it


def _choose(options: Options) -> list[Peer]:
    found = [
        Peer(name, program, partial(prepare, pods=options.pods), {"pods": options.pods, "grpc": options.grpc})
        for name, program, prepare in _PREPARED
        if program is None or find_program(program) is not None
    ]
    if options.pods == "h1" and not options.grpc and find_program("wrk") is not None:
        found.append(Peer(OWN_HTTP1, None, peers.activator(0)))
    if options.peers is None:
        return found
    wanted = {name.strip() for name in options.peers.split(",")}
    unknown = wanted - {peer.name for peer in found} - {"activator"}
    if unknown:
        raise UsageError(f"--peers: unknown: {', '.join(sorted(unknown))}; known: {', '.join(p.name for p in found)}")
    return [peer for peer in found if peer.name in wanted or ("activator" in wanted and "activator-cc" in peer.name)]


# --- a run ----------------------------------------------------------------------------------------------------------


class H2Load:
    """The load generator h2load."""

    def __init__(self, options: Options, folder: Path) -> None:
        path = find_program("h2load")
        if path is None:
            raise UsageError("h2load is not on PATH (Debian: nghttp2-client)")
        self._command = [path, "-t1", f"-c{options.connections}", f"-m{options.streams}"]
        self._folder = folder
        self._target = f"/{options.body}"
        fields = _GRPC if options.grpc else [pair for pair in headers(options.headers) if pair[0] != "Host"]
        for name, value in fields:
            self._command += ["-H", f"{name.lower()}: {value}"]
        if options.grpc:
            message = folder / "message"
            message.write_bytes(b"\0" + (MESSAGE_BYTES - 5).to_bytes(4, "big") + bytes(MESSAGE_BYTES - 5))
            self._command += ["-d", str(message)]

    def run(self, port: int, seconds: int, core: int | None) -> Summary:
        """Run `python -m bench load --h2`. Raises BenchError or UsageError."""
        command = [*self._command, f"-D{seconds}", f"http://{LOOPBACK}:{port}{self._target}"]
        with running(command, self._folder / "generator.log", core, capture=True) as child:
            return _summary(child.output(seconds + _GRACE_S), seconds)


def _summary(output: str, seconds: int) -> Summary:
    """Read the summary; h2load counts requests in flight at the end as started, but neither as done nor as failed."""
    found = _SUMMARY.search(output)
    if found is None:
        raise BenchError(f"h2load printed no summary: {output[-300:]}")
    succeeded, failed, errored = (int(found[place]) for place in (3, 4, 5))
    return Summary(succeeded, seconds * 1_000_000, 0, 0.0, 0.0, 0, errored, 0, failed, 0)


@contextlib.contextmanager
def _pods(options: Options, cores: Cores, folder: Path) -> Iterator[int]:
    port = free_port()
    if options.pods == "h1":
        command = peers.nginx_upstream(folder / "upstream", port)
    else:
        files = folder / "upstream"
        files.mkdir()
        for name in BODY_BYTES:
            (files / name).write_bytes(body(name))
        if options.grpc:
            (files / "small").write_bytes(b"\0" + (MESSAGE_BYTES - 5).to_bytes(4, "big") + bytes(MESSAGE_BYTES - 5))
        trailer = ["--trailer=grpc-status: 0"] if options.grpc else []
        command = [
            find_program("nghttpd") or "nghttpd",
            "--no-tls",
            "-a",
            LOOPBACK,
            *trailer,
            "-d",
            str(files),
            str(port),
        ]
    with running(command, folder / "upstream.log", cores.load) as child:
        child.wait_until(partial(_connects, port))
        yield port


def _connects(port: int) -> bool:
    import socket

    with contextlib.suppress(OSError), socket.create_connection((LOOPBACK, port), 1.0):
        return True
    return False


def _turn(options: Options, peer: Peer, upstream_port: int, folder: Path, cores: Cores) -> Turn:
    assert peer.prepare is not None
    started = peer.prepare(folder / peer.name, upstream_port)
    generator: H2Load | Generator = H2Load(options, folder)
    if peer.name == OWN_HTTP1:
        clients = options.connections * options.streams
        generator = Generator(find_program("wrk"), Shape(clients, options.headers, f"/{options.body}"), folder)
    with running(started.command, folder / f"{peer.name}.log", cores.measured, started.environment) as child:
        child.wait_until(partial(_connects, started.port))
        generator.run(started.port, load.WARM_UP_S, cores.load)
        before_s, waited_before_s = child.cpu_s(), child.waited_s()
        summary = generator.run(started.port, options.seconds, cores.load)
        cpu_s = child.cpu_s() - before_s
        memory_bytes = child.memory_bytes()
        child.check_alive()
        return Turn(summary, cpu_s, child.waited_s() - waited_before_s, memory_bytes)


def run(options: Options, json_path: str | None) -> int:
    """Run `python -m bench load --h2`. Raises BenchError or UsageError."""
    if options.pods == "h2c" and find_program("nghttpd") is None:
        raise UsageError("nghttpd is not on PATH (Debian: nghttp2-server)")
    if options.pods == "h1" and (find_program("nginx") is None or options.grpc):
        raise UsageError("--h2 h1 needs nginx, and --grpc pods that speak h2c")
    chosen = _choose(options)
    programs = ["h2load", "nginx" if options.pods == "h1" else "nghttpd"]
    head = header.collect(list(dict.fromkeys([*[peer.program for peer in chosen if peer.program], *programs])))
    print(header.one_line(head))
    if warning := header.warning(head):
        print(warning, file=sys.stderr)
    cores = Cores()
    turns: Turns = {peer.name: [] for peer in chosen}
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        with _pods(options, cores, folder) as port:
            for number in range(1, options.rounds + 1):
                for peer in chosen:
                    turn = _turn(options, peer, port, folder, cores)
                    turns[peer.name].append(turn)
                    cpu = results.figure(turn.cpu_us_per_request, 1)
                    line = f"round {number}/{options.rounds}: {peer.name}: {cpu} us/request, {turn.failures} failures"
                    print(line, file=sys.stderr, flush=True)
    print("\n" + results.table(*load.rows(turns)) + "\n")
    print(
        f"h2load -> proxy -> {options.pods}, {options.connections} connections x {options.streams} streams, "
        f"{'gRPC unary' if options.grpc else f'body {options.body}'}; {options.rounds} rounds of {options.seconds} s, "
        f"ratios within a round; {'compiled' if lb.COMPILED else 'plain'}."
    )
    if taken := load.disturbed(turns):
        print(
            f"warning: other processes used the core of {', '.join(taken)} meanwhile: figures are noisy",
            file=sys.stderr,
        )
    if json_path is not None:
        results.write(json_path, Document(head, _figures(options, chosen, turns)))
    failed = {peer: sum(turn.failures for turn in its) for peer, its in turns.items()}
    for peer_name, count in failed.items():
        if count:
            print(f"bench: {count} failures with {peer_name}", file=sys.stderr)
    return 1 if any(failed.values()) else 0


def _figures(options: Options, chosen: list[Peer], turns: Turns) -> list[Result]:
    shape = load.Options(
        rounds=options.rounds, seconds=options.seconds, connections=options.connections, body=options.body
    )
    prefix = f"http2.{options.pods}{'.grpc' if options.grpc else ''}"
    found = load.figures(shape, chosen, turns)
    return [msgspec.structs.replace(one, name=one.name.replace("load", prefix, 1)) for one in found]
