"""Listeners that redirect every request to https, with clients that follow, and with hostile ones."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.e2e.conftest import RunActivator
from tests.e2e.http2_client import Http2Client
from tests.e2e.http_client import Client, ask, request
from tests.e2e.pods import ScriptedPod, serve
from tests.e2e.running import SERVING, Activator, configured, eventually, figures, process_revision
from tests.e2e.test_e2e_tls import Files, trusting


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def redirecting(run_activator: RunActivator, **redirect: object) -> Activator:
    """An activator whose only listener redirects; its program never starts."""
    listen = {"address": "127.0.0.1:0", "redirect": redirect or {"port": 443}}
    return run_activator(configured([process_revision(SERVING)], listen=listen))


def test_a_client_that_follows_keeps_method_body_path_and_query(run_activator: RunActivator, tmp_path: Path) -> None:
    files, port = Files(tmp_path), free_port()
    with ScriptedPod(serve) as pod:
        listen = [{"address": "127.0.0.1:0", "redirect": "https"}, files.listener(f"127.0.0.1:{port}")]
        revision = {"name": "app", "hosts": ["*"], "pods": [pod.address]}
        activator = run_activator(configured([revision], listen=listen))
        with httpx.Client(verify=trusting(), trust_env=False, follow_redirects=True) as client:
            answer = client.post(f"http://localhost:{activator.port}/a//b;c?d=%2F&e", content=b"body")
        assert [one.status_code for one in answer.history] == [308]
        assert answer.history[0].headers["location"] == f"https://localhost:{port}/a//b;c?d=%2F&e"
        assert answer.status_code == 200 and str(answer.url) == f"https://localhost:{port}/a//b;c?d=%2F&e"
        (received,) = pod.requests
        assert (received.line, received.body) == ("POST /a//b;c?d=%2F&e HTTP/1.1", b"body")


def test_it_starts_nothing_and_is_in_log_and_metrics(run_activator: RunActivator, tmp_path: Path) -> None:
    log, path = tmp_path / "access.log", tmp_path / "logged.yaml"
    listen = {"address": "127.0.0.1:0", "redirect": {"status": 301, "port": 8443}}
    path.write_text(json.dumps(configured([process_revision(SERVING)], listen=listen, access_log="json")))
    into_file = ["sh", "-c", 'exec "$@" > "$0"', str(log)]
    activator = run_activator(arguments=["-c", str(path)], prefix=into_file)
    with Client(activator.address) as client:
        for target in ("/", "/.well-known/acme-challenge/token", "/.activator/answers/x", "/healthz"):
            answer = client.ask(request(target, host="A.test:8080"))
            assert (answer.status, answer.header("location")) == (301, f"https://a.test:8443{target}")
            assert answer.body == b"" and not answer.reason
        assert client.ask(request(method="HEAD")).status == 301
        assert client.ask(request(method="OPTIONS", target="/x")).status == 301
        upgrade = request(headers="Connection: Upgrade\r\nUpgrade: websocket\r\n")
        assert client.ask(upgrade).status == 301, "and the connection is kept"
        assert client.ask(request("*", "OPTIONS")).status == 400
    with Client(activator.address) as client:
        client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9000000\r\n\r\nabc")
        assert client.answer().status == 301, "without the rest of the body"
        assert client.is_closed()
    assert activator.ask("/healthz")[0] == 200, "the admin port does not redirect"
    assert activator.revision("app")["queued"] == 0 and not activator.slots("app")
    text = activator.ask("/metrics")[2].decode()
    assert "\nactivator_https_redirects_total 8.0\n" in text
    assert '\nactivator_refused_requests_total{reason="bad_request"} 1.0\n' in text
    eventually(lambda: len(log.read_text().splitlines()) == 9, "nine lines")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["status"] for line in lines] == [301] * 7 + [400, 301]
    assert figures(activator)["processes"] == 0


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.0\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: \r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: .\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a..b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: " + b"a" * 254 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: evil.test@a.test\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a.test/evil\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a.test?x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a.test#\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a.test\\evil\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\tb\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\x00b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\rb\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: \xc3\xa4.test\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a%0d%0ab\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a,b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: [::1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: [::1]x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: [fe80::1%25eth0]\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a.test:99999\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a.test:443:1\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
        b"OPTIONS http://a HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET http://evil@a/ HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET ftp://a/ HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET a HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /#x HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /\x01 HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: a\r\n\r\n",
    ],
)
def test_no_location_without_a_host_and_a_path(shared_redirecting: Activator, data: bytes) -> None:
    answer = ask(shared_redirecting.address, data)
    assert (answer.status, answer.reason, answer.header("location")) == (400, "bad_request", "")


def test_connect_is_not_supported(shared_redirecting: Activator) -> None:
    assert ask(shared_redirecting.address, b"CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n").status == 501


@pytest.mark.parametrize(
    ("target", "host", "location"),
    [
        ("//evil.test/x", "a.test", "https://a.test//evil.test/x"),
        ("/\\evil.test", "a.test", "https://a.test/%5Cevil.test"),
        ('/"<>', "a.test", "https://a.test/%22%3C%3E"),
        ("/%0d%0aSet-Cookie:x=y", "a.test", "https://a.test/%0d%0aSet-Cookie:x=y"),
        ("/@evil.test", "a.test:80", "https://a.test/@evil.test"),
        ("http://b.test:81?x", "a.test", "https://b.test/?x"),
        ("/", "[2001:DB8::1]:80", "https://[2001:db8::1]/"),
        ("/", "[::1]", "https://[::1]/"),
        ("/", "192.0.2.1:8080", "https://192.0.2.1/"),
        ("/", "a.test.", "https://a.test./"),
        ("/", "a.test:", "https://a.test/"),
        ("/" + "a" * 16_000, "a.test", "https://a.test/" + "a" * 16_000),
    ],
)
def test_the_same_host_and_path(shared_redirecting: Activator, target: str, host: str, location: str) -> None:
    answer = ask(shared_redirecting.address, request(target, host=host))
    assert (answer.status, answer.header("location")) == (308, location)
    assert urlsplit(location).hostname is not None


def test_http2_without_tls(shared_redirecting: Activator) -> None:
    with Http2Client(shared_redirecting.address, authority="A.test:80") as client:
        numbers = [client.start("/a?b", method) for method in ("GET", "POST", "HEAD")]
        for number in numbers:
            reply = client.answer(number)
            assert (reply.status, reply.header("location"), reply.body) == (308, "https://a.test/a?b", b"")
        assert client.ask("*", "OPTIONS").status == 400
    with Http2Client(shared_redirecting.address, authority="a.test@evil.test") as client:
        reply = client.ask("/")
        assert (reply.status, reply.header("location")) in {(400, ""), (0, "")}


def test_websockets_and_grpc_over_http2(shared_redirecting: Activator) -> None:
    with Http2Client(shared_redirecting.address) as client:
        client.wait_connect_protocol()
        number = client.begin("/chat?a", "CONNECT", [(":protocol", "websocket")], end=False)
        reply = client.answer(number)
        assert (reply.status, reply.header("location")) == (308, "https://a.test/chat?a")
        grpc = [("te", "trailers"), ("content-type", "application/grpc")]
        assert client.ask("/package.Service/Call", "POST", grpc, b"call").status == 308
        assert client.ask("/after").header("location") == "https://a.test/after"


def test_many_in_one_write(shared_redirecting: Activator) -> None:
    with Client(shared_redirecting.address) as client:
        client.send(b"".join(request(f"/{number}", "POST", body=b"x") for number in range(100)))
        for number in range(100):
            assert client.answer().header("location") == f"https://a.test/{number}"
    with Client(shared_redirecting.address) as client:
        client.send(b"GET /1.0 HTTP/1.0\r\nHost: a.test\r\n\r\n")
        assert client.answer().header("location") == "https://a.test/1.0"
        assert client.is_closed()


def test_a_reload_moves_the_port_of_https_and_ends_the_redirect(run_activator: RunActivator, tmp_path: Path) -> None:
    files, front, first, second = Files(tmp_path), free_port(), free_port(), free_port()
    address = f"127.0.0.1:{front}"

    def configuration(port: int, **listener: str) -> dict[str, object]:
        listen = [{"address": address, **listener}, files.listener(f"127.0.0.1:{port}")]
        return configured([process_revision(SERVING)], listen=listen)

    path = tmp_path / "changing.yaml"
    path.write_text(json.dumps(configuration(first, redirect="https")))
    activator = run_activator(arguments=["-c", str(path)])
    assert ask(address, request()).header("location") == f"https://a.test:{first}/"
    path.write_text(json.dumps(configuration(second, redirect="https")))
    assert activator.command("/reload")[0] == 200
    eventually(lambda: ask(address, request()).header("location") == f"https://a.test:{second}/")
    path.write_text(json.dumps(configuration(second)))
    assert activator.command("/reload")[0] == 200
    eventually(lambda: ask(address, request()).status == 200)


def test_behind_a_proxy_and_on_a_unix_socket(run_activator: RunActivator, tmp_path: Path) -> None:
    path = f"unix:{tmp_path}/front.sock"
    listen = [
        {"address": "127.0.0.1:0", "redirect": {"port": 443}, "proxy_protocol": ["127.0.0.0/8"]},
        {"address": path, "redirect": {"port": 443}},
    ]
    activator = run_activator(configured([process_revision(SERVING)], listen=listen))
    with Client(activator.address) as client:
        client.send(b"PROXY TCP4 192.0.2.1 192.0.2.2 1 80\r\n")
        assert client.ask(request()).header("location") == "https://a.test/"
        assert client.ask(request("/b")).header("location") == "https://a.test/b"
    assert ask(path, request()).header("location") == "https://a.test/"


@pytest.fixture(scope="module")
def shared_redirecting(run_shared_activator: RunActivator) -> Activator:
    return redirecting(run_shared_activator)
