"""Hostile bytes over real sockets, and a pod that remembers: what must not reach it does not; the program lives on."""

from __future__ import annotations

import contextlib
import random
import re
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from activator.runtime.reasons import Reason
from tests.codec.http1.hostile_requests import HOSTILE
from tests.e2e.conftest import RunActivator, one_worker
from tests.e2e.http_client import Client, CutShortError, ask, chunked, request
from tests.e2e.pair import Pair, paired
from tests.e2e.pods import Request, ScriptedPod, serve, serve_or_hold
from tests.e2e.running import configured, eventually

BEFORE = b"GET /before HTTP/1.1\r\nHost: b\r\n\r\n"
TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


@pytest.fixture(scope="module")
def pair(run_shared_activator: RunActivator) -> Iterator[Pair]:
    with paired(serve, run_shared_activator) as pair:
        yield pair


def send(client: Client, data: bytes) -> None:
    """What is too much may be answered, and the connection closed, before all of it is sent."""
    with contextlib.suppress(ConnectionError):
        client.send(data)


@pytest.mark.parametrize("shape", ["alone", "between"])
@pytest.mark.parametrize(("data", "reason"), [case[1:] for case in HOSTILE], ids=[case[0] for case in HOSTILE])
def test_hostile(pair: Pair, data: bytes, reason: Reason, shape: str) -> None:
    """After a good request on the same connection; and between two good ones, all three in one segment."""
    seen = len(pair.pod.requests)
    with Client(pair.activator.address) as client:
        if shape == "alone":
            assert client.ask(BEFORE).status == 200
            send(client, data)
        else:
            send(client, BEFORE + data + BEFORE)
            assert client.answer().status == 200
        answer = client.answer()
        assert (answer.status, answer.reason) == (reason.status, reason.value)
        assert answer.header("connection") == "close"
        assert client.is_closed()
    pair.activator.wait_idle()
    new = pair.pod.requests[seen:]
    assert [one.line for one in new if one.complete] == ["GET /before HTTP/1.1"]
    for one in new:  # of a body that turned out to be bad the head has gone before, and no more than that
        assert one.complete or (one.line, one.all("host")) == ("POST / HTTP/1.1", ["a"])
    assert ask(pair.activator.address, BEFORE).status == 200


@one_worker
def test_limits_of_the_file(run_activator: RunActivator) -> None:
    limits = {"header_bytes": "1KiB", "headers": 10, "body_bytes": 100, "connections": 5}
    with ScriptedPod(serve_or_hold) as pod, ExitStack() as stack:
        activator = run_activator(configured([{"name": "a", "hosts": ["*"], "pods": [pod.address]}], limits=limits))
        activator.wait_ready_pods("a")
        length = "Transfer-Encoding: chunked\r\n"
        for data, status in (
            (request(headers="X: y\r\n" * 9), 200),
            (request(headers="X: y\r\n" * 10), 431),
            (request(headers=f"X: {'y' * 1100}\r\n"), 431),
            (request(method="POST", body=b"x" * 100), 200),
            (request(method="POST", body=b"x" * 101), 413),
            (request(method="POST", headers=length) + chunked(b"x" * 60, b"x" * 40), 200),
            (request(method="POST", headers=length) + chunked(b"x" * 60, b"x" * 41), 413),
        ):
            assert ask(activator.address, data).status == status, data[:100]
        # In use: an idle one would be closed, since there are almost as many as allowed.
        clients = [stack.enter_context(Client(activator.address)) for _ in range(5)]
        for client in clients:
            client.send(request("/held"))
        eventually(lambda: activator.revision("a")["in_flight"] == 5)
        with Client(activator.address) as sixth:
            answer = sixth.answer()
            assert (answer.status, answer.reason) == (503, "overloaded")
            assert answer.header("retry-after") == "1"
            assert sixth.is_closed()
        pod.go_on()
        assert [client.answer().status for client in clients] == [200] * 5


@one_worker
def test_as_many_connections_as_there_are_descriptors_for(run_activator: RunActivator) -> None:
    """Each request takes two. Without the bound, requests that were taken in could not be sent to a pod."""
    with ScriptedPod(serve_or_hold) as pod, ExitStack() as stack:
        activator = run_activator(
            configured(
                [{"name": "a", "hosts": ["*"], "container_concurrency": 0, "pods": [pod.address]}],
                log={"levels": {"data": "debug"}},
            ),
            prefix=["sh", "-c", 'ulimit -n 128; exec "$@"', "sh"],
        )
        possible = int(activator.wait_log(r"limits.connections is (\d+) instead of"))
        assert 10 <= possible < 64
        clients = [stack.enter_context(Client(activator.address)) for _ in range(possible)]
        for client in clients:
            client.send(request("/held"))
        eventually(lambda: activator.revision("a")["in_flight"] == possible)
        for _ in range(10):
            with Client(activator.address) as client:
                answer = client.answer()
                assert (answer.status, answer.reason) == (503, "overloaded")
        pod.go_on()
        assert all(client.answer().status == 200 for client in clients)


def is_well_formed(one: Request) -> bool:
    """What a strict server would have taken, as one thing only."""
    line = re.fullmatch(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+) (/[!$-;=?-Z\[\]^_`a-z{|}~]*|\*) HTTP/1\.1", one.line)
    lengths, codings = one.all("content-length"), one.all("transfer-encoding")
    return (
        line is not None
        and all(
            TOKEN.fullmatch(name) and not re.search(r"[\x00-\x08\x0a-\x1f\x7f]", value) for name, value in one.headers
        )
        and len(one.all("host")) == 1
        and len(lengths) + len(codings) <= 1
        and all(length.isdigit() for length in lengths)
        and codings in ([], ["chunked"])
    )


def mutants(count: int) -> Iterator[bytes]:
    """Good requests with a few bytes changed, the same ones in each run."""
    chance = random.Random(20_26)
    good = [
        request("/x?y", headers="X-A: 1\r\nConnection: keep-alive\r\n"),
        request("/x", "POST", body=b"hello", headers="Expect: 100-continue\r\n"),
        request("/x", "PUT", headers="Transfer-Encoding: chunked\r\n")
        + chunked(b"hello", b"x" * 20, trailers="T: 1\r\n"),
        request("/x", headers="Connection: upgrade\r\nUpgrade: h2c\r\n"),
        b"GET http://a.test/x HTTP/1.1\r\nHost: a.test\r\n\r\n",
    ]
    bits = [b"\r\n", b"\n", b"\r", b" ", b"\t", b":", b"\x00", b"\xff", b",", b";", b"0", b"chunked", b"Host: b\r\n"]
    for _ in range(count):
        data = bytearray(chance.choice(good) + chance.choice(good))
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(data))
            if chance.random() < 0.5:
                data[at : at + chance.randint(0, 3)] = chance.choice(bits)
            else:
                data[at] = chance.randrange(256)
        yield bytes(data)


def test_mutants(pair: Pair) -> None:
    """Whatever comes: what reaches the pod is well-formed, what the client hears is HTTP, and both are one to one."""
    seen = len(pair.pod.requests)
    for data in mutants(400):
        already = len(pair.pod.requests)
        with Client(pair.activator.address) as client:
            send(client, data + b"\r\n\r\nGET /end HTTP/1.1\r\nHost: end\r\nConnection: close\r\n\r\n")
            client.socket.settimeout(0.3)  # some wait for more of a body
            statuses = []
            with contextlib.suppress(CutShortError, TimeoutError):
                while True:
                    statuses.append(client.answer().status)
        good = [status for status in statuses if status == 200]
        complete = [one for one in pair.pod.requests[already:] if one.complete]
        assert len(good) <= len(complete) + sum(one.method == "HEAD" for one in complete), data
        assert all(status in {200, 400, 404, 413, 414, 431, 501, 505} for status in statuses), (statuses, data)
    bad = [one for one in pair.pod.requests[seen:] if not is_well_formed(one)]
    assert bad == []
    assert ask(pair.activator.address, BEFORE).status == 200
