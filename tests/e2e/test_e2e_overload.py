"""A worker that has too much to do refuses the cheapest first, serves what it has, and says so."""

from __future__ import annotations

import json
import os
import re
import signal
import ssl
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import RunActivator, one_worker
from tests.e2e.http_client import Client, ask, request
from tests.e2e.pods import ScriptedPod, serve, serve_or_hold
from tests.e2e.running import Activator, configured, eventually
from tests.e2e.test_e2e_tls import Files, trusting

STEPS = ("close_kept", "no_queueing", "no_connections")


def config(pods: list[str], limits: dict[str, Any]) -> dict[str, Any]:
    revision = {"name": "app", "hosts": ["*"], "pods": pods, "container_concurrency": 1}
    return configured([revision], limits=limits)


def steps(activator: Activator) -> list[int]:
    text = activator.ask("/metrics")[2].decode()
    return [int(float(text.split(f'activator_overloaded_workers{{step="{step}"}} ')[1].split()[0])) for step in STEPS]


@one_worker
def test_memory(run_activator: RunActivator, tmp_path: Path) -> None:
    with ScriptedPod(serve_or_hold) as pod, ExitStack() as stack:
        activator = run_activator(config([pod.address], {"memory": "1GiB"}))
        kept = [stack.enter_context(Client(activator.address)) for _ in range(2)]
        assert [client.ask(request()).status for client in kept] == [200, 200]
        kept[0].send(request("/held"))
        eventually(lambda: activator.revision("app")["in_flight"] == 1)
        kept[1].send(request())
        eventually(lambda: activator.revision("app")["queued"] == 1)

        # 10 MiB are less than any process has.
        (tmp_path / "activator0.yaml").write_text(json.dumps(config([pod.address], {"memory": "10MiB"})))
        activator.signal(signal.SIGHUP)
        activator.wait_log("overloaded: .* of 10 MiB of memory are used; .*new connections are rejected")
        assert steps(activator) == [1, 1, 1]
        refused = ask(activator.address, request())
        assert (refused.status, refused.reason) == (503, "overloaded")
        assert refused.header("retry-after") == "1"
        assert activator.ask("/readyz")[0] == 200, "the admin port is not affected"
        pod.go_on()
        for client in kept:
            answer = client.answer()
            assert (answer.status, answer.header("connection")) == (200, "close"), "what was admitted is served"
            assert client.rest() == b""

        (tmp_path / "activator0.yaml").write_text(json.dumps(config([pod.address], {"memory": "1GiB"})))
        activator.signal(signal.SIGHUP)
        reloaded_s = time.monotonic()
        activator.wait_log("no longer overloaded")
        assert time.monotonic() - reloaded_s < 10.0
        assert steps(activator) == [0, 0, 0]
        with Client(activator.address) as client:
            for _ in range(3):
                assert client.ask(request()).status == 200


@one_worker
def test_tls_is_refused_before_its_handshake(run_activator: RunActivator, tmp_path: Path) -> None:
    files = Files(tmp_path)
    listen = {"address": "127.0.0.1:0", "certificate": str(files.certificate), "key": str(files.key)}
    with ScriptedPod(serve) as pod:
        activator = run_activator({**config([pod.address], {"memory": "10MiB"}), "listen": listen})
        activator.wait_log("overloaded: .*new connections are rejected")
        for _ in range(3):
            with Client(activator.address) as client, pytest.raises((ssl.SSLEOFError, ConnectionResetError)):
                client.secure(trusting(), "localhost")
        text = activator.ask("/metrics")[2].decode()
        assert re.search(r"^activator_client_connections_shed_total 3\.0$", text, re.MULTILINE)
        assert re.search(r"^activator_client_handshakes 0\.0$", text, re.MULTILINE)


@one_worker
def test_a_loop_that_is_always_late(run_activator: RunActivator) -> None:
    """As if it shared its core with too many others: it runs for 20 ms and then waits for 150."""
    with ScriptedPod(serve_or_hold) as pod, ExitStack() as stack:
        activator = run_activator(config([pod.address], {"loop_delay": "50ms"}))
        holds, waits = (stack.enter_context(Client(activator.address)) for _ in range(2))
        holds.send(request("/held"))
        eventually(lambda: activator.revision("app")["in_flight"] == 1)
        with stalled(activator.process.pid, 0.02, 0.15):
            activator.wait_log("overloaded: the event loop is late by 0.[0-9] s; .*requests that would have to wait")
            answer = waits.ask(request())
            assert (answer.status, answer.reason) == (503, "overloaded")
        pod.go_on()
        assert holds.answer().status == 200
        activator.wait_log("no longer overloaded")
        assert ask(activator.address, request()).status == 200


class stalled:  # noqa: N801 -- a context manager that reads as a word
    """Stops the process again and again while the block runs."""

    def __init__(self, pid: int, runs_s: float, stops_s: float) -> None:
        self._pid = pid
        self._runs_s = runs_s
        self._stops_s = stops_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(self._runs_s):
            os.kill(self._pid, signal.SIGSTOP)
            self._ended.wait(self._stops_s)
            os.kill(self._pid, signal.SIGCONT)


@one_worker
def test_almost_as_many_connections_as_allowed(run_activator: RunActivator) -> None:
    with ScriptedPod(serve_or_hold) as pod, ExitStack() as stack:
        activator = run_activator(config([pod.address], {"connections": 10}))
        clients = [stack.enter_context(Client(activator.address)) for _ in range(9)]
        activator.wait_log("overloaded: 9 of 10 client connections are open; responses close their connections")
        answer = clients[0].ask(request())
        assert (answer.status, answer.header("connection")) == (200, "close")
        assert clients[0].rest() == b""
        activator.wait_log("no longer overloaded")
        answer = clients[1].ask(request())
        assert (answer.status, answer.header("connection")) == (200, "")
