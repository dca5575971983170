"""The first process of a chain of upgrades, once it only stays for the program that has started it."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from activator.app.handover import front
from tests.sources import ROOT

# Starts a program as its child, and becomes the front for it.
PARENT = """
import os, runpy, subprocess, sys
descriptor, script = int(sys.argv[1]), sys.argv[2]
serving = subprocess.Popen([sys.executable, "-c", sys.argv[3]])
print(serving.pid, flush=True)
signals, _ = os.pipe()
os.set_inheritable(signals, True)
arguments = map(str, (descriptor, serving.pid, signals))
os.execv(sys.executable, [sys.executable, "-I", "-S", script, *arguments])
"""
UNTIL_TERM = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print("ready", flush=True)
time.sleep(60)
"""
# The first process, with threads that wait for work. It gets a signal before it becomes the front, or, as soon as
# the main thread blocks it, by another thread.
FIRST = """
import asyncio, os, signal, subprocess, sys, time
import uvloop
from activator.app.handover.front_link import FrontLink
serving = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE)
serving.stdout.readline()
def signalled():
    os.kill(serving.pid, signal.SIGTERM)
def signal_itself(*_):
    os.kill(os.getpid(), signal.SIGTERM)
def block(how, numbers, block=signal.pthread_sigmask):
    block(how, numbers)
    if how == signal.SIG_BLOCK:
        signal_itself()
async def main():
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, signalled)
    await loop.getaddrinfo("localhost", 80)  # libuv has threads from now on
    link = FrontLink()
    link.serves(serving.pid)
    if sys.argv[2] == "before":
        signal_itself()
    else:
        signal.pthread_sigmask = block
    if sys.argv[2] == "no interpreter":
        sys.executable = "/nothing"
    return await link.become_front()
sys.exit(uvloop.run(main()))
"""


class Front:
    """A front, with the end of its connection that the serving process has."""

    def __init__(self, program: str) -> None:
        own, self.connection = socket.socketpair()
        os.set_inheritable(own.fileno(), True)
        command = [sys.executable, "-c", PARENT, str(own.fileno()), str(Path(front.__file__)), program]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, pass_fds=[own.fileno()])
        own.close()
        assert self.process.stdout is not None
        self.serving = int(self.process.stdout.readline())

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.connection.close()


@pytest.fixture
def fronts() -> Iterator[list[Front]]:
    made: list[Front] = []
    yield made
    for one in made:
        one.close()


def start(fronts: list[Front], program: str) -> Front:
    fronts.append(Front(program))
    return fronts[-1]


def wait_for_script(process: int) -> None:
    """Wait until the process has become the front, and has its handlers."""
    until_s = time.monotonic() + 10.0
    while b"front.py" not in Path(f"/proc/{process}/cmdline").read_bytes():
        assert time.monotonic() < until_s
        time.sleep(0.005)
    caught = 1 << (signal.SIGTERM - 1)
    while not int(Path(f"/proc/{process}/status").read_text().split("SigCgt:")[1].split()[0], 16) & caught:
        assert time.monotonic() < until_s
        time.sleep(0.005)


def test_a_signal_is_forwarded_and_the_exit_code_is_that_of_the_serving_process(fronts: list[Front]) -> None:
    one = start(fronts, UNTIL_TERM)
    assert one.line() == "ready"
    wait_for_script(one.process.pid)
    one.process.send_signal(signal.SIGTERM)
    assert one.process.wait(10.0) == 7


@pytest.mark.parametrize("moment", ["before", "blocked", "no interpreter"])
def test_a_signal_is_not_lost_while_the_front_begins(moment: str) -> None:
    """Another thread receives it, and ends when the front replaces the program."""
    command = [sys.executable, "-c", FIRST, UNTIL_TERM, moment]
    with subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}) as first:
        try:
            assert first.wait(10.0) == 7
        finally:
            first.kill()


def test_a_serving_process_that_is_killed(fronts: list[Front]) -> None:
    one = start(fronts, UNTIL_TERM)
    assert one.line() == "ready"
    os.kill(one.serving, signal.SIGKILL)
    assert one.process.wait(10.0) == 128 + signal.SIGKILL


def test_another_process_serves_from_then_on(fronts: list[Front]) -> None:
    one = start(fronts, "import time; time.sleep(0.3)")
    other = subprocess.Popen([sys.executable, "-c", UNTIL_TERM], stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None and other.stdout.readline() == "ready\n"
    data = b"%d\n" % other.pid
    one.connection.sendall(data[:2])  # a line may arrive in parts
    time.sleep(0.05)
    one.connection.sendall(data[2:])
    wait_for_script(one.process.pid)
    time.sleep(0.4)
    assert one.process.poll() is None, "the former one has ended"
    one.process.send_signal(signal.SIGTERM)
    assert other.wait(10.0) == 7
    assert one.process.wait(10.0) == front.UNKNOWN  # it is a child of this process
    other.stdout.close()


def test_the_connection_may_have_any_descriptor(fronts: list[Front]) -> None:
    """A process with thousands of connections becomes the front."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4_096:
        pytest.skip("too few descriptors are allowed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4_096), hard))
    own, connection = socket.socketpair()
    os.dup2(own.fileno(), 3_000)
    os.set_inheritable(3_000, True)
    serving = subprocess.Popen([sys.executable, "-c", UNTIL_TERM], stdout=subprocess.PIPE, text=True)
    assert serving.stdout is not None and serving.stdout.readline() == "ready\n"
    signals, wakeup = os.pipe()
    command = [sys.executable, "-I", "-S", str(Path(front.__file__)), "3000", str(serving.pid), str(signals)]
    process = subprocess.Popen(command, pass_fds=[3_000, signals])
    wait_for_script(process.pid)
    process.send_signal(signal.SIGTERM)
    assert serving.wait(10.0) == 7
    assert process.wait(10.0) == front.UNKNOWN
    serving.stdout.close()
    for one in (3_000, signals, wakeup):
        os.close(one)
    own.close()
    connection.close()
