"""TLS on both sides, with certificates of a test's own authority."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import httpx
import pytest
import trustme
from websockets.sync.client import connect

from activator.runtime.handshake import TLS_HANDSHAKE_TIMEOUT_S
from tests.e2e.conftest import one_worker
from tests.e2e.http_client import Answer, Client, request
from tests.e2e.pods import ScriptedPod
from tests.e2e.running import Activator, cli, configured, eventually
from tests.e2e.test_e2e_upgrades import echo_server  # noqa: F401 - a fixture

RunActivator = Callable[..., Activator]
AUTHORITY = trustme.CA()
OTHER_AUTHORITY = trustme.CA()


class Files:
    """A certificate and its key as files, and the authority's certificate."""

    def __init__(self, folder: Path, name: str = "localhost", authority: trustme.CA = AUTHORITY) -> None:
        self.certificate = folder / "tls.crt"
        self.key = folder / "tls.key"
        self.authority = folder / "ca.crt"
        AUTHORITY.cert_pem.write_to_path(str(self.authority))
        self.issue(name, authority)

    def issue(self, name: str, authority: trustme.CA = AUTHORITY) -> bytes:
        """Write a new pair, each file in one step as tools do; the certificate in DER."""
        issued = authority.issue_cert(name, "127.0.0.1", not_after=dt.datetime(2100, 1, 1, tzinfo=dt.UTC))
        for path, data in (
            (self.certificate, b"".join(blob.bytes() for blob in issued.cert_chain_pems)),
            (self.key, issued.private_key_pem.bytes()),
        ):
            fresh = path.with_suffix(".new")
            fresh.write_bytes(data)
            os.replace(fresh, path)
        return ssl.PEM_cert_to_DER_cert(issued.cert_chain_pems[0].bytes().decode())

    def listener(self, address: str = "127.0.0.1:0", **more: str) -> dict[str, str]:
        return {"address": address, "certificate": str(self.certificate), "key": str(self.key), **more}


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def trusting(authority: trustme.CA = AUTHORITY) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


def served_certificate(activator: Activator) -> bytes:
    """What a new connection is shown, in DER."""
    with (
        socket.create_connection((activator.host, activator.port), timeout=20) as sock,
        trusting().wrap_socket(sock, server_hostname="localhost") as secured,
    ):
        found = secured.getpeercert(binary_form=True)
        assert found is not None
        return found


def ask(activator: Activator) -> Answer:
    with Client(activator.address) as client:
        client.secure(trusting(), "localhost")
        return client.ask(request())


def revision(address: str, **more: Any) -> dict[str, Any]:
    return {"name": "a", "hosts": ["*"], "pods": [address], **more}


@pytest.fixture
def pod() -> Iterator[ScriptedPod]:
    def serve(side: Any) -> None:
        while True:
            side.request()
            side.answer()

    with ScriptedPod(serve) as one:
        yield one


@one_worker
def test_a_listener_with_tls(run_activator: RunActivator, files: Files, pod: ScriptedPod) -> None:
    metrics = {"knative": {"protocol": "prometheus", "endpoint": "127.0.0.1:0"}}
    activator = run_activator(configured([revision(pod.address)], listen=files.listener(), metrics=metrics))
    activator.wait_ready_pods("a")
    with httpx.Client(verify=trusting(), trust_env=False) as client:
        for _ in range(3):
            answer = client.get(f"https://localhost:{activator.port}/", headers={"Connection": "keep-alive"})
            assert (answer.status_code, answer.text) == (200, "fine")
    assert {one.all("x-forwarded-proto")[0] for one in pod.requests} == {"https"}
    where = activator.wait_log(r"Knative's metrics on (\S+)")
    text = httpx.get(f"http://{where}/metrics", trust_env=False).text
    (count,) = [line for line in text.splitlines() if line.startswith("http_server_request_duration_seconds_count")]
    assert 'url_scheme="https"' in count and f'server_port="{activator.port}"' in count and count.endswith(" 3.0")


def test_what_is_agreed_upon(run_activator: RunActivator, files: Files, pod: ScriptedPod) -> None:
    activator = run_activator(configured([revision(pod.address)], listen=files.listener(min_version="1.3")))
    context = trusting()
    context.set_alpn_protocols(["h2", "http/1.1"])
    with (
        socket.create_connection((activator.host, activator.port), timeout=20) as sock,
        context.wrap_socket(sock, server_hostname="localhost") as secured,
    ):
        assert secured.selected_alpn_protocol() == "h2"
        assert secured.version() == "TLSv1.3"
    old = trusting()
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with (
        socket.create_connection((activator.host, activator.port), timeout=20) as sock,
        pytest.raises(ssl.SSLError),
    ):
        old.wrap_socket(sock, server_hostname="localhost")


def test_large_bodies_both_ways(run_activator: RunActivator, files: Files) -> None:
    def script(side: Any) -> None:
        side.answer(side.request().body)

    body = os.urandom(3_000_000)
    with ScriptedPod(script) as pod:
        activator = run_activator(configured([revision(pod.address)], listen=files.listener()))
        activator.wait_ready_pods("a")
        answer = httpx.post(f"https://localhost:{activator.port}/", content=body, verify=trusting(), trust_env=False)
        assert answer.content == body


PAUSE_S = 7.0  # more than TLS is given to end where nothing is left to be sent


def has_ended(revision: dict[str, Any], last: str) -> bool:
    return bool(revision["failed"] == {"pod_closed": 1} if last == "cut" else revision["in_flight"] == 0)


@pytest.mark.parametrize("last", ["asked to close", "cut"])
def test_a_client_that_pauses_gets_a_last_answer_whole(run_activator: RunActivator, files: Files, last: str) -> None:
    size = 6_000_000  # more than the kernels hold: a part of it waits in the activator

    def script(side: Any) -> None:
        side.request()
        side.answer(b"w" * size)
        if last == "cut":
            side.request()
            side.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhel")

    with ScriptedPod(script) as pod:
        activator = run_activator(configured([revision(pod.address)], listen=[files.listener()]))
        with Client(activator.address, receive_buffer=65_536) as client:
            client.secure(trusting(), "localhost")
            close = "Connection: close\r\n" if last == "asked to close" else ""
            client.send(request("/whole", headers=close) + (b"" if close else request("/cut")))
            answer = client.head()
            while not has_ended(activator.revision("a"), last):  # then only the connection's end is to come
                answer.body += client.read(50_000)
            time.sleep(PAUSE_S)
            answer.body += client.read(size - len(answer.body))
            assert answer.body == b"w" * size
            if last == "cut":
                assert client.head().status == 200 and client.read(3) == b"hel"
            assert client.is_closed()


def test_a_web_socket_over_tls(
    run_activator: RunActivator,
    files: Files,
    echo_server: str,  # noqa: F811
) -> None:
    activator = run_activator(configured([revision(echo_server)], listen=files.listener()))
    activator.wait_ready_pods("a")
    with connect(f"wss://localhost:{activator.port}/", ssl=trusting(), proxy=None) as client:
        client.send("hello")
        assert client.recv() == "hello"
    eventually(lambda: activator.revision("a")["in_flight"] == 0)


def test_in_the_clear_on_a_port_with_tls(run_activator: RunActivator, files: Files, pod: ScriptedPod) -> None:
    """A client that speaks HTTP there is cut off, and nothing else happens."""
    activator = run_activator(configured([revision(pod.address)], listen=files.listener()))
    activator.wait_ready_pods("a")
    with Client(activator.address) as client:
        client.send(request())
        assert client.is_closed()
    assert ask(activator).status == 200


def test_what_is_not_tls_ends_at_once(run_activator: RunActivator, files: Files, pod: ScriptedPod) -> None:
    """Not with the time limit of the handshake, during which it would be one of those that are counted."""
    activator = run_activator(configured([revision(pod.address)], listen=files.listener()))
    for said in (
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x00\x05hello",
        b"\0" * 100_000,
    ):
        for pause_s in (0.0, 0.02):  # TLS has begun, or has not
            with socket.create_connection((activator.host, activator.port)) as sock:
                sock.settimeout(TLS_HANDSHAKE_TIMEOUT_S / 2)
                time.sleep(pause_s)
                with contextlib.suppress(ConnectionError):
                    sock.sendall(said)
                    while sock.recv(1_000):
                        pass
    assert ask(activator).status == 200


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_client_of_http_2_alone_is_refused_by_an_alert(
    run_activator: RunActivator, files: Files, pod: ScriptedPod, version: ssl.TLSVersion
) -> None:
    """And so is one whose versions are too old: without an alert both would wait, or guess."""
    activator = run_activator(configured([revision(pod.address)], listen={**files.listener(), "alpn": ["http/1.1"]}))
    context = trusting()
    context.maximum_version = version
    context.set_alpn_protocols(["h2"])
    with socket.create_connection((activator.host, activator.port), timeout=20) as sock:
        with pytest.raises(ssl.SSLError, match="alert no application protocol"):
            context.wrap_socket(sock, server_hostname="localhost")
        assert sock.fileno() == -1 or sock.recv(1) == b"", "the connection is closed, too"
    eventually(lambda: figure_of(activator, "activator_client_handshakes") == 0.0)
    assert ask(activator).status == 200


def figure_of(activator: Activator, name: str) -> float:
    lines = activator.ask("/metrics")[2].decode().splitlines()
    return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name + " "))


def test_a_certificate_for_each_name(run_activator: RunActivator, tmp_path: Path, pod: ScriptedPod) -> None:
    pairs = []
    for name in ("a.test", "*.b.test"):
        folder = tmp_path / name.replace("*", "any")
        folder.mkdir()
        pairs.append(Files(folder, name))
    listener = {
        "address": "127.0.0.1:0",
        "certificates": [{"certificate": str(one.certificate), "key": str(one.key)} for one in pairs],
    }
    activator = run_activator(configured([revision(pod.address)], listen=listener))
    for name, shown in (
        ("a.test", "a.test"),
        ("A.test", "a.test"),
        ("x.b.test", "*.b.test"),
        ("b.test", "a.test"),
        ("y.x.b.test", "a.test"),
        ("", "a.test"),
    ):
        assert names_shown(activator, name) == shown, name
    pairs[1].issue("c.test")
    eventually(lambda: names_shown(activator, "c.test") == "c.test")
    assert names_shown(activator, "a.test") == "a.test"


def names_shown(activator: Activator, name: str) -> str:
    """The first name of the certificate that a client gets which asks for `name`; empty: it asks for none."""
    context = trusting()
    context.check_hostname = False
    with (
        socket.create_connection((activator.host, activator.port), timeout=20) as sock,
        context.wrap_socket(sock, server_hostname=name or None) as secured,
    ):
        shown: Any = secured.getpeercert()
        return str(shown["subjectAltName"][0][1])


def test_a_new_certificate_is_used_without_a_restart(
    run_activator: RunActivator, files: Files, pod: ScriptedPod
) -> None:
    activator = run_activator(configured([revision(pod.address)], listen=files.listener()))
    activator.wait_ready_pods("a")
    with Client(activator.address) as kept:
        kept.secure(trusting(), "localhost")
        assert kept.ask(request()).status == 200
        renewed = files.issue("localhost")
        eventually(lambda: served_certificate(activator) == renewed)
        assert kept.ask(request()).status == 200
        files.certificate.write_text("nonsense")
        activator.wait_log("the new certificate of .* is not used, the old one stays")
        assert served_certificate(activator) == renewed
        again = files.issue("localhost")
        activator.signal(signal.SIGHUP)
        eventually(lambda: served_certificate(activator) == again)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"certificate": "/nowhere/tls.crt"}, "No such file"),
        ({"key": "{certificate}"}, "no certificate and its unencrypted key"),
        ({"min_version": "1.1"}, '"1.2" or "1.3"'),
        ({"address": "nonsense"}, "host:port"),
    ],
)
def test_mistakes_are_told_by_check(tmp_path: Path, files: Files, change: dict[str, str], told: str) -> None:
    listener = files.listener("127.0.0.1:8443")
    listener.update({key: value.format(certificate=files.certificate) for key, value in change.items()})
    path = tmp_path / "a.yaml"
    lines = [f"  {key}: '{value}'" for key, value in listener.items()]
    path.write_text("\n".join(["listen:", *lines, "revisions: [{name: a, hosts: ['*'], pods: ['127.0.0.1:1']}]", ""]))
    done = cli("check", str(path))
    assert done.returncode == 1
    (line,) = (done.stdout + done.stderr).strip().splitlines()
    assert told in line
    assert f"{path}:" in line


# --- pods that are spoken to over TLS ---


class _Answering(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = repr(self.connection.getpeercert()).encode() if isinstance(self.connection, ssl.SSLSocket) else b"clear"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class SecurePod:
    """A real server with TLS; `names`: the server names that clients asked for."""

    def __init__(self, name: str, authority: trustme.CA = AUTHORITY, wants_client: bool = False) -> None:
        self.names: list[str | None] = []
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert(name).configure_cert(context)
        if wants_client:
            AUTHORITY.configure_trust(context)
            context.verify_mode = ssl.CERT_REQUIRED
        context.sni_callback = lambda _sock, asked, _context: self.names.append(asked)
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), _Answering)
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True, do_handshake_on_connect=False)
        self.server.handle_error = lambda *_: None  # type: ignore[method-assign]
        self.server.daemon_threads = True
        self.address = f"127.0.0.1:{self.server.server_address[1]}"
        self._thread = threading.Thread(target=self.server.serve_forever)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self._thread.join()
        self.server.server_close()


def test_a_pod_over_tls(run_activator: RunActivator, files: Files) -> None:
    with SecurePod("pod.test") as pod:
        tls = {"ca": str(files.authority), "server_name": "pod.test"}
        activator = run_activator(configured([revision(pod.address, tls=tls)]))
        activator.wait_ready_pods("a")
        with Client(activator.address) as client:
            for _ in range(3):
                assert client.ask(request()).status == 200
        assert set(pod.names) == {"pod.test"}
        assert len(pod.names) == 1, "one connection, kept"


def test_a_pod_that_wants_to_know_who_asks(run_activator: RunActivator, files: Files) -> None:
    with SecurePod("pod.test", wants_client=True) as pod:
        tls = {"ca": str(files.authority), "server_name": "pod.test"}
        tls |= {"certificate": str(files.certificate), "key": str(files.key)}
        activator = run_activator(configured([revision(pod.address, tls=tls)]))
        activator.wait_ready_pods("a")
        with Client(activator.address) as client:
            answer = client.ask(request())
            assert answer.status == 200
            assert b"localhost" in answer.body


@pytest.mark.parametrize(
    ("name", "authority", "more"),
    [
        ("pod.test", OTHER_AUTHORITY, {}),
        ("other.test", AUTHORITY, {}),
    ],
    ids=["an unknown authority", "another name"],
)
def test_a_pod_that_cannot_be_verified_gets_nothing(
    run_activator: RunActivator, files: Files, name: str, authority: trustme.CA, more: dict[str, Any]
) -> None:
    with SecurePod(name, authority) as pod:
        tls = {"ca": str(files.authority), "server_name": "pod.test"}
        activator = run_activator(configured([revision(pod.address, tls=tls)]))
        activator.wait_ready_pods("a")
        with Client(activator.address) as client:
            answer = client.ask(request())
            assert (answer.status, answer.reason) == (502, "tls_failed")
        activator.wait_logged_once("TLS handshake with the pod at .*certificate verify failed")
    unverified = {"verify": False}
    with SecurePod(name, authority) as pod:
        activator = run_activator(configured([revision(pod.address, tls=unverified)]))
        activator.wait_ready_pods("a")
        with Client(activator.address) as client:
            assert client.ask(request()).status == 200


def test_a_pod_that_speaks_in_the_clear_gets_nothing(run_activator: RunActivator, pod: ScriptedPod) -> None:
    def script(side: Any) -> None:
        side.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        side.drain()

    with ScriptedPod(script) as clear:
        activator = run_activator(configured([revision(clear.address, tls={"verify": False})]))
        activator.wait_ready_pods("a")
        with Client(activator.address) as client:
            answer = client.ask(request())
            assert (answer.status, answer.reason) == (502, "tls_failed")


@pytest.mark.parametrize(
    ("tls", "told"),
    [
        ({"ca": "/nowhere"}, "No such file"),
        ({"certificate": "/nowhere/tls.crt"}, "`certificate` and `key` require each other"),
    ],
)
def test_mistakes_about_pods_are_told_by_check(tmp_path: Path, tls: dict[str, str], told: str) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(f"revisions: [{{name: a, hosts: ['*'], pods: ['127.0.0.1:1'], tls: {tls}}}]\n")
    done = cli("check", str(path))
    assert done.returncode == 1
    assert told in done.stdout + done.stderr
