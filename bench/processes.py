"""Programs that a measurement starts: pinned to a core, watched until they serve, their CPU time, and their end.

Rules
  1. Every child has a session of its own, so that Ctrl-C reaches only us, and `stop` ends all that it started.
  2. Whatever is started is stopped in a `finally`; `stop` is bounded in time.
  3. CPU time is the process clock of each process of the tree (user + system, in nanoseconds, threads that ended
     included): /proc/PID/stat counts in 10 ms.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOOPBACK = "127.0.0.1"
READY_TIMEOUT_S = 20.0
STOP_TIMEOUT_S = 5.0
_STEP_S = 0.01
_LOG_TAIL_LINES = 8


class BenchError(Exception):
    """A measurement that could not be made; the message says why in one line or with a log's last lines."""


class UsageError(Exception):
    """Something was asked for that cannot be had."""


def find_program(name: str) -> str | None:
    """On PATH, or where distributions put servers, which is not on everybody's PATH."""
    return shutil.which(name) or shutil.which(name, path="/usr/local/sbin:/usr/sbin:/sbin")


def free_port() -> int:
    """A port of the loopback interface that nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


class Cores:
    """Who runs where: the measured program alone on one core, upstream and client together on another."""

    def __init__(self) -> None:
        usable = sorted(os.sched_getaffinity(0))
        self.load = usable[0]
        self.measured = usable[-1]

    @property
    def apart(self) -> bool:
        """Whether there are two of them."""
        return self.load != self.measured


@contextlib.contextmanager
def pinned(core: int | None) -> Iterator[None]:
    """What is started in here stays on this core."""
    before = os.sched_getaffinity(0)
    if core is not None:
        os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class Child:
    """One program that was started."""

    def __init__(
        self,
        command: list[str],
        log: Path,
        core: int | None = None,
        environment: dict[str, str] | None = None,
        capture: bool = False,
    ) -> None:
        self.name = Path(command[0]).name if command[0] != sys.executable else " ".join(command[1:3])
        self.log = log
        with pinned(core), log.open("wb") as errors:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if capture else errors,
                stderr=errors,
                start_new_session=True,
            )

    def check_alive(self) -> None:
        """Raise BenchError with the last lines of its log where the program ended."""
        code = self.process.poll()
        if code is not None:
            raise BenchError(f"{self.name} ended with exit code {code}\n{self.tail()}".rstrip())

    def tail(self) -> str:
        """The last lines of its log."""
        lines = self.log.read_text("utf-8", "replace").splitlines()[-_LOG_TAIL_LINES:]
        return "\n".join(f"    {line}" for line in lines)

    def wait_until(self, ready: Callable[[], bool]) -> None:
        """Raises BenchError where the program ends first, or takes too long."""
        until_s = time.monotonic() + READY_TIMEOUT_S
        while not ready():
            self.check_alive()
            if time.monotonic() > until_s:
                raise BenchError(f"{self.name} was not ready within {READY_TIMEOUT_S:.0f} s\n{self.tail()}".rstrip())
            time.sleep(_STEP_S)

    def output(self, timeout_s: float) -> str:
        """All that it prints; waits for its end."""
        try:
            out, _ = self.process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise BenchError(f"{self.name} did not end within {timeout_s:.0f} s\n{self.tail()}".rstrip()) from None
        if self.process.returncode != 0:
            self.check_alive()
        text: str = out.decode("utf-8", "replace")
        return text

    def cpu_s(self) -> float:
        """User + system of the program and of all processes it started."""
        return sum(map(process_cpu_s, tree(self.process.pid)))

    def waited_s(self) -> float:
        """How long they were ready to run while their core was given to others."""
        return sum(map(process_waited_s, tree(self.process.pid)))

    def memory_bytes(self) -> int:
        """Of all of them; what several share is counted once (Pss)."""
        return sum(map(process_memory_bytes, tree(self.process.pid)))

    def stop(self) -> None:
        """Ask, wait, insist."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            self._signal(number)
            try:
                self.process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                continue
            break
        self._signal(signal.SIGKILL)  # whoever of its group outlived it
        if self.process.stdout is not None:
            self.process.stdout.close()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)


@contextlib.contextmanager
def running(
    command: list[str],
    log: Path,
    core: int | None = None,
    environment: dict[str, str] | None = None,
    capture: bool = False,
) -> Iterator[Child]:
    """A program for as long as the block lasts."""
    child = Child(command, log, core, environment, capture)
    try:
        yield child
    finally:
        child.stop()


def answers(port: int, path: str, size_bytes: int | None = None) -> Callable[[], bool]:
    """Whether GET is answered with 200 and, where a size is given, a body of exactly that size."""

    def ask() -> bool:
        connection = http.client.HTTPConnection(LOOPBACK, port, timeout=2.0)
        try:
            connection.request("GET", path, headers={"Host": "bench.localhost"})
            answer = connection.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
        return answer.status == 200 and size_bytes in (None, len(body))

    return ask


# --- the tree of processes ------------------------------------------------------------------------------------------


def tree(pid: int) -> list[int]:
    """The process and all its descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (parent := _parent(entry)) is not None:
            children.setdefault(parent, []).append(int(entry.name))
    found = [pid]
    for parent in found:  # grows while it is gone through
        found.extend(children.get(parent, []))
    return found


def process_cpu_s(pid: int) -> float:
    """0 where the process is gone."""
    # The clock that clock_getcpuclockid(3) names; Python gives a name only to those of threads.
    clock = (~pid << 3) | 2
    try:
        return time.clock_gettime(clock)
    except OSError:
        return 0.0


def process_waited_s(pid: int) -> float:
    """0 where the process is gone, or the kernel does not say."""
    waited_ns = 0
    for thread in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        try:
            waited_ns += int(thread.read_text("ascii").split()[1])
        except (OSError, IndexError):
            continue
    return waited_ns / 1e9


def process_memory_bytes(pid: int) -> int:
    """Its own memory, and its share of what it shares with others; 0 where the kernel does not say."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text("ascii").splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def _parent(entry: Path) -> int | None:
    try:
        stat = (entry / "stat").read_text("utf-8", "replace")
    except OSError:
        return None
    # The name stands in brackets and may hold anything, brackets and blanks included.
    return int(stat.rpartition(")")[2].split()[1])
