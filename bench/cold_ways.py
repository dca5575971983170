"""The two ways to start a program by its first request that `bench cold` compares.

Rules
  1. Each cold start has a new listener: it is started, gets one request, and is stopped.
  2. Both start the same program on another port, and forward the request to it over loopback.
  3. systemd's way is measured in its best case: `systemd-socket-activate` instead of the service manager, and a program
     that reports its own readiness (as with `Type=notify`), so that no probes are needed.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import shlex
import socket
import sys
import time
from pathlib import Path
from typing import Final

import msgspec

from bench.processes import LOOPBACK, ROOT, Child, answers, find_program, free_port, running

ANSWER_TIMEOUT_S: Final = 30.0
PROXY: Final = "/usr/lib/systemd/systemd-socket-proxyd"  # not on PATH
PROGRAM: Final = str(ROOT / "bench" / "cold_program.py")


class Life(msgspec.Struct, frozen=True):
    """The times that the program reports, in monotonic seconds."""

    started_s: float
    listening_s: float
    request_s: float


class ColdStart(msgspec.Struct, frozen=True):
    """One cold start by a first request."""

    sent_s: float
    life: Life
    answered_s: float


def by_activator(log: Path) -> ColdStart:
    """Start the program by `activator run -- CMD`. Raises OSError, HTTPException, MsgspecError and BenchError."""
    port, admin_port = free_port(), free_port()
    command = [sys.executable, "-m", "activator.cli", "run", "--log-level", "warning"]
    command += ["--listen", f"{LOOPBACK}:{port}", "--admin", f"{LOOPBACK}:{admin_port}"]
    command += ["--", sys.executable, PROGRAM, "{port}"]
    with running(command, log) as child:
        child.wait_until(answers(admin_port, "/readyz"))
        return _first_request(port, child)


def has_socket_proxy() -> bool:
    """Return True if systemd's two programs are installed."""
    return os.access(PROXY, os.X_OK) and find_program("systemd-socket-activate") is not None


def by_socket_proxy(log: Path) -> ColdStart:
    """Start it by systemd-socket-proxyd behind an activated socket. Raises the errors of `by_activator`."""
    port, pod_port = free_port(), free_port()
    fifo = log.with_suffix(".fifo")
    os.mkfifo(fifo)
    target = shlex.quote(str(fifo))
    program = shlex.join([sys.executable, PROGRAM, str(pod_port), "--says-listening"])
    # The socket is passed to a process id (LISTEN_PID), so the shell must exec the proxy.
    script = f"{program} >{target} & read listening <{target} && exec {PROXY} {LOOPBACK}:{pod_port}"
    activate = find_program("systemd-socket-activate")
    assert activate is not None, "asked before"
    with running([activate, "-l", f"{LOOPBACK}:{port}", "/bin/sh", "-c", script], log) as child:
        child.wait_until(lambda: _is_listening(log))
        return _first_request(port, child)


def _is_listening(log: Path) -> bool:
    return "Listening on" in log.read_text()


def _first_request(port: int, child: Child) -> ColdStart:
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=ANSWER_TIMEOUT_S)
    with contextlib.closing(connection):
        connection.connect()
        assert isinstance(connection.sock, socket.socket)
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sent_s = time.monotonic()
        connection.request("GET", "/", headers={"Host": "bench.localhost"})
        answer = connection.getresponse()
        content = answer.read()
        answered_s = time.monotonic()
    if answer.status != 200:
        raise http.client.HTTPException(f"status {answer.status}: {content[:200]!r}")
    child.check_alive()
    return ColdStart(sent_s, msgspec.json.decode(content, type=Life), answered_s)
