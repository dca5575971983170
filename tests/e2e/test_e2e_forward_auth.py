"""An external authoriser in front of a revision, as a process of its own and as one that does what a test says."""

from __future__ import annotations

import json
import random
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import trustme

from tests.e2e.conftest import RunActivator, one_worker
from tests.e2e.http2_client import Http2Client
from tests.e2e.http_client import Client, ask, request
from tests.e2e.load import limited
from tests.e2e.pods import PodSide, ScriptedPod, serve
from tests.e2e.running import PROGRAMS, SERVING, WORKERS, configured, eventually, process_revision

ALICE = "Authorization: Basic alice\r\n"


class Authoriser:
    """The program, and what it was asked."""

    def __init__(self, log: Path) -> None:
        self.log = log
        command = [sys.executable, "-I", str(PROGRAMS / "authoriser.py"), str(log)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.url = f"http://127.0.0.1:{int(self.process.stdout.readline())}/verify?x=y"

    def asked(self) -> list[dict[str, str]]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [{name.lower(): value for name, value in json.loads(line)[1]} for line in lines]

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()


@pytest.fixture
def authoriser(tmp_path: Path) -> Iterator[Authoriser]:
    made = Authoriser(tmp_path / "asked.jsonl")
    yield made
    made.close()


@pytest.fixture
def pod() -> Iterator[ScriptedPod]:
    with ScriptedPod(serve) as made:
        yield made


def auth(url: str, **more: Any) -> dict[str, Any]:
    return {"url": url, "headers": ["Remote-User", "Remote-Groups"], **more}


def test_only_who_is_allowed_starts_a_program(run_activator: RunActivator, authoriser: Authoriser) -> None:
    revision = {**process_revision(SERVING), "forward_auth": auth(authoriser.url)}
    activator = run_activator(configured([revision], access_log="json"))
    answer = ask(activator.address, request("/x?y=z", host="app.test"))
    assert (answer.status, answer.body, answer.reason) == (401, b"who are you?", "auth_denied")
    assert answer.header("www-authenticate") == 'Basic realm="test"'
    answer = ask(activator.address, request("/x", host="app.test", headers="Accept: text/html\r\n"))
    assert (answer.status, answer.header("set-cookie")) == (302, "session=1")
    assert answer.header("location") == "https://auth.test/?rd=app.test/x"
    assert ask(activator.address, request("/admin", host="app.test", headers=ALICE)).status == 403
    for size in (10, 100_000, 3_000_000):
        answer = ask(activator.address, request("/x", "POST", body=b"x" * size))
        assert (answer.status, answer.reason) == (401, "auth_denied")
    answer = ask(activator.address, request("/x", "HEAD"))
    assert (answer.status, answer.header("content-length"), answer.body) == (401, "12", b"")
    with Http2Client(activator.address, authority="app.test") as client:
        reply = client.ask("/x")
        assert (reply.status, reply.body, reply.reason) == (401, b"who are you?", "auth_denied")
        assert reply.header("www-authenticate") == 'Basic realm="test"'
        assert activator.revision("app")["slots"] == [], "nothing was started"
        many = [client.start("/x", headers=[("authorization", "Basic alice")]) for _ in range(60)]
        many += [client.start("/x") for _ in range(60)]
        assert [client.answer(number).status for number in many] == [200] * 60 + [401] * 60
    assert ask(activator.address, request("/x", host="app.test", headers=ALICE)).status == 200
    asked = authoriser.asked()
    assert len(asked) == 129
    assert asked[0]["x-forwarded-uri"] == "/x?y=z" and asked[0]["x-forwarded-method"] == "GET"
    assert asked[0]["x-forwarded-host"] == "app.test" and asked[0]["x-forwarded-for"] == "127.0.0.1"
    metrics = activator.ask("/metrics")[2].decode()
    assert 'reason="auth_denied"' in metrics


@one_worker
def test_a_client_beyond_its_rate_asks_no_authoriser(run_activator: RunActivator, authoriser: Authoriser) -> None:
    limit = {"requests": "3/day"}
    revision = {**process_revision(SERVING), "rate_limit": limit, "forward_auth": auth(authoriser.url, cache="1h")}
    activator = run_activator(configured([revision], forwarded={"trust": ["127.0.0.0/8"]}))

    def statuses_of(address: str, headers: str = "") -> list[int]:
        forwarded = f"X-Forwarded-For: {address}\r\n"
        with Client(activator.address) as client:
            return [client.ask(request(headers=forwarded + headers)).status for _ in range(50)]

    assert statuses_of("192.0.2.1") == [401] * 3 + [429] * 47
    assert len(authoriser.asked()) == 3 and activator.revision("app")["slots"] == [], "nothing was started"
    assert statuses_of("192.0.2.1", ALICE) == [429] * 50
    assert len(authoriser.asked()) == 3 and activator.revision("app")["slots"] == []
    assert statuses_of("192.0.2.2", ALICE) == [200] * 3 + [429] * 47
    assert len(authoriser.asked()) == 4, "one decision is cached"


def test_what_the_pod_gets(run_activator: RunActivator, authoriser: Authoriser, pod: ScriptedPod) -> None:
    activator = run_activator(configured([limited([pod.address], 10, forward_auth=auth(authoriser.url))]))
    forged = "Remote-User: root\r\nremote_user: root\r\nREMOTE-GROUPS: wheel\r\n"
    body = b"x" * 300_000
    answer = ask(activator.address, request("/x", "POST", headers=ALICE + forged, body=body))
    assert answer.status == 200
    with Client(activator.address) as client:
        client.send(request("/x", "POST", headers=f"{ALICE}{forged}Content-Length: 5\r\nExpect: 100-continue\r\n"))
        client.send(b"hello")
        answer = client.answer()
        assert answer.status == 200
        client.send(request("/x", "POST", headers=f"{ALICE}{forged}Transfer-Encoding: chunked\r\n"))
        client.send(f"1\r\nx\r\n0\r\n{forged}X-Sum: 1\r\n\r\n".encode())
        assert client.answer().status == 200
        assert pod.requests[-1].trailers == [("X-Sum", "1")]
    with Http2Client(activator.address) as http2:
        headers = [("authorization", "Basic alice"), ("remote-user", "root"), ("remote_user", "root")]
        assert http2.ask(headers=headers).status == 200
    assert [one.body for one in pod.requests[:2]] == [body, b"hello"]
    for one in pod.requests:
        assert one.all("remote-user") == ["alice"] and one.all("remote_user") == []
        assert "wheel" not in str(one.headers)
    assert all("content-type" not in one and "content-length" not in one for one in authoriser.asked())


def test_a_tunnel_is_asked_about_once(run_activator: RunActivator, authoriser: Authoriser) -> None:
    def websocket(side: PodSide) -> None:
        side.head()
        side.send(b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n")
        side.send(side.read(5).upper())
        side.drain()

    upgrade = "Connection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: eA==\r\n"
    with ScriptedPod(websocket) as pod:
        activator = run_activator(configured([limited([pod.address], 10, forward_auth=auth(authoriser.url))]))
        assert ask(activator.address, request(headers=upgrade)).status == 401
        with Client(activator.address) as client:
            client.send(request(headers=ALICE + upgrade))
            raw = b""
            while b"\r\n\r\n" not in raw:
                raw += client.read(1)
            assert raw.startswith(b"HTTP/1.1 101 ")
            client.send(b"hello")
            assert client.read(5) == b"HELLO"
        assert len(authoriser.asked()) == 2


def test_an_authoriser_that_is_gone_lets_nobody_in(
    run_activator: RunActivator, authoriser: Authoriser, pod: ScriptedPod
) -> None:
    activator = run_activator(configured([limited([pod.address], 10, forward_auth=auth(authoriser.url))]))
    assert ask(activator.address, request(headers=ALICE)).status == 200
    authoriser.close()
    for _ in range(3):
        answer = ask(activator.address, request(headers=ALICE))
        assert (answer.status, answer.reason, answer.header("retry-after")) == (503, "auth_unavailable", "1")
    assert len(pod.requests) == 1
    activator.wait_log("the authoriser at .* failed: it ")
    assert len(activator.logged("the authoriser at .* failed: it ")) <= WORKERS, "each worker logs it once"
    assert "Basic alice" not in activator.text()


def test_a_stopped_authoriser_costs_requests_of_its_revision_only(
    run_activator: RunActivator, authoriser: Authoriser, pod: ScriptedPod
) -> None:
    slow = {**limited([pod.address], 10, "slow"), "hosts": ["slow.test"], "forward_auth": auth(authoriser.url)}
    slow["forward_auth"]["timeout"] = "1s"
    activator = run_activator(configured([slow, {**limited([pod.address], 10, "fast"), "hosts": ["fast.test"]}]))
    assert ask(activator.address, request(host="slow.test", headers=ALICE)).status == 200
    authoriser.process.send_signal(signal.SIGSTOP)
    stat = Path(f"/proc/{authoriser.process.pid}/stat")
    eventually(lambda: stat.read_text("utf-8").rpartition(")")[2].split()[0] == "T", "the authoriser is stopped")
    with Http2Client(activator.address, authority="slow.test") as client:
        numbers = [client.start(headers=[("authorization", "Basic alice")]) for _ in range(100)]
        began_s = time.monotonic()
        answers = 0
        while time.monotonic() - began_s < 0.5:
            assert ask(activator.address, request(host="fast.test")).status == 200
            answers += 1
        assert answers > 10
        assert {client.answer(number).reason for number in numbers} == {"auth_unavailable"}
    authoriser.process.send_signal(signal.SIGCONT)
    eventually(lambda: ask(activator.address, request(host="slow.test", headers=ALICE)).status == 200)


def holding(side: PodSide) -> None:
    """An authoriser that answers when the test says so."""
    while True:
        side.request()
        side.wait()
        side.answer(b"", "Remote-User: alice\r\n")


def silent(side: PodSide) -> None:
    side.request()
    side.stall()


def url_of(authoriser: ScriptedPod) -> str:
    return f"http://{authoriser.address}/verify"


@pytest.mark.parametrize("protocol", ["http1", "http2"])
def test_a_client_that_leaves_ends_its_question(run_activator: RunActivator, protocol: str) -> None:
    with ScriptedPod(silent) as authoriser:
        revision = {**process_revision(SERVING), "forward_auth": auth(url_of(authoriser), timeout="30s")}
        activator = run_activator(configured([revision]))
        if protocol == "http1":
            client = Client(activator.address)
            client.send(request())
            authoriser.wait_open(1)
            client.reset()
        else:
            with Http2Client(activator.address) as http2:
                number = http2.start()
                authoriser.wait_open(1)
                http2.reset(number)
                authoriser.wait_open(0)
        authoriser.wait_open(0)
        activator.wait_idle("app")
        assert activator.revision("app")["slots"] == []


def test_a_reload_during_questions(run_activator: RunActivator, pod: ScriptedPod, tmp_path: Path) -> None:
    with ScriptedPod(holding) as authoriser, ScriptedPod(serve) as other:
        made = configured([limited([pod.address], 100, forward_auth=auth(url_of(authoriser), timeout="30s"))])
        path = tmp_path / "reloaded.yaml"
        path.write_text(json.dumps(made))
        activator = run_activator(arguments=["-c", str(path)])
        clients = [Client(activator.address) for _ in range(20)]
        for client in clients:
            client.send(request())
        eventually(lambda: len(authoriser.requests) == 20)
        made["revisions"][0]["forward_auth"]["url"] = url_of(other)
        path.write_text(json.dumps(made))
        activator.signal(signal.SIGHUP)
        activator.wait_log(" reloaded")
        eventually(lambda: ask(activator.address, request()).status == 200 and bool(other.requests))
        assert len(authoriser.requests) == 20
        authoriser.go_on()
        assert [client.answer().status for client in clients] == [200] * 20
        for client in clients:
            client.close()
        assert sum(one.all("remote-user") == ["alice"] for one in pod.requests) == 20
        del made["revisions"][0]["forward_auth"]
        path.write_text(json.dumps(made))
        activator.signal(signal.SIGHUP)
        activator.wait_log(" reloaded", 2)
        asked = len(other.requests)
        eventually(lambda: ask(activator.address, request()).status == 200 and len(other.requests) == asked)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_cached_decision(run_activator: RunActivator, authoriser: Authoriser, pod: ScriptedPod, workers: int) -> None:
    revision = limited([pod.address], 10, forward_auth=auth(authoriser.url, cache="1h"))
    activator = run_activator(configured([revision], workers=workers))
    with Client(activator.address) as client:
        for _ in range(20):
            assert client.ask(request("/x", headers=ALICE)).status == 200
        assert len(authoriser.asked()) == 1
        assert client.ask(request("/y", headers=ALICE)).status == 200
        assert client.ask(request("/x")).status == client.ask(request("/x")).status == 401
        assert len(authoriser.asked()) == 4
    assert all(one.all("remote-user") == ["alice"] for one in pod.requests) and len(pod.requests) == 21


def raw(answer: bytes) -> Any:
    def script(side: PodSide) -> None:
        side.request()
        side.send(answer)
        side.stall()

    return script


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nContent-Length: 1\r\n\r\n",
        b"HTTP/1.1 403 Forbidden\r\nContent-Length: 70000\r\n\r\n" + b"x" * 70_000,
        b"HTTP/1.1 100 Continue\r\n\r\n" * 20,
        b"HTTP/1.1 200 OK\r\nX: a\0b\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
    ],
    ids=["cut", "two_lengths", "long", "interim", "nul", "ssh"],
)
def test_an_invalid_answer_lets_nobody_in(run_activator: RunActivator, pod: ScriptedPod, answer: bytes) -> None:
    with ScriptedPod(raw(answer)) as authoriser:
        revision = limited([pod.address], 10, forward_auth=auth(url_of(authoriser), timeout="500ms"))
        activator = run_activator(configured([revision]))
        for _ in range(3):
            found = ask(activator.address, request())
            assert (found.status, found.reason) == (503, "auth_unavailable")
        assert pod.requests == []
        authoriser.wait_open(0)


class SecureHandler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("trusts", [True, False])
def test_an_authoriser_over_tls(run_activator: RunActivator, pod: ScriptedPod, tmp_path: Path, trusts: bool) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.crt"))
    with ThreadingHTTPServer(("127.0.0.1", 0), SecureHandler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        revision = limited([pod.address], 10, forward_auth={"url": f"https://localhost:{server.server_port}/"})
        trust = {"SSL_CERT_FILE": str(tmp_path / "ca.crt")} if trusts else {}
        activator = run_activator(configured([revision]), **trust)
        for _ in range(3):
            answer = ask(activator.address, request())
            assert (answer.status, answer.reason) == ((200, "") if trusts else (503, "auth_unavailable"))
        server.shutdown()
        thread.join()
    assert len(pod.requests) == (3 if trusts else 0)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_flood_of_clients_that_come_and_go(
    run_activator: RunActivator, authoriser: Authoriser, pod: ScriptedPod, workers: int
) -> None:
    """Clients that leave at any moment, in front of an authoriser that is stopped now and then: nothing is left."""
    revision = limited([pod.address], 10, forward_auth=auth(authoriser.url, timeout="300ms"))
    activator = run_activator(configured([revision], workers=workers))
    rng = random.Random(1)
    statuses: dict[int, int] = {}
    for _ in range(20):
        authoriser.process.send_signal(rng.choice([signal.SIGSTOP, signal.SIGCONT, signal.SIGCONT]))
        clients = [Client(activator.address) for _ in range(20)]
        for client in clients:
            client.send(request("/x", headers=ALICE if rng.random() < 0.7 else ""))
        for client in clients:
            if rng.random() < 0.5:
                client.reset()
            else:
                found = client.answer()
                statuses[found.status] = statuses.get(found.status, 0) + 1
                client.close()
    authoriser.process.send_signal(signal.SIGCONT)
    assert set(statuses) == {200, 401, 503}, statuses
    eventually(lambda: ask(activator.address, request("/x", headers=ALICE)).status == 200)
    activator.wait_idle("app")
    assert activator.revision("app")["in_flight"] == 0
    assert all(one.all("remote-user") == ["alice"] for one in pod.requests)
