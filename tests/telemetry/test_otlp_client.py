"""How spans are posted: OpenTelemetry's variables, and what is tried again."""

from __future__ import annotations

import gzip
import ssl
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from activator.telemetry.tracing.otlp_client import TRACE_RETRY_MAX_S, OtlpClient
from tests.telemetry.http_collector import Answer, HttpCollector


class Server(HttpCollector):
    """Answers as it is told, and remembers what it was asked."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []  # in turn; then 200
        self.asked: list[tuple[str, dict[str, str], bytes]] = []
        super().__init__()

    def take(self, path: str, headers: dict[str, str], body: bytes) -> Answer:
        self.asked.append((path, headers, body))
        return self.answers.pop(0) if self.answers else (200, {})


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


class Pauses:
    """Waits that take no time."""

    def __init__(self, *, until: int = 100) -> None:
        self.taken: list[float] = []
        self._until = until

    def __call__(self, seconds: float) -> bool:
        self.taken.append(seconds)
        return len(self.taken) >= self._until


@pytest.mark.parametrize(
    ("endpoint", "environ", "used"),
    [
        ("", {}, "http://localhost:4318/v1/traces"),
        ("http://a/own", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://b:1"}, "http://a/own"),
        ("", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://b:1/"}, "http://b:1/v1/traces"),
        (
            "",
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://b:1", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c/d"},
            "http://c/d",
        ),
    ],
)
def test_where_to(endpoint: str, environ: dict[str, str], used: str) -> None:
    assert OtlpClient(endpoint, environ).endpoint == used


def test_what_is_posted(server: Server) -> None:
    client = OtlpClient(
        "", {"OTEL_EXPORTER_OTLP_ENDPOINT": server.url, "OTEL_EXPORTER_OTLP_HEADERS": "who=me,x-a=b%20c"}
    )
    assert client.post(b"spans") and client.post(b"more")
    (path, headers, body), (_, _, second) = server.asked
    assert (path, body, second) == ("/v1/traces", b"spans", b"more")
    assert headers["content-type"] == "application/x-protobuf"
    assert (headers["who"], headers["x-a"]) == ("me", "b c")
    assert "content-encoding" not in headers
    client.close()


@pytest.mark.parametrize(("name", "unpack"), [("gzip", gzip.decompress), ("deflate", zlib.decompress)])
def test_compression(server: Server, name: str, unpack: Any) -> None:
    environ = {"OTEL_EXPORTER_OTLP_COMPRESSION": "none", "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION": name}
    assert OtlpClient(f"{server.url}/x", environ).post(b"spans" * 100)
    ((_, headers, body),) = server.asked
    assert headers["content-encoding"] == name
    assert unpack(body) == b"spans" * 100


def test_what_may_be_tried_again_is(server: Server) -> None:
    server.answers = [(503, {}), (429, {"Retry-After": "7"}), (502, {"Retry-After": "86400"})]
    pauses = Pauses()
    assert OtlpClient(server.url, {}, pauses).post(b"spans")
    assert [body for _, _, body in server.asked] == [b"spans"] * 4
    assert pauses.taken == [1.0, 7.0, TRACE_RETRY_MAX_S]


def test_what_is_refused_is_not(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    server.answers = [(400, {})]
    pauses = Pauses()
    assert not OtlpClient(server.url, {}, pauses).post(b"spans")
    assert (len(server.asked), pauses.taken) == (1, [])
    assert "400" in caplog.text
    server.answers = [(302, {"Location": f"{server.url}/elsewhere"})]
    assert not OtlpClient(server.url, {}, pauses).post(b"spans")
    assert len(server.asked) == 2, "nobody is followed anywhere"


def test_a_collector_that_is_not_there(caplog: pytest.LogCaptureFixture) -> None:
    pauses = Pauses()
    assert not OtlpClient("http://127.0.0.1:1/x", {}, pauses).post(b"spans")
    assert pauses.taken == [1.0, 2.0, 4.0]
    assert caplog.text.count("spans could not be sent") == 1
    expedited = Pauses(until=1)
    assert not OtlpClient("http://127.0.0.1:1/x", {}, expedited).post(b"spans")
    assert expedited.taken == [1.0], "who is in a hurry does not try again"


def test_who_hurries_it_ends_its_waiting() -> None:
    client = OtlpClient("http://127.0.0.1:1/x", {})
    client.expedite()
    assert not client.post(b"spans")


@pytest.mark.parametrize(
    "environ",
    [
        {"OTEL_EXPORTER_OTLP_COMPRESSION": "zip"},
        {"OTEL_EXPORTER_OTLP_TIMEOUT": "soon"},
        {"OTEL_EXPORTER_OTLP_CERTIFICATE": "/no/such/file"},
        {"OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY": "/no/such/file"},
    ],
)
def test_variables_that_say_what_cannot_be(environ: dict[str, str]) -> None:
    with pytest.raises((ValueError, OSError)):
        OtlpClient("http://a", environ)


def test_a_collector_with_a_certificate_of_its_own(tmp_path: Path, server: Server) -> None:
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    server.server.socket = context.wrap_socket(server.server.socket, server_side=True)
    own = authority.issue_cert("activator.test")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    own.cert_chain_pems[0].write_to_path(tmp_path / "own.pem")
    own.private_key_pem.write_to_path(tmp_path / "key.pem")
    known = {"OTEL_EXPORTER_OTLP_CERTIFICATE": str(tmp_path / "ca.pem")}
    ours = {
        "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE": str(tmp_path / "own.pem"),
        "OTEL_EXPORTER_OTLP_CLIENT_KEY": str(tmp_path / "key.pem"),
    }
    url = server.url.replace("http:", "https:")
    assert not OtlpClient(url, ours, Pauses()).post(b"spans"), "nobody knows it"
    assert not OtlpClient(url, known, Pauses()).post(b"spans"), "it does not know us"
    assert OtlpClient(url, {**known, **ours}, Pauses()).post(b"spans")
