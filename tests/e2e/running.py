"""An activator as its users run it: a process of its own, asked over its ports, judged by what it leaves behind.

Rules
  1. Every process that comes of it carries a mark in its environment, so that `processes` finds all of them, those
     included that changed their session or lost their parent.
  2. Ports are 0 in the configuration; what they became stands in the log.
  3. Waiting is for a condition, never for a time.
  4. `E2E_WORKERS=2` runs all of them with so many workers: what a client sees must be the same.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from activator.runtime.process_stat import stat_fields

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 20.0  # for what should take a moment, on a slow and busy machine
CLI = [sys.executable, "-m", "activator.cli"]
PROGRAMS = Path(__file__).parent / "programs"
SERVING = [sys.executable, "-I", "-S", str(PROGRAMS / "serving.py"), "{port}"]  # a program that starts fast
_MARK = "E2E_MARK"

# With how many workers the program runs where its configuration does not say, and the processes that it then is: itself
# and the reaper, and what workers are forked from.
WORKERS = int(os.environ.get("E2E_WORKERS", "1"))
OWN_PROCESSES = 2 if WORKERS == 1 else 3 + WORKERS

T = TypeVar("T")


def eventually(check: Callable[[], T], what: str = "", timeout_s: float = PATIENCE_S) -> T:
    """The first true answer of `check`; fails with the last one when there is none in time."""
    give_up_s = time.monotonic() + timeout_s
    while True:
        answer = check()
        if answer:
            return answer
        if time.monotonic() > give_up_s:
            raise AssertionError(f"still not so after {timeout_s:g} s: {what or check}; last: {answer!r}")
        time.sleep(0.01)


def environment(**variables: str) -> dict[str, str]:
    """The environment of a program under test: the world it is to run in stays, settings of the suite do not."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ACTIVATOR_")}
    if "ACTIVATOR_COMPILE" in os.environ:
        kept["ACTIVATOR_COMPILE"] = os.environ["ACTIVATOR_COMPILE"]
    if WORKERS > 1:
        kept["ACTIVATOR_WORKERS"] = str(WORKERS)
    return {**kept, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **variables}


def cli(*words: str, timeout_s: float = 60.0, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run one command of the program to its end."""
    return subprocess.run(
        [*CLI, *words],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        cwd=cwd or ROOT,
        env=environment(),
        stdin=subprocess.DEVNULL,
        check=False,
    )


def configured(revisions: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """A configuration on free ports."""
    return {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", **more, "revisions": revisions}


def process_revision(command: list[str], **process: Any) -> dict[str, Any]:
    """A revision for all hosts that is run by local processes."""
    return {"name": "app", "hosts": ["*"], "process": {"command": command, **process}}


def gated(command: list[str], gate: Path) -> list[str]:
    """The command, which starts once there is a file `gate`: how long a start takes is for the test to say."""
    return ["sh", "-c", 'while [ ! -e "$0" ]; do sleep 0.02; done; exec "$@"', str(gate), *command]


def figures(activator: Activator) -> dict[str, int]:
    """wanted, processes, starting and crashes of `process_revision`'s revision."""
    found: dict[str, int] = activator.revision("app")["processes"]
    return found


def processes(mark: str) -> list[int]:
    """All living processes that came of the activator with this mark; what nobody has waited for yet is not living."""
    sought = f"{_MARK}={mark}".encode()
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                if sought in Path(f"/proc/{name}/environ").read_bytes().split(b"\0") and state_of(int(name)) != "Z":
                    found.append(int(name))
    return found


def state_of(pid: int) -> str:
    """The kernel's letter for the state of a process; "Z" as well when there is none."""
    try:
        return stat_fields(pid)[0].decode()
    except OSError:
        return "Z"


def is_dead(pid: int) -> bool:
    """No thread of it runs any more, so that its sockets are closed; its first thread may end before the others."""
    try:
        return state_of(pid) == "Z" and len(os.listdir(f"/proc/{pid}/task")) <= 1
    except OSError:
        return True


def resident_bytes(pid: int) -> int:
    """What a process holds in memory."""
    text = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", text)
    assert found is not None
    return int(found[1]) * 1024


class Activator:
    """`arguments` go to `activator run`; `log` is what it wrote on standard error, line by line.

    `prefix` is a command that runs another in other circumstances.
    """

    def __init__(self, arguments: list[str], cwd: Path, prefix: Sequence[str] = (), **variables: str) -> None:
        self.mark = uuid.uuid4().hex
        self.log: list[str] = []
        self.may_log_errors = False
        self.address = ""
        self.admin = ""
        self.process = subprocess.Popen(
            [*prefix, *CLI, "run", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            cwd=cwd,
            env=environment(**{_MARK: self.mark}, **variables),
        )
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()

    def wait_serving(self, timeout_s: float = PATIENCE_S) -> Activator:
        """Wait until it listens, and read from its log where."""
        self.address = self.wait_log(r" serving on (\S+)", timeout_s=timeout_s).split(",")[0]
        found = self.logged(r" admin port on (\S+)")
        self.admin = found[0] if found else ""
        return self

    def wait_log(self, pattern: str, count: int = 1, timeout_s: float = PATIENCE_S) -> str:
        """Wait for the `count`th line that `pattern` is found in; its first group, or the line."""

        def check() -> str:
            found = self.logged(pattern)
            if len(found) < count and self.process.poll() is not None and not self._reader.is_alive():
                raise AssertionError(f"ended with {self.process.returncode} before {pattern!r}:\n" + self.text())
            return found[count - 1] if len(found) >= count else ""

        return eventually(check, pattern, timeout_s)

    def wait_logged_once(self, pattern: str) -> None:
        """Wait for the line that `pattern` is found in; there must not be a second one."""
        self.wait_log(pattern)
        assert len(self.logged(pattern)) == 1, self.logged(pattern)

    def logged(self, pattern: str) -> list[str]:
        """The first group of `pattern`, or all of the match, of every line in which it is found."""
        found = [re.search(pattern, line) for line in list(self.log)]
        return [one[1] if one.re.groups else one[0] for one in found if one is not None]

    def text(self) -> str:
        return "\n".join(self.log)

    @property
    def host(self) -> str:
        return self.address.rpartition(":")[0]

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    # --- its admin port ---

    def ask(
        self, path: str, method: str = "GET", headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """(status, headers, body) of one answer of the admin port."""
        connection = http.client.HTTPConnection(self.admin, timeout=PATIENCE_S)
        try:
            connection.request(method, path, headers=headers or {})
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def command(self, path: str) -> tuple[int, dict[str, str], bytes]:
        """POST with the header that such calls need."""
        return self.ask(path, "POST", {"Activator-Admin": "1"})

    def revisions(self) -> dict[str, dict[str, Any]]:
        """What /debug/revisions shows, by the revisions' names."""
        status, _, body = self.ask("/debug/revisions")
        assert status == 200
        return {revision["name"]: revision for revision in json.loads(body)["revisions"]}

    def revision(self, name: str) -> dict[str, Any]:
        return self.revisions()[name]

    def slots(self, name: str) -> list[dict[str, Any]]:
        slots: list[dict[str, Any]] = self.revision(name)["slots"]
        return slots

    def wait_ready_pods(self, name: str, count: int = 1) -> None:
        """Until so many pods of a revision are ready."""
        eventually(
            lambda: sum(slot["state"] == "ready" for slot in self.slots(name)) == count,
            f"{count} ready pods of {name}",
        )

    def wait_idle(self, name: str | None = None) -> None:
        """Until nothing is in flight or waits, in one revision or in all: every slot has been given back."""

        def check() -> bool:
            shown = self.revisions()
            chosen = list(shown.values()) if name is None else [shown[name]]
            return all(
                one["in_flight"] == 0 and one["queued"] == 0 and all(slot["in_flight"] == 0 for slot in one["slots"])
                for one in chosen
            )

        eventually(check, f"no request in flight in {name or 'any revision'}")

    # --- its end ---

    def processes(self) -> list[int]:
        """Everything that came of it and lives."""
        return processes(self.mark)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait_end(self, timeout_s: float = PATIENCE_S) -> int:
        """The exit code, once it has ended by itself."""
        code = self.process.wait(timeout_s)
        self._reader.join(timeout_s)
        return code

    def wait_nothing_left(self, timeout_s: float = PATIENCE_S) -> None:
        eventually(lambda: not self.processes(), "processes are left behind", timeout_s)

    def close(self) -> None:
        """End it and whatever came of it; what it left behind, or logged as an error, is a failure."""
        problems = []
        try:
            if self.process.poll() is None and self.admin:
                self.wait_idle()
        except (AssertionError, OSError) as error:
            problems.append(f"requests did not end: {error}")
        try:
            if self.process.poll() is None:
                self.signal(signal.SIGTERM)
                with contextlib.suppress(ProcessLookupError):
                    self.signal(signal.SIGTERM)  # the second one does not wait for connections
                self.process.wait(PATIENCE_S)
            self.wait_nothing_left()
        except (AssertionError, subprocess.TimeoutExpired) as error:
            problems.append(f"it did not end well: {error}")
        finally:
            for pid in [self.process.pid, *self.processes()] if self.process.poll() is None else self.processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.process.wait(PATIENCE_S)
            self._reader.join(PATIENCE_S)
            if self.process.stderr is not None:
                self.process.stderr.close()
        errors = [line for line in self.log if re.match(r"\S+ \S+ (ERROR|CRITICAL) ", line)]
        if errors and not self.may_log_errors:
            problems.append("it logged errors")
        assert not problems, "; ".join(problems) + "\n" + self.text()

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line.decode("utf-8", "replace").rstrip("\n"))
