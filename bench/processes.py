"""Programs that a measurement starts: pinned to a core, checked until they serve, their CPU time, and their end.

Rules
  1. Every child has its own session, so that Ctrl-C reaches only the benchmark, and `stop` ends all of its processes.
  2. All that is started is stopped in a `finally`; `stop` takes a bounded time.
  3. CPU time is that of the process clocks of the whole tree (user + system, in nanoseconds, including ended threads):
     /proc/PID/stat only has a resolution of 10 ms.
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
    """A measurement that failed; the message gives the reason in one line or with the last lines of a log."""


class UsageError(Exception):
    """A wrong command line, or something that is not available here."""


def find_program(name: str) -> str | None:
    """Find a program on PATH, or in the folders of servers that are not on every user's PATH."""
    return shutil.which(name) or shutil.which(name, path="/usr/local/sbin:/usr/sbin:/sbin")


def free_port() -> int:
    """Return a port of the loopback interface on which nothing listens at the moment."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


class Cores:
    """The placement of processes: the measured program alone on one core, upstream and client on another."""

    def __init__(self) -> None:
        usable = sorted(os.sched_getaffinity(0))
        self.load = usable[0]
        self.measured = usable[-1]

    @property
    def apart(self) -> bool:
        """Return True if there are two cores."""
        return self.load != self.measured


@contextlib.contextmanager
def pinned(core: int | None) -> Iterator[None]:
    """Pin all that is started in the block to this core."""
    before = os.sched_getaffinity(0)
    if core is not None:
        os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class Child:
    """A program that was started."""

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
        """Return the last lines of its log."""
        lines = self.log.read_text("utf-8", "replace").splitlines()[-_LOG_TAIL_LINES:]
        return "\n".join(f"    {line}" for line in lines)

    def wait_until(self, ready: Callable[[], bool]) -> None:
        """Wait until `ready` returns True. Raises BenchError if the program ends first or takes too long."""
        until_s = time.monotonic() + READY_TIMEOUT_S
        while not ready():
            self.check_alive()
            if time.monotonic() > until_s:
                raise BenchError(f"{self.name} was not ready within {READY_TIMEOUT_S:.0f} s\n{self.tail()}".rstrip())
            time.sleep(_STEP_S)

    def output(self, timeout_s: float) -> str:
        """Return all that the program prints, after its end."""
        try:
            out, _ = self.process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise BenchError(f"{self.name} did not end within {timeout_s:.0f} s\n{self.tail()}".rstrip()) from None
        if self.process.returncode != 0:
            self.check_alive()
        text: str = out.decode("utf-8", "replace")
        return text

    def cpu_s(self) -> float:
        """Return the user + system time of the program and of all processes it started."""
        return sum(map(process_cpu_s, tree(self.process.pid)))

    def waited_s(self) -> float:
        """Return how long these processes were ready to run while others had their core."""
        return sum(map(process_waited_s, tree(self.process.pid)))

    def memory_bytes(self) -> int:
        """Return the memory of all these processes; shared memory counts once (Pss)."""
        return sum(map(process_memory_bytes, tree(self.process.pid)))

    def stop(self) -> None:
        """Terminate the program; kill it after a timeout."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            self._signal(number)
            try:
                self.process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                continue
            break
        self._signal(signal.SIGKILL)  # the rest of its process group
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
    """Run a program for the duration of the block."""
    child = Child(command, log, core, environment, capture)
    try:
        yield child
    finally:
        child.stop()


def answers(port: int, path: str, size_bytes: int | None = None) -> Callable[[], bool]:
    """Return a check that GET returns 200 and, if a size is given, a body of exactly that size."""

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
    """Return the process and all its descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (parent := _parent(entry)) is not None:
            children.setdefault(parent, []).append(int(entry.name))
    found = [pid]
    for parent in found:  # grows during the iteration
        found.extend(children.get(parent, []))
    return found


def process_cpu_s(pid: int) -> float:
    """Return the CPU time of a process; 0 if it has ended."""
    # The clock of clock_getcpuclockid(3), which Python offers for threads only.
    clock = (~pid << 3) | 2
    try:
        return time.clock_gettime(clock)
    except OSError:
        return 0.0


def process_waited_s(pid: int) -> float:
    """Return how long a process was ready to run without a core; 0 if unknown."""
    waited_ns = 0
    for thread in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        try:
            waited_ns += int(thread.read_text("ascii").split()[1])
        except (OSError, IndexError):
            continue
    return waited_ns / 1e9


def process_memory_bytes(pid: int) -> int:
    """Return a process's memory, with its part of shared memory (Pss); 0 if unknown."""
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
    # The name is in parentheses and may itself contain parentheses and blanks.
    return int(stat.rpartition(")")[2].split()[1])
