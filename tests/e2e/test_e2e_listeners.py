"""Listeners that come and go, what pods are told of clients, and clients that are too slow."""

from __future__ import annotations

import json
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import RunActivator
from tests.e2e.http_client import Client, ask, request
from tests.e2e.pods import PodSide, ScriptedPod
from tests.e2e.running import Activator, configured, eventually
from tests.e2e.test_e2e_tls import Files, trusting
from tests.telemetry.test_tracing import Collector


def serve(side: PodSide) -> None:
    while True:
        side.request()
        side.answer()


def revision(address: str, **more: Any) -> dict[str, Any]:
    return {"name": "a", "hosts": ["*"], "pods": [address], **more}


def free_address() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


def refuses_connections(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), 5.0).close()
    except ConnectionRefusedError:
        return True
    return False


class Reloadable:
    """An activator whose file can be written anew."""

    def __init__(
        self, run_activator: RunActivator, folder: Path, configuration: dict[str, Any], **variables: str
    ) -> None:
        self._path = folder / "reloadable.yaml"
        self._write(configuration)
        self.activator: Activator = run_activator(arguments=["-c", str(self._path)], **variables)
        self._reloads = 0

    def reload(self, configuration: dict[str, Any]) -> None:
        self._write(configuration)
        self.activator.signal(signal.SIGHUP)
        self._reloads += 1
        self.activator.wait_log(" reloaded", self._reloads)

    def _write(self, configuration: dict[str, Any]) -> None:
        self._path.write_text(json.dumps(configuration))


@contextmanager
def reloadable(run_activator: RunActivator, folder: Path, address: str) -> Iterator[tuple[Reloadable, dict[str, Any]]]:
    """One that listens on `address`, and all of its configuration but for that."""
    with ScriptedPod(serve) as pod:
        base = configured([revision(pod.address)])
        running = Reloadable(run_activator, folder, {**base, "listen": address})
        running.activator.wait_ready_pods("a")
        yield running, base


def test_listeners_come_and_go_with_a_reload(run_activator: RunActivator, tmp_path: Path) -> None:
    first, second = free_address(), free_address()
    with reloadable(run_activator, tmp_path, first) as (running, base), Client(first) as kept:
        assert kept.ask(request()).status == 200
        running.reload({**base, "listen": [first, second]})
        eventually(lambda: not refuses_connections(second))
        assert ask(first, request()).status == 200
        assert ask(second, request()).status == 200
        running.reload({**base, "listen": second})
        eventually(lambda: refuses_connections(first))
        assert ask(second, request()).status == 200
        assert kept.ask(request()).status == 200, "what was accepted goes on"


def test_a_reload_that_cannot_listen_changes_nothing(run_activator: RunActivator, tmp_path: Path) -> None:
    mine = free_address()
    with ScriptedPod(serve) as pod, socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        base = configured([revision(pod.address)])
        running = Reloadable(run_activator, tmp_path, {**base, "listen": mine})
        running.activator.may_log_errors = True
        changed = {**base, "listen": taken, "revisions": [revision(pod.address, name="b")]}
        running._write(changed)
        running.activator.signal(signal.SIGHUP)
        running.activator.wait_log(f"reload refused: cannot listen on {taken}: the port is in use")
        assert list(running.activator.revisions()) == ["a"]
        assert ask(mine, request()).status == 200


def test_a_reload_that_is_refused_for_something_else_opens_and_closes_nothing(
    run_activator: RunActivator, tmp_path: Path
) -> None:
    """A pod whose name cannot be looked up; a certificate for sending traces that has gone."""
    mine, new = free_address(), free_address()
    authority = tmp_path / "authority.pem"
    authority.touch()
    collector = Collector()
    with closing(collector), ScriptedPod(serve) as pod:
        traced = {"exporter": "otlp", "endpoint": collector.url, "sampling_rate": 1}
        base = {**configured([revision(pod.address)]), "tracing": traced}
        running = Reloadable(
            run_activator, tmp_path, {**base, "listen": mine}, OTEL_EXPORTER_OTLP_CERTIFICATE=str(authority)
        )
        running.activator.may_log_errors = True
        authority.unlink()
        refused = (
            ({"tracing": {**traced, "sampling_rate": 0.5}}, "tracing: "),
            (
                {"revisions": [revision("nobody.invalid:80", name="b", hosts=["b"]), revision(pod.address)]},
                "pod nobody.invalid:80: ",
            ),
        )
        for changes, why in refused:
            running._write({**base, "listen": new, **changes})
            running.activator.signal(signal.SIGHUP)
            running.activator.wait_log(f"reload refused: {why}")
            assert refuses_connections(new)
            assert list(running.activator.revisions()) == ["a"]
        assert ask(mine, request()).status == 200
        with collector.arrived:
            assert collector.arrived.wait_for(lambda: len(collector.spans) >= 3, 60.0)


def test_no_connection_is_refused_while_listeners_change(run_activator: RunActivator, tmp_path: Path) -> None:
    """The address that stays is served all the time, whatever comes and goes beside it."""
    stays = free_address()
    stop = threading.Event()
    statuses: list[int] = []

    def connect_again_and_again() -> None:
        while not stop.is_set():
            statuses.append(ask(stays, request()).status)

    with reloadable(run_activator, tmp_path, stays) as (running, base):
        client = threading.Thread(target=connect_again_and_again)
        client.start()
        try:
            for _ in range(5):
                other = free_address()
                running.reload({**base, "listen": [other, stays]})
                eventually(lambda address=other: not refuses_connections(address))  # type: ignore[misc]
        finally:
            stop.set()
            client.join()
    assert len(statuses) > 5
    assert set(statuses) == {200}


def test_an_address_that_changes_to_tls_keeps_its_socket(run_activator: RunActivator, tmp_path: Path) -> None:
    """Whoever connects meanwhile waits in the socket's queue, and is served by whichever listener comes to it."""
    stays = free_address()
    files = Files(tmp_path)
    with reloadable(run_activator, tmp_path, stays) as (running, base):
        with Client(stays) as kept:
            assert kept.ask(request()).status == 200
            running.reload({**base, "listen": files.listener(stays)})
            running.activator.wait_log(" serving on ", 2)
            with Client(stays) as secured:
                secured.secure(trusting(), "localhost")
                assert secured.ask(request()).status == 200
            assert kept.ask(request()).status == 200, "what was accepted goes on as it was"
        running.reload({**base, "listen": stays})
        running.activator.wait_log(" serving on ", 3)
        assert ask(stays, request()).status == 200


def test_a_delay_before_the_drain(run_activator: RunActivator) -> None:
    """Not ready at once, so that balancers go elsewhere; serving on, since they take a while to notice."""
    with ScriptedPod(serve) as pod:
        activator = run_activator(configured([revision(pod.address)], shutdown={"delay": "4s"}))
        activator.wait_ready_pods("a")
        with Client(activator.address) as kept:
            assert kept.ask(request()).header("connection") == ""
            activator.signal(signal.SIGTERM)
            activator.wait_log("not ready from now on; draining begins in 4 s")
            assert activator.ask("/readyz")[0] == 503
            assert ask(activator.address, request()).status == 200
            assert kept.ask(request()).header("connection") == "close"
        assert activator.wait_end() == 0


def test_what_pods_are_told_of_clients(run_activator: RunActivator) -> None:
    spoofed = "X-Forwarded-For: 6.6.6.6\r\nForwarded: for=6.6.6.6\r\nX-Real-IP: 6.6.6.6\r\nX-Request-Id: abc\r\n"
    with ScriptedPod(serve) as pod:
        activator = run_activator(configured([revision(pod.address)]))
        ask(activator.address, request(headers=spoofed))
        ask(activator.address, request())
        told = pod.requests[0]
        assert told.all("x-forwarded-for") == ["127.0.0.1"]
        assert told.all("x-forwarded-proto") == ["http"]
        assert told.all("x-forwarded-host") == ["a.test"]
        assert told.all("forwarded") == told.all("x-real-ip") == []
        assert told.all("x-request-id") == ["abc"]
        assert len(pod.requests[1].all("x-request-id")[0]) == 32
    with ScriptedPod(serve) as pod:
        forwarded = {"trust": ["127.0.0.0/8"], "headers": "both", "request_id": False, "via": "edge"}
        activator = run_activator(configured([revision(pod.address)], forwarded=forwarded))
        ask(activator.address, request(headers=spoofed))
        told = pod.requests[0]
        assert told.all("x-forwarded-for") == ["6.6.6.6, 127.0.0.1"]
        assert told.all("forwarded") == ['for=6.6.6.6, for=127.0.0.1;host="a.test";proto=http']
        assert told.all("x-real-ip") == ["6.6.6.6"]
        assert told.all("x-request-id") == ["abc"]
        assert told.all("via") == ["1.1 edge"]


def test_a_body_that_trickles_is_cut_off(run_activator: RunActivator) -> None:
    """A client that sends a byte now and then would hold a slot for as long as it likes."""
    with ScriptedPod(serve) as pod:
        activator = run_activator(configured([revision(pod.address, container_concurrency=1)]))
        activator.wait_ready_pods("a")
        with Client(activator.address) as client:
            client.send(request(method="POST", headers="Content-Length: 1000\r\n") + b"x")
            answer = client.answer("POST")
            assert (answer.status, answer.reason) == (408, "request_timeout")
            assert answer.header("connection") == "close"
        activator.wait_idle("a")


@pytest.mark.parametrize(("said", "kept"), [("timeout=1", False), ("timeout=60, max=1000", True)])
def test_a_pod_that_says_how_long_it_keeps_a_connection(run_activator: RunActivator, said: str, kept: bool) -> None:
    def script(side: PodSide) -> None:
        while True:
            side.request()
            side.answer(headers=f"Keep-Alive: {said}\r\n")

    with ScriptedPod(script) as pod:
        activator = run_activator(configured([revision(pod.address)]))
        activator.wait_ready_pods("a")
        with Client(activator.address) as client:
            for _ in range(2):
                assert client.ask(request()).all("keep-alive") == []
        assert [one.connection for one in pod.requests] == ([0, 0] if kept else [0, 1])
