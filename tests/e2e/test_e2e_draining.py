"""SIGTERM: what is in flight ends well, nothing new comes in, nothing is left."""

from __future__ import annotations

import json
import signal
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e.conftest import RunActivator
from tests.e2e.http_client import Client, ask, request
from tests.e2e.pods import PodSide, ScriptedPod
from tests.e2e.running import SERVING, Activator, cli, configured, eventually, gated, process_revision


def refuses_connections(activator: Activator) -> bool:
    try:
        socket.create_connection((activator.host, activator.port), 5.0).close()
    except ConnectionRefusedError:
        return True
    return False


def by_signal(activator: Activator) -> None:
    activator.signal(signal.SIGTERM)


def by_command(activator: Activator) -> None:
    assert cli("drain", "--admin", f"http://{activator.admin}").returncode == 0


def by_request(activator: Activator) -> None:
    assert activator.command("/drain")[0] == 200


@pytest.mark.parametrize("ask_to_drain", [by_signal, by_command, by_request])
def test_draining(run_activator: RunActivator, ask_to_drain: Callable[[Activator], None]) -> None:
    def waits(side: PodSide) -> None:
        while True:
            if side.request().target == "/wait":
                side.wait()
            side.answer()

    with ScriptedPod(waits) as pod:
        activator = run_activator(configured([{"name": "a", "hosts": ["*"], "pods": [pod.address]}]))
        assert ask(activator.address, request()).status == 200
        assert activator.ask("/readyz")[0] == 200
        with Client(activator.address) as busy, Client(activator.address) as idle:
            busy.send(request("/wait"))
            idle.ask(request())
            eventually(lambda: activator.revision("a")["in_flight"] == 1)
            ask_to_drain(activator)
            activator.wait_log("draining")
            eventually(lambda: refuses_connections(activator), "new connections are refused")
            status, _, body = activator.ask("/readyz")
            assert (status, body) == (503, b"draining\n")
            assert activator.ask("/healthz")[0] == 200
            assert idle.is_closed()
            pod.go_on()
            answer = busy.answer()
            assert answer.status == 200
            assert answer.header("connection") == "close"
            assert busy.is_closed()
        assert activator.wait_end() == 0
        activator.wait_nothing_left()


def check_that_it_ends_after(activator: Activator, data: bytes, counted_as: str, awaited: Path) -> None:
    """A request whose answer awaits a file is answered after the signal, and then all ends."""
    with Client(activator.address) as client:
        client.send(data)
        eventually(lambda: activator.revision("app")[counted_as] == 1)
        activator.signal(signal.SIGTERM)
        activator.wait_log("draining")
        awaited.touch()
        assert client.answer().status == 200
    assert activator.wait_end() == 0
    activator.wait_nothing_left()


def test_a_program_ends_after_what_it_works_on(run_activator: RunActivator, tmp_path: Path) -> None:
    activator = run_activator(configured([process_revision(SERVING)]))
    done = tmp_path / "done"
    check_that_it_ends_after(activator, request(f"/until{done}"), "in_flight", done)


def test_a_request_that_waits_for_a_start_is_still_served(run_activator: RunActivator, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    activator = run_activator(configured([process_revision(gated(SERVING, gate))]))
    check_that_it_ends_after(activator, request(), "queued", gate)


def test_a_second_signal_does_not_wait(run_activator: RunActivator) -> None:
    activator = run_activator(configured([process_revision(SERVING, max_scale=2, min_scale=2)]))
    activator.wait_ready_pods("app", 2)
    with Client(activator.address) as client:
        client.send(request("/sleep/60"))
        eventually(lambda: activator.revision("app")["in_flight"] == 1)
        activator.signal(signal.SIGTERM)
        activator.wait_log("draining")
        activator.signal(signal.SIGTERM)
        assert activator.wait_end(5.0) == 130
        activator.wait_nothing_left(1.5)
        assert client.is_closed()


def test_a_connection_that_has_just_come_has_time_for_its_first_request(run_activator: RunActivator) -> None:
    """It was accepted before the drain; one that says nothing is closed a moment later."""
    activator = run_activator(configured([process_revision(SERVING)]))
    with Client(activator.address) as fresh, Client(activator.address) as silent:
        eventually(
            lambda: json.loads(activator.ask("/debug/revisions")[2])["clients"]["connections"] == 2, "both are accepted"
        )
        activator.signal(signal.SIGTERM)
        activator.wait_log("draining")
        fresh.send(request())
        answer = fresh.answer()
        assert (answer.status, answer.header("connection")) == (200, "close")
        assert silent.is_closed()
    assert activator.wait_end() == 0


def test_what_is_queued_when_the_time_is_over_is_answered(run_activator: RunActivator, tmp_path: Path) -> None:
    """It was reset; 503 with Retry-After lets a client or an ingress try another replica."""
    revision = process_revision(gated(SERVING, tmp_path / "gate"))
    activator = run_activator(configured([revision], shutdown={"timeout": "1s"}))
    with ExitStack() as stack:
        clients = [stack.enter_context(Client(activator.address)) for _ in range(5)]
        for client in clients:
            client.send(request())
        eventually(lambda: activator.revision("app")["queued"] == 5)
        activator.signal(signal.SIGTERM)
        answers = [client.answer() for client in clients]
    assert [(one.status, one.reason) for one in answers] == [(503, "draining")] * 5
    assert all(int(one.header("retry-after")) >= 1 for one in answers)
    assert activator.wait_end() != 0
    activator.wait_log("5 queued requests were rejected with 503: `shutdown.timeout` has expired")


@pytest.mark.parametrize("host", ["app.test", "models.test"])
def test_an_upload_that_no_pod_has_when_the_time_is_over_is_answered(run_activator: RunActivator, host: str) -> None:
    """Its body is gathered before it asks for a slot, or read for the model that it names."""
    revisions = [
        {**process_revision(SERVING), "hosts": ["app.test"], "container_concurrency": 1},
        {**process_revision(SERVING), "name": "model", "hosts": ["models.test"], "match": {"json": {"model": ["a"]}}},
    ]
    activator = run_activator(configured(revisions, shutdown={"timeout": "1s"}))
    with Client(activator.address) as client:
        client.send(request("/", "POST", host=host, headers="Content-Length: 100\r\n") + b'{"x": 1, ')
        eventually(
            lambda: json.loads(activator.ask("/debug/revisions")[2])["clients"]["connections"] == 1, "it is accepted"
        )
        time.sleep(0.2)  # until the head has been read
        activator.signal(signal.SIGTERM)
        answer = client.answer()
    assert (answer.status, answer.reason) == (503, "draining")
    assert int(answer.header("retry-after")) >= 1
    assert activator.wait_end() != 0
    activator.wait_log("1 queued requests were rejected with 503: `shutdown.timeout` has expired")


def test_time_in_which_the_process_is_stopped_counts_for_no_limit(run_activator: RunActivator, tmp_path: Path) -> None:
    """Requests that were held when the process was stopped are served when it goes on, as by haproxy."""
    gate = tmp_path / "gate"
    revision = process_revision(gated(SERVING, gate))
    activator = run_activator(configured([{**revision, "queue": {"timeout": "2s"}}]))
    with ExitStack() as stack:
        clients = [stack.enter_context(Client(activator.address)) for _ in range(4)]
        for client in clients:
            client.send(request())
        eventually(lambda: activator.revision("app")["queued"] == 4)
        activator.signal(signal.SIGSTOP)
        time.sleep(2.5)
        activator.signal(signal.SIGCONT)
        gate.touch()
        answers = [client.answer() for client in clients]
        assert [one.status for one in answers] == [200] * 4, [(one.reason, one.body) for one in answers]
