"""Programs with listeners of their own kind: on ::1 only, and for one connection only."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.e2e.conftest import RunActivator
from tests.e2e.http_client import Client, request
from tests.e2e.running import configured, eventually

ONLY_6 = """
import socket, sys
listening = socket.socket(socket.AF_INET6)
listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listening.bind(("::1", int(sys.argv[1])))
listening.listen()
while True:
    connection, _ = listening.accept()
    if connection.recv(65536):
        connection.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 3\\r\\nConnection: close\\r\\n\\r\\nsix")
    connection.close()
"""
ONE_SHOT = """
import socket, sys, time
while True:
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", int(sys.argv[1])))
        listening.listen(0)
        connection, _ = listening.accept()
    asked = connection.recv(65536)
    print(len(asked), flush=True)
    if asked:
        connection.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 4\\r\\n\\r\\nshot")
    connection.close()
    time.sleep(0.05)
"""


@pytest.fixture(scope="module", autouse=True)
def _has_ipv6() -> None:
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError as error:
        pytest.skip(f"this machine has no IPv6: {error}")


def test_a_program_that_listens_on_ipv6_only(run_activator: RunActivator, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(ONLY_6)
    process = {"command": [sys.executable, str(program), "{port}"]}
    activator = run_activator(configured([{"name": "app", "hosts": ["*"], "process": process}]))
    with Client(activator.address) as client:
        assert client.ask(request()).body == b"six"
        (slot,) = activator.slots("app")
        assert slot["address"].startswith("[::1]:") and slot["state"] == "ready"
        assert client.ask(request()).body == b"six"


def test_a_fixed_pod_at_the_wrong_loopback_address_is_refused_with_a_hint(
    run_activator: RunActivator, tmp_path: Path
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = subprocess.Popen([sys.executable, "-c", ONLY_6, str(port)])
    try:
        revision = {"name": "app", "hosts": ["*"], "pods": [f"127.0.0.1:{port}"]}
        activator = run_activator(configured([revision]))
        with Client(activator.address) as client:
            answer = client.ask(request())
            assert answer.status == 503
            assert f"connection refused (it listens on [::1]:{port} only)" in answer.body.decode()
    finally:
        program.kill()
        program.wait()


def test_the_only_connection_of_a_program_is_the_requests_own(run_activator: RunActivator, tmp_path: Path) -> None:
    """It takes one connection, ends, and takes the next one a moment later: no probe may use up any of them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    taken: list[int] = []
    with subprocess.Popen([sys.executable, "-c", ONE_SHOT, str(port)], stdout=subprocess.PIPE, text=True) as program:
        reader = threading.Thread(target=lambda: taken.extend(int(line) for line in program.stdout or ()))
        reader.start()
        revision = {"name": "app", "hosts": ["*"], "container_concurrency": 1, "pods": [f"127.0.0.1:{port}"]}
        try:
            activator = run_activator(configured([revision]))
            activator.wait_ready_pods("app")
            for _ in range(10):
                with Client(activator.address) as client:
                    assert client.ask(request()).body == b"shot"
            eventually(lambda: len(taken) >= 10)
            assert len([one for one in taken if one == 0]) <= 1, "a race with a probe, at the most"
        finally:
            program.kill()
            reader.join()


def test_netcat_that_takes_one_connection(run_activator: RunActivator, tmp_path: Path) -> None:
    netcat = shutil.which("nc.openbsd")
    if netcat is None:
        pytest.skip("netcat-openbsd is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    answer = tmp_path / "answer"
    answer.write_bytes(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nnc")
    revision = {"name": "app", "hosts": ["*"], "container_concurrency": 1, "pods": [f"127.0.0.1:{port}"]}
    activator = run_activator(configured([revision]))
    for _ in range(5):
        with (
            answer.open("rb") as told,
            subprocess.Popen(
                [netcat, "-v", "-N", "-l", "127.0.0.1", str(port)],
                stdin=told,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            ) as once,
            Client(activator.address) as client,
        ):
            assert once.stderr is not None and b"Listening" in once.stderr.readline()
            assert client.ask(request()).body == b"nc"
            heard, _ = once.communicate(timeout=20)
            assert heard.startswith(b"GET / HTTP/1.1\r\n")
