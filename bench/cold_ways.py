"""The two ways to start a program by its first request that `bench cold` sets beside each other.

Rules
  1. One cold start per life of what listens: it is started, asked once, and stopped.
  2. Both start the same program on another port and hand it the request over loopback.
  3. systemd's way gets its best case: `systemd-socket-activate` in the place of the service manager, and a program that
     reports its own readiness (as `Type=notify` does), so that nothing has to be found out.
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
PROXY: Final = "/usr/lib/systemd/systemd-socket-proxyd"  # on no PATH
PROGRAM: Final = str(ROOT / "bench" / "cold_program.py")


class Life(msgspec.Struct, frozen=True):
    """What the program says about itself; monotonic seconds."""

    started_s: float
    listening_s: float
    request_s: float


class ColdStart(msgspec.Struct, frozen=True):
    """One first request."""

    sent_s: float
    life: Life
    answered_s: float


def by_activator(log: Path) -> ColdStart:
    """`activator run -- CMD`. Raises OSError, HTTPException, MsgspecError and BenchError."""
    port, admin_port = free_port(), free_port()
    command = [sys.executable, "-m", "activator.cli", "run", "--log-level", "warning"]
    command += ["--listen", f"{LOOPBACK}:{port}", "--admin", f"{LOOPBACK}:{admin_port}"]
    command += ["--", sys.executable, PROGRAM, "{port}"]
    with running(command, log) as child:
        child.wait_until(answers(admin_port, "/readyz"))
        return _first_request(port, child)


def has_socket_proxy() -> bool:
    """Whether systemd's two programs are installed."""
    return os.access(PROXY, os.X_OK) and find_program("systemd-socket-activate") is not None


def by_socket_proxy(log: Path) -> ColdStart:
    """systemd-socket-proxyd behind an activated socket. Raises as `by_activator`."""
    port, pod_port = free_port(), free_port()
    fifo = log.with_suffix(".fifo")
    os.mkfifo(fifo)
    said = shlex.quote(str(fifo))
    program = shlex.join([sys.executable, PROGRAM, str(pod_port), "--says-listening"])
    # The socket is for the process that is activated, by its number: the shell becomes the proxy.
    script = f"{program} >{said} & read listening <{said} && exec {PROXY} {LOOPBACK}:{pod_port}"
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
