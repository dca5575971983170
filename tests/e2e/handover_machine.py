"""One machine whose activator is upgraded: how it is started, upgraded and judged.

Rules
  1. Generations are told apart by the kernel: processes that one exec has made, and their forks, have the same start of
     the stack (`startstack` in /proc/PID/stat), which is random for each exec. So nothing here depends on how the
     activator reports its processes, nor on which of them finish what a generation has.
  2. The first process stays when its generation has drained; it then has no listener and no connection of a client.
  3. Ports are 0, and the hosts differ, so that each listener has an address of its own in the file; one test uses the
     same address for all.
  4. What the program has written down is the judge of limits, order and repeated requests.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from activator.runtime.process_stat import stat_fields
from tests.e2e.conftest import RunActivator
from tests.e2e.handover_clients import Background, Exchanges, head, next_id
from tests.e2e.http_client import Answer, ask
from tests.e2e.running import CLI, PATIENCE_S, cli, configured, environment, eventually, is_dead

PROGRAM = [sys.executable, "-I", "-S", str(Path(__file__).with_name("handover_program.py"))]
PLAIN, ADMIN, SECURE = "127.0.0.1:0", "127.0.0.2:0", "127.0.0.3:0"  # listeners with addresses that differ
UPGRADE_S = 60.0  # the longest time that one upgrade may take on a busy machine
# The longest pause of a stream, and the longest wait of a short request, during an upgrade. It is for a machine that is
# so busy that a process starts in 4 s instead of 0.3; `python -m bench upgrades` measures it.
PAUSE_MAX_S = 5.0


def _lines_of(path: str) -> list[str]:
    """The lines of a table of /proc without its head; none if its process has ended."""
    try:
        return Path(path).read_text().splitlines()[1:]
    except (FileNotFoundError, ProcessLookupError):
        return []


class Record:
    """What all processes of a program have written down."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def lines(self) -> list[list[str]]:
        text = self._path.read_text() if self._path.exists() else ""
        return [line.split() for line in text.splitlines()]

    def begun(self) -> list[str]:
        """The IDs of the requests in the order in which they came to the program."""
        return [words[1] for words in self.lines() if words[0] == "begin"]

    def count(self) -> int:
        """The number of requests that are at the program, for one that never ended by itself."""
        words = Counter(words[0] for words in self.lines())
        return words["begin"] - words["end"] - words["cut"]

    def repeated(self) -> list[str]:
        """The IDs of the requests that came to a program more than once."""
        return [name for name, count in Counter(self.begun()).items() if count > 1]

    def boots(self) -> list[int]:
        """The processes that were started, in their order."""
        return [int(words[1]) for words in self.lines() if words[0] == "boot"]

    def most(self) -> int:
        """The highest number of requests that one process had at one time."""
        return max((int(words[3]) for words in self.lines() if words[0] == "begin"), default=0)

    def running(self) -> list[int]:
        """The started processes that live."""
        return [pid for pid in self.boots() if not is_dead(pid)]


class Upgrade:
    """The result of one `activator upgrade`."""

    def __init__(self, code: int, output: str, errors: str) -> None:
        self.code = code
        self.output = output
        self.errors = errors

    def __repr__(self) -> str:
        return f"Upgrade({self.code}, {self.output!r}, {self.errors!r})"


class Generation(NamedTuple):
    """The processes that one start of the program has made. `main` is the one that was started."""

    main: int
    stack: int


class Machine:
    """An activator with its configuration file and the record of its program."""

    def __init__(self, folder: Path, configuration: dict[str, Any], run: RunActivator, **variables: str) -> None:
        self.folder = folder
        self.record = Record(folder / "record")
        self.configuration = configuration
        self._mains: dict[int, int] = {}  # of each generation by its stack, in the order in which they were seen
        self.activator = run(configuration, **variables)
        self.file = Path(self._config_of(self.activator.process.pid))
        admin = self.activator.admin
        self.admin = admin if admin.startswith("unix:") else f"http://{admin}"
        if admin.startswith("unix:"):
            self.activator.admin = ""  # that class asks over TCP only
        # Each address is a word: what may follow it (a remark on TLS, for example) is none.
        found = self.activator.logged(r" serving on (.*)")[0]
        self.addresses: list[str] = re.findall(r"unix:[^\s,]+|[0-9.]+:[0-9]+|\[[0-9a-f:]+\]:[0-9]+", found)

    @staticmethod
    def _config_of(pid: int) -> str:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        return str(words[words.index("-c") + 1])

    @property
    def address(self) -> str:
        return self.addresses[0]

    @property
    def first(self) -> int:
        """The process that the test has started."""
        return self.activator.process.pid

    # --- upgrades ---

    def write(self, configuration: dict[str, Any] | str) -> None:
        """Replace the configuration file."""
        self.file.write_text(configuration if isinstance(configuration, str) else json.dumps(configuration))

    def try_upgrade(self, timeout_s: float = UPGRADE_S) -> Upgrade:
        done = cli("upgrade", "--admin", self.admin, timeout_s=timeout_s)
        return Upgrade(done.returncode, done.stdout, done.stderr)

    def begin_upgrade(self) -> subprocess.Popen[str]:
        """Run `activator upgrade` beside the test."""
        return subprocess.Popen(
            [*CLI, "upgrade", "--admin", self.admin],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment(),
        )

    def upgrade(self) -> Generation:
        """Upgrade, which must succeed; the new generation."""
        before, old = self.generations(), self.newest()
        done = self.try_upgrade()
        assert done.code == 0, done
        assert len(done.output.splitlines()) == 1, done
        new = self.newest()
        assert new not in before, (done, before, self.generations())
        named = {int(word) for word in re.findall(r"\b[0-9]+\b", done.output)}
        assert {old.main, new.main} <= named, ("the line names both processes", done, old, new)
        return new

    # --- processes ---

    def generations(self) -> dict[Generation, list[int]]:
        """The living processes of the activator's program by their generation, the oldest first."""
        groups: dict[int, list[tuple[int, int]]] = {}
        for pid in self.activator.processes():
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                stat = stat_fields(pid)
            except OSError:
                continue
            if b"activator.cli" in words and b"run" in words:
                start, stack = int(stat[19]), int(stat[25])  # fields 22 and 28 of proc_pid_stat(5)
                if not stack:
                    continue  # it is ending, and has no memory any more
                groups.setdefault(stack, []).append((start, pid))
        for stack, group in groups.items():
            self._mains.setdefault(stack, min(group)[1])
        found = sorted((sorted(group), stack) for stack, group in groups.items())
        return {Generation(self._mains[stack], stack): [pid for _, pid in group] for group, stack in found}

    def newest(self) -> Generation:
        """The generation that was started last."""
        generations = self.generations()
        assert generations, "no process is left:\n" + self.activator.text()
        return max(generations, key=lambda one: list(self._mains).index(one.stack))

    def has_drained(self, generation: Generation) -> bool:
        """True if the generation has ended; the first process may stay, without listeners and connections."""
        left = self.generations().get(generation, [])
        if left == [self.first]:
            return not self._sockets_of(self.first)
        return not left

    def kill(self, generation: Generation, only_main: bool = False) -> None:
        """SIGKILL for the main process, or for all processes of a generation; it may have ended."""
        for pid in self.generations().get(generation, []):
            if pid == generation.main or not only_main:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _sockets_of(self, pid: int) -> list[str]:
        """The listeners, and the connections of clients, that a process has open."""
        ports = {f"{int(address.rpartition(':')[2]):04X}" for address in self.addresses if "unix" not in address}
        paths = {address.removeprefix("unix:") for address in self.addresses}
        inodes = set()
        for table in ("tcp", "tcp6"):
            for line in _lines_of(f"/proc/{pid}/net/{table}"):
                words = line.split()
                if words[3] in {"01", "0A"} and words[1].rpartition(":")[2] in ports:
                    inodes.add(f"socket:[{words[9]}]")
        for line in _lines_of(f"/proc/{pid}/net/unix"):
            words = line.split()
            if words[-1] in paths:
                inodes.add(f"socket:[{words[6]}]")
        held = []
        with suppress(FileNotFoundError):  # it has ended
            for name in os.listdir(f"/proc/{pid}/fd"):
                with suppress(OSError):
                    held.append(os.readlink(f"/proc/{pid}/fd/{name}"))
        return [link for link in held if link in inodes]

    def wait_drained(self, generation: Generation, timeout_s: float = PATIENCE_S) -> None:
        eventually(lambda: self.has_drained(generation), f"{generation} has drained", timeout_s)

    def settled(self) -> int:
        """The number of processes beside programs, once only the newest generation and the first process are left."""

        def check() -> bool:
            return all(one == self.newest() or self.has_drained(one) for one in self.generations())

        eventually(check, "older generations have drained")
        programs = set(self.record.running())
        return len([pid for pid in self.activator.processes() if pid not in programs])

    # --- requests ---

    def get(self, target: str = "/plain/0", address: str = "") -> Answer:
        """One request on a connection of its own."""
        return ask(address or self.address, head(target, next_id("single")))

    def pid(self) -> int:
        """The process of the program that answers."""
        answer = self.get()
        assert answer.status == 200, answer
        found: int = json.loads(answer.body)["pid"]
        return found

    def serves(self) -> bool:
        """True if a new connection is served."""
        host, _, port = self.address.rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=PATIENCE_S)  # closes its socket if refused
        try:
            connection.request("GET", "/plain/0", headers={"X-Id": next_id("single")})
            answer = connection.getresponse()
            answer.read()  # closes the socket
            return answer.status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def queued(self) -> int:
        found: int = self.activator.revision("app")["queued"]
        return found

    def exchanges(self, background: Background) -> Exchanges:
        """An empty group of exchanges, which end together."""
        return Exchanges(background, self.folder / "record")

    # --- its end ---

    def give_up_a_wrong_admin_port(self) -> None:
        """Let the fixture end the activator where a failed upgrade left something else at its admin address."""
        with suppress(OSError):
            if self.activator.admin and self.activator.ask("/healthz")[2].startswith(b"{"):  # the program answers
                self.activator.admin = ""

    def end_all(self) -> None:
        """SIGTERM for what is left of the activator, as after the loss of its first process; all must end."""
        os.kill(self.newest().main, signal.SIGTERM)
        self.activator.wait_nothing_left()


Start = Callable[..., Machine]


def running(
    record: Path, name: str = "app", host: str = "*", concurrency: int = 100, gate: str = "-", start_s: float = 0.0
) -> dict[str, Any]:
    """A revision of the program, which writes `record`."""
    words = ["{port}", str(record), gate, str(start_s)]
    return {
        "name": name,
        "hosts": [host],
        "container_concurrency": concurrency,
        "process": {"command": [*PROGRAM, *words], "max_scale": 1, "idle": "120s"},
        "queue": {"timeout": "120s"},
    }


def settings(folder: Path, *others: dict[str, Any], concurrency: int = 100, gate: str = "-", **more: Any) -> Any:
    """A configuration with a revision `app`, of which `process` and `queue` are more keys, after `others`."""
    revision = running(folder / "record", concurrency=concurrency, gate=gate)
    for key in ("process", "queue"):
        revision[key] |= more.pop(key, {})
    return configured([*others, revision], **{"admin": ADMIN, **more})


def started_machines(run_activator: RunActivator, tmp_path: Path) -> Iterator[Start]:
    """Yield `start(...)`, which starts a machine with the words of `settings`; print its log for a test that fails."""
    machines: list[Machine] = []

    def make(*others: dict[str, Any], variables: dict[str, str] | None = None, **keys: Any) -> Machine:
        machine = Machine(tmp_path, settings(tmp_path, *others, **keys), run_activator, **(variables or {}))
        machines.append(machine)
        return machine

    yield make
    for machine in machines:
        machine.give_up_a_wrong_admin_port()
    for machine in machines:  # pytest shows this output only where a test has failed
        print(f"--- log of the activator (first process {machine.first}) ---", machine.activator.text(), sep="\n")
        lines = machine.record.lines()
        print(f"--- generations {machine.generations()}, record: {len(lines)} lines, the last 20 ---")
        print("\n".join(" ".join(words) for words in lines[-20:]))
