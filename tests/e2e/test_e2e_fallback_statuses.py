"""Statuses of pods that a fallback replaces, with pods that answer in odd ways, over HTTP/1.1 and HTTP/2."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import RunActivator
from tests.e2e.http2_client import Http2Client
from tests.e2e.http2_pods import Http2Pod, PodStream, ResetError
from tests.e2e.http_client import Client, ask, chunked, request
from tests.e2e.pods import GoneError, PodSide, ScriptedPod, serve
from tests.e2e.running import Activator, configured, eventually

BUSY = b"HTTP/1.1 503 Service Unavailable\r\nSet-Cookie: first=1\r\nContent-Length: 4\r\n\r\nbusy"


def busy(side: PodSide) -> None:
    """Answers every request with 503 and a short body, and keeps the connection."""
    while True:
        found = side.request()
        side.send(BUSY.removesuffix(b"busy") if found.method == "HEAD" else BUSY)


def revisions(
    first: ScriptedPod | Http2Pod, second: ScriptedPod | None = None, **fallback: Any
) -> list[dict[str, Any]]:
    one = {
        "name": "first",
        "hosts": ["*"],
        "pods": [first.address],
        "container_concurrency": 1,
        "fallback": {"statuses": [502, "503"], **fallback},
    }
    if second is None:
        return [one]
    return [one, {"name": "second", "hosts": ["second.test"], "pods": [second.address]}]


def running(run_activator: RunActivator, listed: list[dict[str, Any]]) -> Activator:
    activator = run_activator(configured(listed))
    for one in listed:
        activator.wait_ready_pods(one["name"])
    return activator


def test_the_second_revision_answers_and_connections_are_kept(run_activator: RunActivator) -> None:
    with ScriptedPod(busy) as first, ScriptedPod(serve) as second:
        activator = running(run_activator, revisions(first, second, revision="second"))
        with Client(activator.address) as client, Http2Client(activator.address) as multiplexed:
            for number in range(20):
                answer = client.ask(request(f"/{number}"))
                assert (answer.status, answer.body) == (200, second.address.encode())
                assert answer.header("activator-fallback") == "default/second" and not answer.header("set-cookie")
                reply = multiplexed.ask(f"/{number}")
                assert (reply.status, reply.body) == (200, second.address.encode())
            answer = client.ask(request("/put", "PUT", body=b"once more"))
            assert answer.status == 200 and second.requests[-1].body == b"once more"
            answer = client.ask(request("/put", "PUT", headers="Transfer-Encoding: chunked\r\n") + chunked(b"a", b"b"))
            assert answer.status == 200 and second.requests[-1].body == b"ab"
            answer = client.ask(request("/post", "POST", body=b"never twice"))
            assert (answer.status, answer.body, answer.header("set-cookie")) == (503, b"busy", "first=1")
            answer = client.ask(request("/long", "PUT", body=b"x" * 60_000))
            assert answer.status == 200 and second.requests[-1].body == b"x" * 60_000
            answer = client.ask(request("/large", "PUT", body=b"x" * 1_000_000))
            assert (answer.status, answer.body) == (503, b"busy"), "more than is kept to be sent again"
        activator.wait_idle()
        assert first.connections == 1, "the responses were read to their ends"
        text = activator.ask("/metrics")[2].decode()
        assert 'activator_fallbacks_total{namespace="default",revision="first",to="default/second"} 43.0' in text


def test_a_file_and_a_redirect(run_activator: RunActivator, tmp_path: Path) -> None:
    page = tmp_path / "sorry.html"
    page.write_text("<h1>Sorry</h1>")
    with ScriptedPod(busy) as first:
        activator = running(run_activator, revisions(first, file=str(page)))
        with Client(activator.address) as client:
            for method in ("GET", "POST", "HEAD"):
                answer = client.ask(request(method=method))
                assert (answer.status, answer.reason) == (503, "upstream_status")
                assert answer.body == (b"" if method == "HEAD" else b"<h1>Sorry</h1>")
        with Http2Client(activator.address) as multiplexed:
            assert multiplexed.ask("/", body=b"x").body == b"<h1>Sorry</h1>"
        activator.wait_idle()
        assert first.connections == 1
        moved = running(run_activator, revisions(first, redirect="https://status.test/"))
        assert ask(moved.address, request()).header("location") == "https://status.test/"
        assert ask(moved.address, request(method="POST", body=b"x")).body == b"busy"


def endless(side: PodSide) -> None:
    side.request()
    side.send(b"HTTP/1.1 503 Busy\r\nTransfer-Encoding: chunked\r\n\r\n")
    try:
        while True:
            side.send(b"10000\r\n" + b"x" * 65_536 + b"\r\n")
    except OSError as error:
        raise GoneError from error


def long(side: PodSide) -> None:
    side.request()
    side.send(b"HTTP/1.1 503 Busy\r\nContent-Length: 1000000000\r\n\r\nx")
    side.wait()


def silent(side: PodSide) -> None:
    side.request()
    side.send(b"HTTP/1.1 503 Busy\r\nContent-Length: 10\r\n\r\nx")
    side.wait()


def cut(side: PodSide) -> None:
    side.request()
    side.send(b"HTTP/1.1 503 Busy\r\nContent-Length: 10\r\n\r\nx")


def until_close(side: PodSide) -> None:
    side.request()
    side.send(b"HTTP/1.1 503 Busy\r\n\r\nall of it")


def broken(side: PodSide) -> None:
    side.request()
    side.send(b"HTTP/1.1 503 Busy\r\nTransfer-Encoding: chunked\r\n\r\nzzz\r\n")
    side.wait()


@pytest.mark.parametrize("script", [endless, long, silent, cut, until_close, broken])
def test_whatever_a_pod_sends_after_its_status(run_activator: RunActivator, script: Any) -> None:
    with ScriptedPod(script) as first, ScriptedPod(serve) as second:
        activator = running(run_activator, revisions(first, second, revision="second"))
        for _ in range(3):
            began_s = time.monotonic()
            answer = ask(activator.address, request())
            assert (answer.status, answer.body) == (200, second.address.encode())
            activator.wait_idle()
            assert time.monotonic() - began_s < 5.0, "the slot is free soon"
        assert activator.revision("first")["in_flight"] == 0


def test_an_early_status_during_an_upload(run_activator: RunActivator, tmp_path: Path) -> None:
    page = tmp_path / "sorry.txt"
    page.write_text("sorry")

    def early(side: PodSide) -> None:
        side.head()
        side.send(BUSY)
        side.wait()

    with ScriptedPod(early) as first:
        (listed,) = revisions(first, file=str(page))
        activator = running(run_activator, [{**listed, "buffer": {"request": 0}}])
        for _ in range(2):
            with Client(activator.address) as client:
                client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\nabc")
                answer = client.answer("POST")
                assert (answer.status, answer.body) == (503, b"sorry")
                client.send(b"x" * 997)
                assert client.is_closed()
            activator.wait_idle()


async def busy2(stream: PodStream) -> None:
    """Over HTTP/2: a short body, or for /endless one without an end."""
    await stream.body()
    stream.head(503)
    try:
        await stream.send(b"busy")
        while stream.path == "/endless":
            await stream.send(b"x" * 65_536)
        stream.end()
    except ResetError:
        pass


def test_pods_that_speak_http2(run_activator: RunActivator) -> None:
    with Http2Pod(busy2) as first, ScriptedPod(serve) as second:
        (one, two) = revisions(first, second, revision="second")
        activator = running(run_activator, [{**one, "protocol": "h2c"}, two])
        with Client(activator.address) as client, Http2Client(activator.address) as multiplexed:
            for target in ("/", "/endless", "/", "/endless", "/"):
                assert client.ask(request(target)).body == second.address.encode()
                assert multiplexed.ask(target).body == second.address.encode()
                activator.wait_idle()
            grpc = [("te", "trailers"), ("content-type", "application/grpc")]
            reply = multiplexed.ask("/", "PUT", grpc, b"call")
            assert (reply.status, reply.body) == (503, b"busy"), "a gRPC client reads a status"


def test_many_clients_at_once(run_activator: RunActivator) -> None:
    """One slot, a pod that always fails, and every client gets the second revision's answer."""
    with ScriptedPod(busy) as first, ScriptedPod(serve) as second:
        activator = running(run_activator, revisions(first, second, revision="second"))
        problems: list[object] = []

        def visit() -> None:
            with Client(activator.address) as client:
                for _ in range(25):
                    answer = client.ask(request())
                    if (answer.status, answer.body) != (200, second.address.encode()):
                        problems.append(answer)

        clients = [threading.Thread(target=visit) for _ in range(8)]
        for one in clients:
            one.start()
        for one in clients:
            one.join()
        assert not problems
        activator.wait_idle()
        assert eventually(lambda: len(first.requests) == 200)
