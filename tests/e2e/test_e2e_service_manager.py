"""Started as systemd starts services: sockets that it has opened, and what it is told (sd_listen_fds, sd_notify)."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.e2e.http_client import CutShortError, ask, request
from tests.e2e.running import CLI, SERVING, cli, configured, environment, eventually, is_dead, process_revision

# Does what systemd does before it executes: the socket becomes descriptor 3, and LISTEN_PID is the new process.
PASS = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ["LISTEN_PID"] = str(os.getpid())
os.execv(sys.argv[2], sys.argv[2:])
"""


class Notified:
    """The socket that systemd would listen on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.settimeout(20.0)

    def next(self, without: str = "WATCHDOG=1") -> str:
        while (told := self._socket.recv(4096).decode()) == without:
            pass
        return told

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def notified(tmp_path: Path) -> Iterator[Notified]:
    made = Notified(tmp_path / "notify")
    yield made
    made.close()


@contextmanager
def started(file: Path, listener: socket.socket, notified: Notified) -> Iterator[subprocess.Popen[str]]:
    variables = {"LISTEN_FDS": "1", "NOTIFY_SOCKET": str(notified.path), "WATCHDOG_USEC": "300000"}
    command = [sys.executable, "-c", PASS, str(listener.fileno()), *CLI, "run", "-c", str(file)]
    with subprocess.Popen(
        command, pass_fds=[listener.fileno()], env=environment(**variables), stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_restart_refuses_nobody(tmp_path: Path, notified: Notified) -> None:
    """The socket stays with systemd: who comes between two lives waits in its queue."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", 0))
        listener.listen(4096)
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        file = tmp_path / "activator.yaml"
        script = 'env | grep -E "^(LISTEN_|NOTIFY_|WATCHDOG_)" > "$0"; exec "$@"'
        seen = tmp_path / "seen"
        revision = process_revision(["sh", "-c", script, str(seen), *SERVING])
        settings = configured([revision])
        file.write_text(json.dumps({**settings, "listen": address, "admin": ""}))
        failures: list[str] = []
        answered = [0]
        over = threading.Event()

        def visit() -> None:
            while not over.is_set():
                try:
                    answer = ask(address, request(headers="Connection: close\r\n"), timeout_s=20.0)
                    failures.extend([] if answer.status == 200 else [str(answer)])
                    answered[0] += 1
                except (OSError, CutShortError) as error:
                    failures.append(repr(error))

        def served(count: int) -> bool:
            return answered[0] >= count or bool(failures)

        visitor = threading.Thread(target=visit)
        try:
            for life in range(3):
                with started(file, listener, notified) as process:
                    assert notified.next() == f"READY=1\nSTATUS=serving on {address}"
                    if life == 0:
                        visitor.start()
                        assert notified.next("") == "WATCHDOG=1"
                    before = answered[0]
                    eventually(partial(served, before + 20), "it serves")
                    process.send_signal(signal.SIGHUP)
                    assert notified.next().startswith("RELOADING=1\nMONOTONIC_USEC=")
                    assert notified.next().startswith("READY=1\n")
                    process.send_signal(signal.SIGTERM)
                    assert notified.next().startswith("STOPPING=1\n")
                    assert process.wait(20.0) == 0
                assert seen.read_text() == "", "programs know nothing of it"
            with started(file, listener, notified):
                notified.next()
                over.set()
                visitor.join(20.0)
        finally:
            over.set()
        assert failures == []


def test_a_socket_that_nothing_listens_on_is_told(tmp_path: Path, notified: Notified) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        file = tmp_path / "activator.yaml"
        file.write_text(json.dumps({**configured([process_revision(SERVING)]), "admin": ""}))
        with started(file, listener, notified) as process:
            notified.next()
            assert process.stderr is not None
            told = f"systemd has opened 127.0.0.1:{listener.getsockname()[1]}, which no listener uses"
            assert any(told in line for line in process.stderr)


def test_several_workers_cannot_share_it(tmp_path: Path, notified: Notified) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        file = tmp_path / "activator.yaml"
        settings = configured([process_revision(SERVING)], workers=2)
        file.write_text(json.dumps({**settings, "listen": address, "admin": ""}))
        with started(file, listener, notified) as process:
            assert process.wait(20.0) == 3
            assert process.stderr is not None
            assert "it cannot be shared by several workers" in process.stderr.read()


def test_the_units_are_printed_and_written(tmp_path: Path) -> None:
    file = tmp_path / "activator.yaml"
    file.write_text(json.dumps({**configured([process_revision(SERVING)]), "listen": "127.0.0.1:8080"}))
    printed = cli("install-service", "-c", str(file), "--run-as", "nobody", "--print").stdout
    assert "User=nobody\n" in printed and "ListenStream=127.0.0.1:8080\n" in printed and f"-c {file}\n" in printed
    wrote = cli("install-service", "-c", str(file), "--directory", str(tmp_path)).stdout
    assert "systemctl enable --now activator.service activator.socket" in wrote
    assert sorted(os.listdir(tmp_path)) == ["activator.service", "activator.socket", "activator.yaml"]
    refused = cli("install-service", "-c", str(tmp_path / "none.yaml"), "--print")
    assert (refused.returncode, refused.stdout) == (1, "")


def test_an_upgrade_moves_the_main_process(tmp_path: Path, notified: Notified) -> None:
    """The socket of systemd goes on being served, and the watchdog is fed by the new process."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", 0))
        listener.listen(4096)
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        path = tmp_path / "activator.yaml"
        revision = process_revision([sys.executable, "-m", "http.server", "{port}"])
        path.write_text(json.dumps(configured([revision], listen=address, admin=f"unix:{tmp_path}/admin")))
        with started(path, listener, notified) as process:
            assert notified.next().startswith("READY=1")
            assert ask(address, request("/")).status == 200
            command = [*CLI, "upgrade", "--admin", f"unix:{tmp_path}/admin"]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as upgrade:
                main = notified.next()  # beside it: the queue of the socket is short, and nothing waits for room in it
                assert main.startswith("MAINPID=")
                new = int(main.removeprefix("MAINPID="))
                assert notified.next().startswith("READY=1")
                output, _ = upgrade.communicate(timeout=20.0)
            assert upgrade.returncode == 0 and new != process.pid and f"process {new};" in output
            assert process.wait(20.0) == 0, "nothing waits for the former process"
            assert notified.next(without="") == "WATCHDOG=1"
            assert ask(address, request("/")).status == 200
            os.kill(new, signal.SIGTERM)
            assert notified.next().startswith("STOPPING=1")
            eventually(lambda: is_dead(new))
