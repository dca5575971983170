"""Whether a program listens, asked of the kernel: programs with a network of their own, and such without."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from activator.control_plane.sources.container.listening import program_listens
from tests.conftest import Need

_PROGRAM = """
import socket, sys
sock = socket.socket()
sock.bind(("0.0.0.0", 8080))
print("bound", flush=True)
sys.stdin.readline()
sock.listen()
print("listens", flush=True)
sys.stdin.readline()
"""


@contextmanager
def in_a_network_of_its_own() -> Iterator[subprocess.Popen[str]]:
    words = ["unshare", "--net", *([] if os.geteuid() == 0 else ["--map-root-user"]), sys.executable, "-c", _PROGRAM]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        yield program
        assert program.stdin is not None
        program.stdin.close()


def test_a_program_with_a_network_of_its_own(need: Need) -> None:
    tried = subprocess.run(["unshare", "--net", "--map-root-user", "true"], capture_output=True, text=True, check=False)
    need(tried.returncode == 0, f"networks of its own: {tried.stderr.strip()}")
    with in_a_network_of_its_own() as program:
        assert program.stdout is not None and program.stdin is not None
        assert program.stdout.readline() == "bound\n"
        assert program_listens(program.pid, 8080) is False
        program.stdin.write("\n")
        program.stdin.flush()
        assert program.stdout.readline() == "listens\n"
        assert program_listens(program.pid, 8080) is True
        assert program_listens(program.pid, 8081) is False
    assert program_listens(program.pid, 8080) is None


def test_what_is_not_known() -> None:
    assert program_listens(os.getpid(), 8080) is None  # our own network: published ports are not there
    assert program_listens(0, 8080) is None
