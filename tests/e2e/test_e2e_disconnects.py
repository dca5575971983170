"""Clients that go away: their place is freed, their pod hears of it, and nobody else is touched."""

from __future__ import annotations

import http.client
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from activator.data_plane.server.http1_connection import HALF_CLOSE_PROBE_AGAIN_S
from tests.e2e.conftest import RunActivator
from tests.e2e.http_client import Client, ask, request
from tests.e2e.pods import PodSide, ScriptedPod, close_all
from tests.e2e.running import PATIENCE_S, SERVING, Activator, configured, eventually, figures, gated, process_revision


class Working:
    """A pod's script: each request is worked on until `finish`, unless its connection is closed before."""

    def __init__(self) -> None:
        self.finish = False
        self.abandoned = 0

    def __call__(self, side: PodSide) -> None:
        while True:
            one = side.request()
            if one.target == "/stream":
                side.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n")
            side.socket.settimeout(0.02)
            while not self.finish and not side.pod.closing.is_set():
                try:
                    if side.socket.recv(1) == b"":
                        raise ConnectionResetError
                except TimeoutError:
                    continue
                except ConnectionResetError:
                    self.abandoned += 1
                    return
            side.socket.settimeout(60)
            side.answer()


class Place:
    """One pod with room for one request, and an activator in front of it."""

    def __init__(self, activator: Activator, name: str, pod: ScriptedPod, working: Working) -> None:
        self.activator = activator
        self.name = name
        self.pod = pod
        self.working = working

    def request(self, target: str, method: str = "GET", headers: str = "") -> bytes:
        return request(target, method, f"{self.name}.test", headers)

    def figures(self) -> tuple[int, int, int]:
        """(in flight, queued, gone)"""
        shown = self.activator.revision(self.name)
        return shown["in_flight"], shown["queued"], shown["client_gone"]

    def wait(self, in_flight: int, queued: int, gone: int) -> None:
        eventually(lambda: self.figures() == (in_flight, queued, gone), f"{(in_flight, queued, gone)}")

    def occupy(self) -> Client:
        """A client whose request is in the pod."""
        client = Client(self.activator.address)
        client.send(self.request("/first"))
        eventually(lambda: self.pod.requests and self.pod.requests[-1].target == "/first")
        return client


PLACES = 24  # more than there are tests: each takes one


@pytest.fixture(scope="module")
def places(run_shared_activator: RunActivator) -> Iterator[list[Place]]:
    workings = [Working() for _ in range(PLACES)]
    pods = [ScriptedPod(working) for working in workings]
    names = [f"place{number}" for number in range(PLACES)]
    try:
        activator = run_shared_activator(
            configured(
                [
                    {
                        "name": name,
                        "hosts": [f"{name}.test"],
                        "container_concurrency": 1,
                        "buffer": {"request": "0"},  # the pod gets bodies as they come
                        "pods": [pod.address],
                    }
                    for name, pod in zip(names, pods)
                ]
            )
        )
        yield [Place(activator, *parts) for parts in zip(names, pods, workings)]
    finally:
        for working in workings:
            working.finish = True
        close_all(pods)


@pytest.fixture
def place(places: list[Place]) -> Iterator[Place]:
    place = places.pop()
    place.activator.wait_ready_pods(place.name)
    yield place
    place.working.finish = True
    place.activator.wait_idle(place.name)


def close(client: Client) -> None:
    client.close()


def reset(client: Client) -> None:
    client.reset()


LEAVING = [close, reset]


@pytest.mark.parametrize("leave", LEAVING)
def test_while_waiting_in_line_and_while_the_pod_works(place: Place, leave: Callable[[Client], None]) -> None:
    with place.occupy() as first:
        waiting = [Client(place.activator.address) for _ in range(3)]
        for client in waiting:
            client.send(place.request("/waits"))
        place.wait(1, 3, 0)
        leave(waiting[1])
        place.wait(1, 2, 1)
        leave(waiting[0])
        leave(waiting[2])
        place.wait(1, 0, 3)
        with Client(place.activator.address) as heir:
            heir.send(place.request("/heir"))
            place.wait(1, 1, 3)
            leave(first)
            eventually(lambda: place.working.abandoned == 1, "the pod's connection is closed")
            place.wait(1, 0, 4)
            eventually(lambda: place.pod.requests[-1].target == "/heir", "the slot is handed on")
            place.working.finish = True
            assert heir.answer().status == 200
    assert [one.target for one in place.pod.requests] == ["/first", "/heir"]
    status, _, body = place.activator.ask("/metrics")
    assert status == 200
    gone = [line for line in body.decode().splitlines() if "client_gone" in line and place.name in line]
    assert [line.rpartition(" ")[2] for line in gone if "_created" not in line] == ["4.0"], gone


def test_in_the_middle_of_an_answer(place: Place) -> None:
    client = Client(place.activator.address)
    client.send(place.request("/stream"))
    assert client.head().status == 200
    assert client.read(6) == b"1\r\nx\r\n"
    client.close()
    eventually(lambda: place.working.abandoned == 1)
    place.wait(0, 0, 1)


def test_in_the_middle_of_a_body(place: Place) -> None:
    """The pod has the head and must not take what came for a whole request."""
    client = Client(place.activator.address)
    client.send(place.request("/cut", "POST", headers="Content-Length: 1000\r\n") + b"x" * 500)
    eventually(lambda: place.pod.requests)
    client.close()
    place.wait(0, 0, 1)
    place.pod.wait_open(0)
    assert not place.pod.requests[0].complete


def test_in_the_middle_of_a_head(place: Place) -> None:
    with Client(place.activator.address) as client:
        client.send(b"GET / HTTP/1.1\r\nHost: a")
    place.wait(0, 0, 0)
    assert place.pod.requests == []


@pytest.mark.parametrize("leave", [close, reset])
def test_with_a_body_that_is_held(place: Place, leave: Callable[[Client], None]) -> None:
    """While a body is held nothing is read, so the end of the connection is not heard but looked for, each second."""
    with place.occupy() as first:
        client = Client(place.activator.address)
        client.send(place.request("/held", "POST", headers="Content-Length: 4000000\r\n") + b"x" * 200_000)
        place.wait(1, 1, 0)
        leave(client)
        place.wait(1, 0, 1)
        place.working.finish = True
        assert first.answer().status == 200
    assert [one.target for one in place.pod.requests] == ["/first"]


def test_with_requests_sent_ahead(place: Place) -> None:
    """They go with it; none of them reaches a pod later."""
    client = Client(place.activator.address)
    client.send(place.request("/first") + place.request("/second") + place.request("/third"))
    eventually(lambda: len(place.pod.requests) == 1)
    client.close()
    eventually(lambda: place.working.abandoned == 1)
    place.wait(0, 0, 1)
    place.working.finish = True
    assert ask(place.activator.address, place.request("/last")).status == 200
    assert [one.target for one in place.pod.requests] == ["/first", "/last"]


def test_during_a_start(run_activator: RunActivator, tmp_path: Path) -> None:
    """The program that was wanted is started all the same, and goes when it is idle."""
    gate = tmp_path / "gate"
    activator = run_activator(configured([process_revision(gated(SERVING, gate), idle="1s")]))
    with Client(activator.address) as client:
        client.send(request())
        eventually(lambda: activator.revision("app")["queued"] == 1)
    eventually(lambda: activator.revision("app")["queued"] == 0)
    assert activator.revision("app")["client_gone"] == 1
    gate.touch()
    eventually(lambda: figures(activator)["processes"] == 0, "back at zero")


def test_a_silent_client_costs_nothing(place: Place) -> None:
    """Connections without a request do not keep a slot, nor the answer of others."""
    silent = [Client(place.activator.address) for _ in range(50)]
    place.working.finish = True
    started_s = time.monotonic()
    assert ask(place.activator.address, place.request("/")).status == 200
    assert time.monotonic() - started_s < 5
    for client in silent:
        client.close()


# --- half-closed: the client has ended its side and waits for its answers ---


CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


@pytest.mark.parametrize("version", ["1.1", "1.0"])
def test_a_half_closed_client_is_answered(place: Place, version: str) -> None:
    """Also one that waits in line, and one whose pod takes longer than it takes to find out whether it is there."""
    first = place.occupy()
    with Client(place.activator.address) as probed, Client(place.activator.address) as client:
        probed.send(place.request("/other"))
        client.send(place.request("/half").replace(b"HTTP/1.1", f"HTTP/{version}".encode()))
        place.wait(1, 2, 0)
        client.end_sending()
        probed.end_sending()  # after it: when this one has been probed, the other one has been, too
        assert probed.read(len(CONTINUE)) == CONTINUE
        assert place.figures() == (1, 2, 0)
        place.working.finish = True
        for one in (client, probed):
            assert one.answer().status == 200
            assert one.is_closed()
    assert first.answer().status == 200
    first.close()


def test_a_half_closed_client_gets_all_that_it_sent_ahead(place: Place) -> None:
    place.working.finish = True
    with Client(place.activator.address) as client:
        client.send(b"".join(place.request(f"/{number}") for number in range(40)) + place.request("/cut")[:-2])
        client.end_sending()
        assert [client.answer().status for _ in range(40)] == [200] * 40
        assert client.is_closed()
    assert [one.target for one in place.pod.requests] == [f"/{number}" for number in range(40)]


def test_a_half_closed_upload_that_is_not_read_at_the_moment(place: Place) -> None:
    """Reading is paused while the pod does not take the body: the end of it is still in the kernel."""
    size = 20_000_000
    head = place.request("/upload", "POST", f"Content-Length: {size}\r\n")
    with Client(place.activator.address) as client:

        def upload() -> None:
            client.send(head + b"x" * size)
            client.end_sending()

        sender = threading.Thread(target=upload)
        sender.start()
        assert client.read(len(CONTINUE)) == CONTINUE, "the kernel has its end: it is probed"
        assert place.figures() == (1, 0, 0)
        place.working.finish = True
        assert client.answer().status == 200
        sender.join()
    (one,) = place.pod.requests
    assert len(one.body) == size


def test_one_that_is_gone_after_a_half_close_is_found_out(place: Place) -> None:
    """It has ended its side first and closed its socket later, which sends nothing."""
    first = place.occupy()
    client = Client(place.activator.address)
    client.send(place.request("/half"))
    place.wait(1, 1, 0)
    client.end_sending()
    assert client.read(len(CONTINUE)) == CONTINUE
    place.wait(1, 1, 0)
    client.close()
    eventually(lambda: place.figures() == (1, 0, 1), "it is gone", timeout_s=3 * HALF_CLOSE_PROBE_AGAIN_S)
    place.working.finish = True
    assert first.answer().status == 200
    first.close()


def test_a_half_closed_client_gets_a_stream_that_pauses(run_activator: RunActivator) -> None:
    """It is probed between the chunks, in a way that HTTP clients do not see."""
    pauses = [threading.Event(), threading.Event()]

    def slowly(side: PodSide) -> None:
        pause = pauses[len(side.pod.requests)]
        side.request()
        side.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert pause.wait(PATIENCE_S)
        side.send(b"5\r\nhello\r\n0\r\n\r\n")

    with ScriptedPod(slowly) as pod:
        activator = run_activator(configured([{"name": "app", "hosts": ["*"], "pods": [pod.address]}]))
        activator.wait_ready_pods("app")
        host, _, port = activator.address.rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=60)
        connection.request("GET", "/")
        answer = connection.getresponse()
        connection.sock.shutdown(socket.SHUT_WR)
        assert connection.sock.recv(1, socket.MSG_PEEK) == b"0", "the probe"
        pauses[0].set()
        assert (answer.status, answer.read()) == (200, b"hello")
        connection.close()
        with Client(activator.address) as client:
            client.send(request())
            assert client.head().status == 200
            client.end_sending()
            assert client.read(1) == b"0"
            pauses[1].set()
            assert client.rest() == b"5\r\nhello\r\n0\r\n\r\n"


def test_real_tools_that_half_close(place: Place) -> None:
    """netcat with -N, which ends its side behind the request."""
    netcat = shutil.which("nc.openbsd")
    if netcat is None:
        pytest.skip("netcat-openbsd is not installed")
    place.working.finish = True
    host, _, port = place.activator.address.rpartition(":")
    for number in range(20):
        done = subprocess.run(
            [netcat, "-N", host, port], input=place.request(f"/{number}"), capture_output=True, timeout=60, check=False
        )
        assert done.stdout.startswith(b"HTTP/1.1 200 "), done


def test_with_abort_on_half_close_it_has_gone(run_activator: RunActivator) -> None:
    working = Working()
    with ScriptedPod(working) as pod:
        revision = {"name": "app", "hosts": ["*"], "container_concurrency": 1, "pods": [pod.address]}
        activator = run_activator(configured([revision], abort_on_half_close=True))
        activator.wait_ready_pods("app")
        with Client(activator.address) as client:
            client.send(request())
            eventually(lambda: len(pod.requests) == 1)
            client.end_sending()
            assert client.is_closed()
            eventually(lambda: working.abandoned == 1)
        working.finish = True
