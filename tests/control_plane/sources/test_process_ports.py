"""Who has a port, seen on real sockets of real processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from activator.control_plane.sources.process.ports import foreign_holder, holder, is_taken, owners
from activator.control_plane.sources.process.reaper import MARK
from activator.runtime.local_listeners import loopback_inodes

LISTENING = (
    "import socket, sys\n"
    "sock = socket.socket()\n"
    "sock.bind((sys.argv[1], 0))\n"
    "sock.listen()\n"
    "print(sock.getsockname()[1], flush=True)\n"
    "sys.stdin.read()\n"
)


@contextmanager
def listening_program(host: str = "127.0.0.1", **variables: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", LISTENING, host],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **variables},
        start_new_session=True,
    ) as program:
        assert program.stdout is not None
        assert program.stdin is not None
        try:
            yield program, int(program.stdout.readline())
        finally:
            program.stdin.close()


@pytest.fixture(autouse=True)
def _needs_the_kernel() -> None:
    if loopback_inodes(1) is None:
        pytest.skip("this kernel does not tell which sockets listen")


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_who_has_a_port(host: str) -> None:
    with listening_program(host) as (program, port):
        assert is_taken(port)
        assert holder(port).endswith(f"(process {program.pid})")
        assert foreign_holder(port, program.pid, "mark") == ""
        assert foreign_holder(port, os.getpid(), "mark") == holder(port)
    assert not is_taken(port)
    assert holder(port) == "another program"
    assert foreign_holder(port, os.getpid(), "mark") == ""


def test_the_mark_and_the_port_make_a_process_ours() -> None:
    with listening_program(**{MARK: "m"}) as (_, port):
        assert foreign_holder(port, os.getpid(), "m") != ""  # ours, but of a program with another port
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    wanted = taken.getsockname()[1]
    taken.close()
    fixed = LISTENING.replace("sys.argv[1], 0", f"sys.argv[1], {wanted}")
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", fixed, "127.0.0.1"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, MARK: "m", "PORT": str(wanted)},
        start_new_session=True,
    ) as program:
        assert program.stdout is not None
        assert program.stdin is not None
        program.stdout.readline()
        assert foreign_holder(wanted, os.getpid(), "m") == ""
        assert foreign_holder(wanted, os.getpid(), "n") != ""
        program.stdin.close()


def test_a_socket_on_another_address_is_no_obstacle() -> None:
    with listening_program("127.0.0.9") as (_, port):
        assert not is_taken(port)
        assert loopback_inodes(port) == frozenset()


def test_owners_are_found_in_the_order_that_is_asked() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        sockets = loopback_inodes(sock.getsockname()[1])
        assert sockets is not None
        assert owners(sockets, [os.getpid()]) == dict.fromkeys(sockets, os.getpid())
        assert owners(sockets, []) == {}
        assert owners(sockets, [2**22 + 1]) == {}  # no such process
