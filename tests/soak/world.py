"""What the endurance test runs: an activator with two workers, three replicas, their pods, and name servers.

Rules
  1. All programs and pods are `handover_program.py`, whose records are the judges of limits and of executions.
  2. The host of a revision is its name with `.test`.
  3. The temporary files of the activator are on a small file system of its own, and its wall clock can jump, where the
     machine permits that; `left_out` says what it does not permit.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import ssl
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, Self

from tests.control_plane.sources.fixed_pods.name_server import NameServer
from tests.e2e.conftest import runner
from tests.e2e.handover_clients import Background
from tests.e2e.handover_machine import ADMIN, PLAIN, PROGRAM, SECURE, Machine
from tests.e2e.running import Activator, configured, eventually, processes
from tests.e2e.test_e2e_members import Replicas, free_ports
from tests.e2e.test_e2e_tls import Files, trusting
from tests.soak.attempts import Target
from tests.soak.clients import STREAM_S, Crowd
from tests.soak.executions import Executions
from tests.soak.figures import Probe, Sample, sample
from tests.soak.ledger import Ledger

WORKERS: Final = 2
REPLICAS: Final = 3
SHARED_LIMIT: Final = 2  # of each pod that the replicas share
APP_LIMIT: Final = 30
PROGRAM_LIMIT: Final = 5
FIXED_LIMIT: Final = 8
FIXED_PODS: Final = 5
IDLE: Final = "1500ms"  # after which a program ends
TMPFS: Final = "48m"
UNUSED_S: Final = 7.0  # kept connections to pods are closed after 4 s


class Pod:
    """A pod on a port of its own, which it has in all of its lives."""

    def __init__(self, port: int, record: Path) -> None:
        self.address = f"127.0.0.1:{port}"
        self._command = [*PROGRAM, str(port), str(record)]
        self.start()

    def start(self) -> None:
        nothing = subprocess.DEVNULL
        self.process = subprocess.Popen(self._command, stdin=nothing, stdout=nothing, stderr=nothing)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class World:
    """Everything that runs beside the clients; use as a context."""

    def __init__(self, folder: Path, seed: int, stream_s: tuple[float, float] = STREAM_S) -> None:
        self._stream_s = stream_s
        self.folder = folder
        self.seed = seed
        self.left_out: list[str] = []
        self._stack = ExitStack()
        self._lock = threading.RLock()
        self._records: dict[str, Executions] = {}
        self.ledger = Ledger(self._executors)
        self._killed: list[tuple[str, Activator]] = []

    def __enter__(self) -> Self:
        try:
            self._begin()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _begin(self) -> None:
        enter = self._stack.enter_context
        self.background = enter(Background())
        self.names = enter(NameServer())
        self.names.records[("pods.test", "A")] = ["127.0.0.1"]
        self.files = Files(self.folder)
        self.trust = trusting()
        self.probe = Probe(self.folder)
        ports = iter(free_ports(FIXED_PODS + 7))
        self.fixed = [self._pod(next(ports), "fixed", FIXED_LIMIT) for _ in range(FIXED_PODS)]
        self.named = self._pod(next(ports), "named")
        self.spool = self._pod(next(ports), "spool", 1)
        self.shared = [self._pod(next(ports), "shared", SHARED_LIMIT) for _ in range(3)]
        self.steady = [self._pod(next(ports), "steady") for _ in range(2)]
        run = enter(contextmanager(runner)(self.folder))
        self.temporary = self.folder / "tmp"
        self.temporary.mkdir()
        self._clock = self.folder / "clock"
        variables = {**self.probe.variables, "TMPDIR": str(self.temporary), **self._clock_variables()}
        prefix = self._file_system()
        self.machine = Machine(self.folder, self.configuration(), functools.partial(run, prefix=prefix, **variables))
        self.activator.may_log_errors = True
        self.replicas = Replicas(
            functools.partial(run, **self.probe.variables), self.folder, REPLICAS, self._replica_revisions()
        )
        self.replicas.start_all()

    def _clock_variables(self) -> dict[str, str]:
        """Build the wall clock that can jump; empty if that is not possible."""
        self.set_clock(0.0)
        compiler = shutil.which("cc") or shutil.which("gcc")
        library = self.folder / "wall_clock.so"
        source = Path(__file__).with_name("wall_clock.c")
        if sys.platform == "linux" and compiler is not None:
            command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                return {"LD_PRELOAD": str(library), "SOAK_CLOCK": str(self._clock)}
        self.left_out.append("clock: a C compiler is needed for a wall clock that can jump")
        return {}

    def _file_system(self) -> list[str]:
        """The prefix of a command whose TMPDIR is a small file system; empty if none can be mounted."""
        script = f'mount -t tmpfs -o size={TMPFS} tmpfs "$0" && exec "$@"'
        prefix = ["unshare", "--mount", "sh", "-c", script, str(self.temporary)]
        if subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode == 0:
            return prefix
        self.left_out.append("ENOSPC: a small file system for TMPDIR cannot be mounted")
        return []

    def _pod(self, port: int, revision: str, limit: int = 0) -> Pod:
        pod = Pod(port, self.record(revision, limit))
        self._stack.callback(pod.kill)
        return pod

    def record(self, revision: str, limit: int = 0) -> Path:
        """The path of the record of a revision, which the judges read."""
        if revision not in self._records:
            self._records[revision] = Executions(self.folder / f"record-{revision}", limit)
        return self._records[revision].path

    def _program(self, name: str, limit: int, **process: Any) -> dict[str, Any]:
        return {
            "name": name,
            "hosts": [f"{name}.test"],
            "container_concurrency": limit,
            "process": {"command": [*PROGRAM, "{port}", str(self.record(name, limit))], **process},
            "queue": {"timeout": "60s"},
        }

    def _fixed(self, name: str, pods: list[Pod], **more: Any) -> dict[str, Any]:
        return {"name": name, "hosts": [f"{name}.test"], "pods": [pod.address for pod in pods], **more}

    def configuration(self, fixed: list[Pod] | None = None) -> dict[str, Any]:
        """The configuration of the activator. `fixed`: the pods of the revision that changes."""
        brief = {"max_scale": 1, "idle": IDLE, "stop": {"grace": "1s"}}
        port = self.named.address.rpartition(":")[2]
        revisions = [
            self._program("app", APP_LIMIT, min_scale=1, max_scale=1, idle="120s"),
            *(self._program(name, PROGRAM_LIMIT, **brief) for name in ("cold0", "cold1", "swap0", "swap1")),
            self._fixed("fixed", self.fixed if fixed is None else fixed, container_concurrency=FIXED_LIMIT),
            {"name": "named", "hosts": ["named.test"], "pods": [f"pods.test:{port}"]},
            self._fixed("spool", [self.spool], container_concurrency=1, buffer={"response": "64KiB", "file": "32MiB"}),
        ]
        groups = [
            {"name": "machine", "exclusive": True, "members": ["swap0", "swap1"], "overtaken_at_most": "500ms"},
        ]
        return configured(
            revisions,
            listen=[PLAIN, self.files.listener(SECURE)],
            admin=ADMIN,
            workers=WORKERS,
            groups=groups,
            dns={"servers": [self.names.address], "timeout": "1s"},
        )

    def _replica_revisions(self) -> list[dict[str, Any]]:
        return [
            self._fixed("shared", self.shared, container_concurrency=SHARED_LIMIT, queue={"timeout": "60s"}),
            self._fixed("steady", self.steady),
        ]

    # --- clients ---

    @property
    def activator(self) -> Activator:
        return self.machine.activator

    def target(self, revision: str, secure: bool = False, replica: int = -1) -> Target:
        record = self._records[revision].path
        if replica >= 0:
            return Target(f"replica {replica}", self.replicas.served[replica], revision, record)
        tls: ssl.SSLContext | None = self.trust if secure else None
        return Target("activator", self.machine.addresses[int(secure)], revision, record, tls)

    def crowd(self, number: int) -> Crowd:
        """All clients at work; the number makes them draw other lots."""
        crowd = Crowd(self.ledger, self.background, self.seed * 1_000 + number, self._stream_s)
        try:
            self._start_clients(crowd)
        except BaseException:
            crowd.stop()
            raise
        return crowd

    def _start_clients(self, crowd: Crowd) -> None:
        for revision in ("app", "fixed", "named"):
            crowd.shorts(self.target(revision), 2, 0.15)
            crowd.shorts(self.target(revision), 1, 0.2, fresh=True)
        crowd.shorts(self.target("app", secure=True), 2, 0.2)
        crowd.shorts(self.target("fixed", secure=True), 1, 0.5, fresh=True)
        for revision in ("cold0", "cold1"):
            crowd.shorts(self.target(revision), 1, 1.6)
        for revision in ("swap0", "swap1"):
            crowd.shorts(self.target(revision), 2, 0.4)
        crowd.http2(self.target("app"), 1, 0.1)
        crowd.http2(self.target("fixed"), 1, 0.1)
        for revision in ("app", "fixed"):
            for kind in ("events", "websocket", "upload", "chunked upload", "download", "leaves"):
                crowd.streams(self.target(revision), kind)
        crowd.streams(self.target("spool"), "slow download", 2)
        for replica in range(REPLICAS):
            crowd.shorts(self.target("shared", replica=replica), 4, 0.05)
            crowd.shorts(self.target("steady", replica=replica), 1, 0.2, fresh=True)
            for kind in ("events", "websocket", "upload", "download", "leaves"):
                crowd.streams(self.target("steady", replica=replica), kind)
            crowd.http2(self.target("steady", replica=replica), 1, 0.2)

    # --- judges ---

    def _executors(self, name: str) -> frozenset[int]:
        self.judge_executions()
        with self._lock:
            return frozenset().union(*(one.executors(name) for one in self._records.values()))

    def judge_executions(self) -> None:
        """Read the records; move what they say to the ledger, whose lock is never taken while this one is held."""
        found: list[str] = []
        with self._lock:
            for one in self._records.values():
                one.poll()
                found += one.violations
                one.violations.clear()
        for words in found:
            self.ledger.violate(words)

    def executions(self) -> list[Executions]:
        return list(self._records.values())

    def judge_logs(self) -> None:
        """A traceback is a fault, whatever the disturbances were, in the logs of killed replicas too."""
        for name, activator in self.logs():
            log = list(activator.log)
            for place, line in enumerate(log):
                if "Traceback" in line:
                    context = " | ".join(log[max(place - 1, 0) : place + 12])
                    self.ledger.violate(f"a traceback of the {name}: {context}")

    def logs(self) -> list[tuple[str, Activator]]:
        """All activators by their names, those included that were killed."""
        running = [(f"replica {index}", one) for index, one in sorted(self.replicas.running.items())]
        return [("activator", self.activator), *running, *self._killed]

    # --- faults ---

    def kill_replica(self, index: int) -> None:
        """SIGKILL; its log is judged with the others at the end."""
        self._killed.append((f"killed replica {index}", self.replicas.running[index]))
        self.replicas.kill(index)

    def set_clock(self, offset_s: float) -> None:
        """Make the wall clock of the activator differ from the machine's by so much."""
        with open(self._clock, "r+b" if self._clock.exists() else "wb") as file:
            file.write(struct.pack("d", offset_s))

    def temporary_folder(self) -> Path:
        """TMPDIR of the activator, as it is for a process outside of its mounts."""
        return Path(f"/proc/{self.machine.newest().main}/root{self.temporary}")

    def programs(self) -> dict[int, str]:
        """The revisions of the living programs by their PIDs."""
        found = {}
        for pid in self.activator.processes():
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
                if PROGRAM[-1] in words:
                    record = words[words.index(PROGRAM[-1]) + 2]
                    found[pid] = record.rpartition("record-")[2]
        return found

    def client_ports(self, pid: int) -> frozenset[int]:
        """The ports of the clients whose connections this worker has."""
        own = {int(address.rpartition(":")[2]) for address in self.machine.addresses}
        inodes = {}
        for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
            words = line.split()
            if int(words[1].rpartition(":")[2], 16) in own:
                inodes[f"socket:[{words[9]}]"] = int(words[2].rpartition(":")[2], 16)
        return frozenset(inodes[link] for link in _links(pid) if link in inodes)

    # --- figures ---

    def samples(self) -> dict[str, Sample]:
        """Sample each door, without load: of the activator once its programs have ended, `app` excepted."""
        for activator in (self.activator, *self.replicas.running.values()):
            activator.wait_idle()
        self.machine.settled()
        eventually(lambda: list(self.programs().values()) == ["app"], "idle programs have ended")
        self._unused()
        found = {"activator": self._sample(self.activator, set(self.programs()))}
        found["activator"].nothing["temporary files"] = len(list(self.temporary_folder().iterdir()))
        for index, replica in sorted(self.replicas.running.items()):
            found[f"replica {index}"] = self._sample(replica, set())
        return found

    def _unused(self) -> None:
        """Wait until connections to pods are closed."""

        def closed() -> bool:
            shown = [*self.activator.revisions().values()]
            for replica in self.replicas.running.values():
                shown += replica.revisions().values()
            return all(slot["connections"]["open"] == 0 for one in shown for slot in one["slots"])

        eventually(closed, "idle connections to pods are closed", 3 * UNUSED_S)

    def _sample(self, activator: Activator, programs: set[int]) -> Sample:
        own = [pid for pid in processes(activator.mark) if pid not in programs]
        return sample(activator, own, self.probe)


def _links(pid: int) -> Iterator[str]:
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            yield os.readlink(f"/proc/{pid}/fd/{name}")


def resume(pid: int) -> None:
    """SIGCONT for a process that may have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)
