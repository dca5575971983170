"""Real programs, started by the first request, as many as the load asks for, and gone again."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import RunActivator
from tests.e2e.http_client import Answer, Client, ask, burst, failures, request
from tests.e2e.running import (
    OWN_PROCESSES,
    PROGRAMS,
    SERVING,
    Activator,
    configured,
    eventually,
    figures,
    gated,
    is_dead,
    process_revision,
)

CLIENTS = 200


def command_of(program: str, need_program: Callable[[str], str]) -> list[str]:
    if program == "node":
        return [need_program("node"), str(PROGRAMS / "serving.js"), "{port}"]
    if program == "php":
        return [need_program("php"), "-S", "127.0.0.1:{port}", str(PROGRAMS / "serving.php")]
    if program == "caddy":
        return [need_program("caddy"), "file-server", "--browse", "--listen", "127.0.0.1:{port}"]
    return ["python3", "-m", "http.server", "{port}"]


def own_processes(activator: Activator) -> int:
    """Living processes beside the activator and its reaper."""
    return len(activator.processes()) - OWN_PROCESSES


@pytest.mark.parametrize(("program", "max_scale", "target"), [("http.server", 8, 50), ("node", 3, 10)])
def test_200_first_requests_at_once(
    run_activator: RunActivator,
    need_program: Callable[[str], str],
    tmp_path: Path,
    program: str,
    max_scale: int,
    target: int,
) -> None:
    # Some are answered before the last has come, unless no program starts until then: those left would need fewer.
    gate = tmp_path / "gate"
    command = gated(command_of(program, need_program), gate)

    def configuration(idle: str) -> dict[str, Any]:
        return configured([process_revision(command, max_scale=max_scale, target_concurrency=target, idle=idle)])

    activator = run_activator(configuration("1h"))
    assert own_processes(activator) == 0

    expected = min(max_scale, math.ceil(CLIENTS / target))
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(burst, activator.address, CLIENTS, request())
        try:
            eventually(lambda: activator.revision("app")["queued"] == CLIENTS, "all have come")
            eventually(lambda: figures(activator)["processes"] == expected, "as many as the formula gives")
        finally:
            gate.touch()
        answers = asking.result()
    assert failures(answers) == []

    eventually(lambda: figures(activator)["starting"] == 0, "all have started")
    assert figures(activator)["processes"] == expected
    assert own_processes(activator) == expected
    assert sum(slot["state"] == "ready" for slot in activator.slots("app")) == expected

    (tmp_path / "activator0.yaml").write_text(json.dumps(configuration("1s")))
    activator.signal(signal.SIGHUP)
    eventually(lambda: figures(activator)["processes"] == 0, "back at zero")
    eventually(lambda: own_processes(activator) == 0, "the processes are gone")
    assert activator.slots("app") == []

    again = ask(activator.address, request())
    assert again.status == 200
    assert figures(activator)["processes"] == 1
    assert activator.revision("app")["failed"] == {}


@pytest.mark.parametrize("program", ["http.server", "node", "php", "caddy"])
def test_as_typed_without_a_file(run_activator: RunActivator, need_program: Callable[[str], str], program: str) -> None:
    """`run -- CMD`: no limit, so one process; http.server has a backlog of 5 and loses what is dialled beyond it."""
    words = command_of(program, need_program)
    activator = run_activator(arguments=["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--", *words])
    answers = burst(activator.address, CLIENTS, request())
    assert failures(answers) == []
    assert figures(activator) == {"wanted": 1, "processes": 1, "starting": 0, "crashes": 0}


def test_the_port_comes_by_word_and_by_variable(run_activator: RunActivator) -> None:
    """The program may take its port from $PORT; other variables and the directory are as the file says."""
    code = (
        "import os, http.server as h\n"
        "class H(h.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        body = f\"{os.environ['GREETING']} {os.getcwd()}\".encode()\n"
        "        self.send_response(200); self.send_header('Content-Length', str(len(body)))\n"
        "        self.end_headers(); self.wfile.write(body)\n"
        "h.HTTPServer(('127.0.0.1', int(os.environ['PORT'])), H).serve_forever()\n"
    )
    revision = process_revision(
        [sys.executable, "-c", code], environment={"GREETING": "good day from"}, directory="/tmp"
    )
    activator = run_activator(configured([revision]))
    assert ask(activator.address, request()).body == b"good day from /tmp"


def test_a_readiness_path_is_waited_for(run_activator: RunActivator) -> None:
    """Ready means that the path answers well, not that the port accepts."""
    code = (
        "import sys, time, http.server as h\n"
        "born = time.monotonic()\n"
        "class H(h.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        warm = time.monotonic() - born > 0.7\n"
        "        self.send_response(200 if warm else 503); self.send_header('Content-Length', '0')\n"
        "        self.end_headers()\n"
        "h.ThreadingHTTPServer(('127.0.0.1', int(sys.argv[1])), H).serve_forever()\n"
    )
    readiness = {"http_get": "/ready", "interval": "50ms"}
    revision = process_revision([sys.executable, "-c", code, "{port}"], readiness=readiness)
    activator = run_activator(configured([revision]))
    answers = burst(activator.address, 20, request())
    assert failures(answers) == []


def test_min_scale_is_there_without_a_request(run_activator: RunActivator) -> None:
    revision = process_revision(SERVING, min_scale=2, max_scale=3, idle="300ms")
    activator = run_activator(configured([revision]))
    activator.wait_ready_pods("app", 2)
    pids = {one.body for one in burst(activator.address, 20, request()) if isinstance(one, Answer)}
    assert len(pids) <= 2
    assert figures(activator)["processes"] == 2


def test_concurrency_of_one_process_is_kept(run_activator: RunActivator) -> None:
    """container_concurrency 2, one process: eight requests of 0.2 s take at least four turns, in order of arrival."""
    revision = {**process_revision(SERVING, max_scale=1), "container_concurrency": 2}
    activator = run_activator(configured([revision]))
    answers = burst(activator.address, 8, request("/sleep/0.2"))
    assert failures(answers) == []
    assert figures(activator)["processes"] == 1


def test_a_long_request_outlasts_the_scale_down(run_activator: RunActivator, tmp_path: Path) -> None:
    """From three processes to one: the youngest are chosen, and the one that still works ends only when it is done."""
    revision = {**process_revision(SERVING, max_scale=3, idle="600ms"), "container_concurrency": 1}
    activator = run_activator(configured([revision]))
    with ExitStack() as stack:
        clients = [stack.enter_context(Client(activator.address)) for _ in range(3)]
        all_there, done = tmp_path / "all-there", tmp_path / "done"
        for client in clients:
            client.send(request(f"/until{all_there}"))
        eventually(lambda: activator.revision("app")["in_flight"] == 3, "each in a process of its own")
        all_there.touch()
        pids = [client.answer().body for client in clients]
        assert len(set(pids)) == 3
        for client, target in zip(clients, ("/sleep/0", "/sleep/0", f"/until{done}")):  # first-available: in this order
            client.send(request(target, "POST"))  # which is not sent again where its process ends under it
        assert [client.answer().status for client in clients[:2]] == [200, 200]
        eventually(lambda: figures(activator)["wanted"] == 1, "fewer are wanted")
        assert activator.revision("app")["in_flight"] == 1
        done.touch()
        assert clients[2].answer().status == 200
        eventually(lambda: figures(activator)["processes"] == 0, "back at zero")
    assert activator.revision("app")["failed"] == {}


def test_requests_that_come_as_the_last_process_goes(run_activator: RunActivator) -> None:
    """Silences about as long as `idle`: whether the process stays, goes, or is just going, nobody fails."""
    activator = run_activator(configured([process_revision(SERVING, idle="100ms")]))
    chance = random.Random(7)
    pids = []
    with Client(activator.address) as client:
        for _ in range(25):
            answer = client.ask(request(method="POST"))
            assert answer.status == 200, answer
            pids.append(answer.body)
            time.sleep(chance.uniform(0.0, 0.25))
    assert 1 < len(set(pids)) < 25
    assert activator.revision("app")["failed"] == {}


def test_the_loss_of_the_reaper_is_told(run_activator: RunActivator) -> None:
    activator = run_activator(configured([process_revision(SERVING)]))
    activator.may_log_errors = True
    commands = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in activator.processes()}
    (reaper,) = [pid for pid, command in commands.items() if b"reaper.py" in command]
    os.kill(reaper, signal.SIGKILL)
    eventually(lambda: is_dead(reaper), "the reaper has ended")  # its pipe is closed
    assert ask(activator.address, request()).status == 200
    activator.wait_log("the reaper exited")
    activator.signal(signal.SIGTERM)
    assert activator.wait_end() == 0
    activator.wait_nothing_left()


def test_sigint_ends_it_as_sigterm_does(run_activator: RunActivator) -> None:
    activator = run_activator(arguments=["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--", *SERVING])
    assert ask(activator.address, request()).status == 200
    activator.signal(signal.SIGINT)
    assert activator.wait_end() == 0
    activator.wait_nothing_left()
