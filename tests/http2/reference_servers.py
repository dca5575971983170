"""HTTP/2 servers that are not ours, in plain text on a free port, which show what the tests are worth: nghttpd alone,
haproxy in front of a server with HTTP/1.1, nginx with files."""

from __future__ import annotations

import contextlib
import http.server
import importlib.util
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import trustme

from bench.processes import find_program

HOST = "127.0.0.1"
PATIENCE_S = 10.0
BODY = b"The answer of a server for tests.\n"
LARGE = 3 * 2**19  # bytes behind /large


@dataclass(frozen=True)
class Running:
    port: int
    pid: int


Server = Callable[[Path], contextlib.AbstractContextManager[Running]]


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind((HOST, 0))
        port: int = sock.getsockname()[1]
        return port


def wait_listening(process: subprocess.Popen[bytes], port: int) -> None:
    give_up_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            socket.create_connection((HOST, port), timeout=1).close()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > give_up_s:
                raise AssertionError(f"{process.args!r} does not listen: {process.poll()}") from None
            time.sleep(0.02)


@dataclass(frozen=True)
class Certificate:
    """Files: the authority, the server's key, its chain, and these two in one."""

    ca: Path
    key: Path
    chain: Path
    both: Path


def certificate(folder: Path) -> Certificate:
    """Of HOST, signed by an authority of its own."""
    authority = trustme.CA()
    signed = authority.issue_cert(HOST)
    made = Certificate(folder / "ca.pem", folder / "key.pem", folder / "chain.pem", folder / "both.pem")
    authority.cert_pem.write_to_path(str(made.ca))
    signed.private_key_pem.write_to_path(str(made.key))
    for number, part in enumerate(signed.cert_chain_pems):
        part.write_to_path(str(made.chain), append=number > 0)
    signed.private_key_and_cert_chain_pem.write_to_path(str(made.both))
    return made


@contextlib.contextmanager
def running(command: list[str], port: int, log: Path) -> Iterator[Running]:
    """The program until the end of the block; it must still run there."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=log.parent)
        try:
            wait_listening(process, port)
            yield Running(port, process.pid)
            assert process.poll() is None, log.read_text()[-2_000:]
        finally:
            process.terminate()
            try:
                process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def files(folder: Path) -> Path:
    root = folder / "files"
    root.mkdir(exist_ok=True)
    (root / "index.html").write_bytes(BODY)
    (root / "large").write_bytes(bytes(LARGE))
    return root


@contextlib.contextmanager
def nghttpd(folder: Path, certificate: Certificate | None = None) -> Iterator[Running]:
    port = free_port()
    tls = ["--no-tls"] if certificate is None else []
    files_of_tls = [] if certificate is None else [str(certificate.key), str(certificate.chain)]
    command = [
        find_program("nghttpd") or "nghttpd",
        *tls,
        "--echo-upload",
        "-a",
        HOST,
        "-d",
        str(files(folder)),
        str(port),
        *files_of_tls,
    ]
    with running(command, port, folder / "nghttpd.log") as one:
        yield one


@contextlib.contextmanager
def hyper(folder: Path) -> Iterator[Running]:
    """hyper (Rust), as httpunk has it for Python."""
    port = free_port()
    program = Path(__file__).parent / "programs" / "hyper_server.py"
    with running([sys.executable, str(program), str(port), str(files(folder))], port, folder / "hyper.log") as one:
        yield one


NGINX = """
daemon off; master_process off; error_log stderr error; pid {folder}/nginx.pid;
events {{ worker_connections 1024; }}
http {{
    access_log off; keepalive_requests 1000000;
    client_body_temp_path {folder}/t1; proxy_temp_path {folder}/t2; fastcgi_temp_path {folder}/t3;
    uwsgi_temp_path {folder}/t4; scgi_temp_path {folder}/t5;
    server {{ listen {host}:{port} http2; root {root}; }}
}}
"""


@contextlib.contextmanager
def nginx(folder: Path) -> Iterator[Running]:
    port = free_port()
    configuration = folder / "nginx.conf"
    configuration.write_text(NGINX.format(folder=folder, host=HOST, port=port, root=files(folder)))
    with running(
        [find_program("nginx") or "nginx", "-p", str(folder), "-c", str(configuration)], port, folder / "nginx.log"
    ) as one:
        yield one


HAPROXY_GRPC = """
global
    maxconn 1000
defaults
    mode http
    timeout connect 5s
    timeout client 20s
    timeout server 20s
frontend f
    bind {host}:{port} proto h2
    default_backend b
backend b
    server s {host}:{backend} proto h2
"""

HAPROXY = """
global
    maxconn 1000
defaults
    mode http
    timeout connect 5s
    timeout client 5s
    timeout server 5s
    timeout http-request 5s
frontend f
    bind {host}:{port} {how}
    default_backend b
backend b
    server s {host}:{backend}
"""


@contextlib.contextmanager
def haproxy(folder: Path, certificate: Certificate | None = None) -> Iterator[Running]:
    port = free_port()
    how = "proto h2" if certificate is None else f"ssl crt {certificate.both} alpn h2,http/1.1"
    with plain_server() as backend:
        configuration = folder / "haproxy.cfg"
        configuration.write_text(HAPROXY.format(host=HOST, port=port, backend=backend, how=how))
        with running(
            [find_program("haproxy") or "haproxy", "-db", "-f", str(configuration)], port, folder / "haproxy.log"
        ) as one:
            yield one


@contextlib.contextmanager
def haproxy_for_grpc(folder: Path, backend: int) -> Iterator[Running]:
    """HTTP/2 on both sides."""
    port = free_port()
    configuration = folder / "haproxy.cfg"
    configuration.write_text(HAPROXY_GRPC.format(host=HOST, port=port, backend=backend))
    with running(
        [find_program("haproxy") or "haproxy", "-db", "-f", str(configuration)], port, folder / "haproxy.log"
    ) as one:
        yield one


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # an answer in one piece: otherwise delayed acknowledgements make it slow

    def answer(self) -> None:
        sent = b""
        if "chunked" in self.headers.get("transfer-encoding", ""):
            while size := int(self.rfile.readline() or b"0", 16):
                sent += self.rfile.read(size)
                self.rfile.readline()
            while self.rfile.readline().strip():
                pass
        else:
            sent = self.rfile.read(int(self.headers.get("content-length", 0)))
        body = sent or (bytes(LARGE) if self.path == "/large" else BODY)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_HEAD = do_POST = answer  # noqa: N815

    def handle_expect_100(self) -> bool:
        handled = super().handle_expect_100()
        self.wfile.flush()
        return handled

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1_024

    def handle_error(self, request: object, client_address: object) -> None:
        """A proxy that ends a connection is no news."""


@contextlib.contextmanager
def plain_server() -> Iterator[int]:
    """A server of HTTP/1.1 in this process."""
    with _Server((HOST, 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()


SERVERS: dict[str, Server] = {"hyper": hyper, "nghttpd": nghttpd, "nginx": nginx, "haproxy": haproxy}


def is_installed(name: str) -> bool:
    return importlib.util.find_spec("httpunk") is not None if name == "hyper" else find_program(name) is not None
