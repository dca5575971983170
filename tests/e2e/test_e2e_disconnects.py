"""Clients that go away: their place is freed, their pod hears of it, and nobody else is touched."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import RunActivator
from tests.e2e.http_client import Client, ask, request
from tests.e2e.pods import PodSide, ScriptedPod, close_all
from tests.e2e.running import SERVING, Activator, configured, eventually, figures, gated, process_revision


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


PLACES = 16  # more than there are tests: each takes one


@pytest.fixture(scope="module")
def places(run_shared_activator: RunActivator) -> Iterator[list[Place]]:
    workings = [Working() for _ in range(PLACES)]
    pods = [ScriptedPod(working) for working in workings]
    names = [f"place{number}" for number in range(PLACES)]
    try:
        activator = run_shared_activator(
            configured(
                [
                    {"name": name, "hosts": [f"{name}.test"], "container_concurrency": 1, "pods": [pod.address]}
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


def half_close(client: Client) -> None:
    """The end of what it sends is read as the end of it, as HAProxy and nginx read it: see server/connection.py."""
    client.end_sending()
    assert client.is_closed()
    client.close()


LEAVING = [close, reset, half_close]


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
