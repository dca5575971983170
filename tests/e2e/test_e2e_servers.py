"""Servers and clients that are not ours: the same requests, with the activator between and without it."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import aiohttp
import httpx
import pytest

from tests.e2e.apache_bench import ab
from tests.e2e.conftest import RunActivator
from tests.e2e.http_client import Answer, Client, chunked, request
from tests.e2e.origin import FRAMING, HOP_BY_HOP
from tests.e2e.running import PROGRAMS, Activator, configured, eventually

NeedProgram = Callable[[str], str]
# One by default: the others differ in what they send, which is theirs.
SERVERS = [
    "uvicorn",
    *(pytest.param(server, marks=pytest.mark.deep) for server in ("uvicorn-h11", "gunicorn", "node", "nginx")),
]
_MOVING = {"date"}
BIG = os.urandom(300_000)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def command_of(server: str, port: int, folder: Path, need_program: NeedProgram) -> list[str]:
    if server.startswith("uvicorn"):
        kind = "h11" if server.endswith("h11") else "httptools"
        words = ["-m", "uvicorn", "--port", str(port), "--http", kind, "--log-level", "warning"]
        return [sys.executable, *words, "--app-dir", str(PROGRAMS), "mirror_asgi:app"]
    if server == "gunicorn":
        words = ["-m", "gunicorn", "--bind", f"127.0.0.1:{port}", "--worker-class", "gthread", "--threads", "8"]
        return [sys.executable, *words, "--log-level", "warning", "--chdir", str(PROGRAMS), "mirror_wsgi:app"]
    if server == "node":
        return [need_program("node"), str(PROGRAMS / "mirror.js"), str(port)]
    return nginx(port, folder, need_program)


def nginx(port: int, folder: Path, need_program: NeedProgram) -> list[str]:
    """Files, redirects and ranges."""
    (folder / "files").mkdir()
    (folder / "files" / "big").write_bytes(BIG)
    (folder / "files" / "small").write_text("small\n")
    user = "user root;" if os.geteuid() == 0 else ""
    temporary = "".join(
        f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(f"""{user} daemon off; worker_processes 1; pid {folder}/pid;
        error_log stderr crit; events {{ worker_connections 512; }}
        http {{ access_log off; {temporary} default_type text/plain; server {{
            listen 127.0.0.1:{port}; root {folder}/files;
            location /stream/ {{ return 200 "streamed"; }}
            location /status/204 {{ return 204; }}
            location /status/304 {{ return 304; }}
            location /status/404 {{ return 404; }}
            location /status/302 {{ return 302 /elsewhere; }}
            location = /bytes/262144 {{ alias {folder}/files/big; }}
            location / {{ return 200 "$request_method $request_uri $http_x_two\\n"; }}
        }} }}""")
    return [need_program("nginx"), "-e", "stderr", "-p", str(folder), "-c", str(folder / "nginx.conf")]


class Behind:
    """One server, reachable directly and through an activator."""

    def __init__(self, name: str, direct: str, activator: Activator) -> None:
        self.name = name
        self.direct = direct
        self.activator = activator
        self.through = activator.address


@pytest.fixture(scope="module", params=SERVERS)
def behind(
    request: pytest.FixtureRequest,
    run_shared_activator: RunActivator,
    need_program: NeedProgram,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Behind]:
    port = free_port()
    folder = tmp_path_factory.mktemp("server")
    command = command_of(request.param, port, folder, need_program)
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, cwd=folder)
    try:
        address = f"127.0.0.1:{port}"
        activator = run_shared_activator(configured([{"name": "a", "hosts": ["*"], "pods": [address]}]))
        activator.wait_ready_pods("a")
        yield Behind(request.param, address, activator)
    finally:
        process.terminate()
        process.wait(20)


def matrix() -> Iterator[tuple[str, bytes]]:
    fields = "User-Agent: e2e\r\nX-Two: 1\r\nAccept: */*\r\nCookie: a=b; c=d\r\nAuthorization: Basic eA==\r\n"
    for method in ("GET", "HEAD", "OPTIONS", "DELETE"):
        for target in ("/", "/a/b%20c?d=e&f=%2F", "/stream/3", "/status/204", "/status/304", "/status/404"):
            yield f"{method} {target}", request(target, method, headers=fields)
    yield "redirect", request("/status/302", headers=fields)
    yield "GET big", request("/bytes/262144", headers=fields)
    yield "range", request("/bytes/262144", headers=fields + "Range: bytes=100-199\r\n")
    yield "compressed", request("/", headers=fields + "Accept-Encoding: gzip\r\n")
    for method in ("POST", "PUT", "PATCH"):
        for size in (0, 1, 100_000):
            yield f"{method} {size}", request("/", method, headers=fields, body=b"b" * size)
        start = request("/", method, headers=fields + "Transfer-Encoding: chunked\r\n")
        yield f"{method} chunked", start + chunked(b"some", b"x" * 70_000, b"more")


def comparable(answer: Answer, method: str) -> tuple[object, ...]:
    dropped = HOP_BY_HOP | _MOVING | (set() if method == "HEAD" else FRAMING)
    headers = [field for field in answer.headers if field[0] not in dropped]
    return answer.status, answer.phrase, headers, answer.body, answer.trailers


@pytest.mark.parametrize("data", [data for _, data in matrix()], ids=[name for name, _ in matrix()])
def test_through_is_as_direct(behind: Behind, data: bytes) -> None:
    method = data.split(b" ", 1)[0].decode()
    with Client(behind.direct) as direct, Client(behind.through) as through:
        without = comparable(direct.ask(data), method)
        assert comparable(through.ask(data), method) == without


def test_a_connection_serves_many_requests(behind: Behind) -> None:
    with Client(behind.through) as client:
        for data in [data for _, data in matrix()] * 2:
            answer = client.ask(data)
            assert answer.status < 500
            if "close" in answer.all("connection"):
                pytest.fail(f"closed after {data[:60]!r}")


def test_a_body_that_filled_the_buffer_is_followed_by_another_request(behind: Behind) -> None:
    """Reading had been paused for a pod that was not connected yet, and the request's last byte came with the pause."""
    with Client(behind.through) as client:
        for size in (100_000, 65_536, 1):
            client.ask(request("/", "POST", body=b"x" * size))
            assert client.ask(request("/")).status == 200


def test_httpx(behind: Behind) -> None:
    with httpx.Client(base_url=f"http://{behind.through}", trust_env=False) as client:
        for number in range(20):
            assert client.get(f"/{number}").status_code == 200
        assert client.post("/", content=iter([b"a", b"b" * 100_000])).status_code in {200, 405}
        with client.stream("GET", "/bytes/262144") as answer:
            assert len(b"".join(answer.iter_bytes())) >= 262_144


def test_aiohttp(behind: Behind) -> None:
    async def one(session: aiohttp.ClientSession, number: int) -> int:
        async with session.get(f"http://{behind.through}/{number}") as answer:
            await answer.read()
            return answer.status

    async def many() -> list[int]:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=50)) as session:
            return await asyncio.gather(*(one(session, number) for number in range(500)))

    assert set(asyncio.run(many())) == {200}
    eventually(lambda: behind.activator.revision("a")["in_flight"] == 0)


def test_curl(behind: Behind, need_program: NeedProgram, tmp_path: Path) -> None:
    curl = [need_program("curl"), "-sS", "--fail", "--max-time", "60"]
    upload = tmp_path / "upload"
    upload.write_bytes(BIG)
    url = f"http://{behind.through}"
    many = subprocess.run([*curl, f"{url}/[1-50]", "-o", str(tmp_path / "#1")], check=False, timeout=120)
    assert many.returncode == 0
    if behind.name != "nginx":  # which takes no bodies for a file
        sent = subprocess.run([*curl, "-T", str(upload), f"{url}/x"], capture_output=True, check=False, timeout=120)
        assert sent.returncode == 0, sent.stderr
        posted = [*curl, "-H", "Transfer-Encoding: chunked", "--data-binary", f"@{upload}", url]
        assert subprocess.run(posted, capture_output=True, check=False, timeout=120).stdout.startswith(b"{")


@pytest.mark.parametrize("keeps_alive", [True, False])
def test_ab(behind: Behind, need_program: NeedProgram, keeps_alive: bool) -> None:
    """An HTTP/1.0 client, with and without keep-alive."""
    words = ["-c", "10", *(["-k"] if keeps_alive else [])]
    told = ab(need_program("ab"), f"http://{behind.through}/status/404", 500, *words)
    assert re.search(r"Non-2xx responses:\s+500\b", told), told


def test_wrk(behind: Behind, need_program: NeedProgram) -> None:
    done = subprocess.run(
        [need_program("wrk"), "-t1", "-c32", "-d2s", f"http://{behind.through}/"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0
    assert "Socket errors" not in done.stdout, done.stdout
    assert "Non-2xx" not in done.stdout, done.stdout
    eventually(lambda: behind.activator.revision("a")["in_flight"] == 0)
