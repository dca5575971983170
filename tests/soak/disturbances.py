"""The faults of the endurance test, drawn by a seeded generator at a steady rate.

Rules
  1. A disturbance is recorded in the ledger, with the failures that it explains, before anything is done.
  2. Two threads disturb: one does what harms processes, one after the other; the other one does what lasts and should
     harm nobody (DNS, a full disk, a clock that jumps). What begins, ends: also where the run is stopped.
  3. What an action must bring about (an upgrade that succeeds, a certificate that is served) is judged at once.
"""

from __future__ import annotations

import os
import random
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Final

from tests.e2e.running import eventually
from tests.e2e.test_e2e_tls import served_certificate
from tests.e2e.test_e2e_workers import pids
from tests.soak.ledger import ANY, CUT, REFUSED, Explanation
from tests.soak.world import FIXED_PODS, REPLICAS, WORKERS, World, resume

AFTERMATH_S: Final = 2.0  # in which a client has seen the end of its connection, on a busy machine
STOP_S: Final = (0.3, 4.0)  # less than `limits.worker_stall`
LASTS_S: Final = (2.0, 8.0)
SPARE_DESCRIPTORS: Final = 3
BURST: Final = 80  # connections to a worker without descriptors
SERVED_S: Final = 15.0  # files of certificates are checked every two seconds
PODS_MIN: Final = 3  # of the revision whose pods change: one may be killed, one stopped
POD_FAILURES: Final = frozenset({CUT, "502 pod_closed", "502 connect_failed"})
NOT_ACCEPTED: Final = frozenset({CUT})
NO_CONNECTION: Final = frozenset({"503 overloaded"})  # to a pod
CLOCKS_S: Final = (-86_400.0, -60.0, 0.0, 60.0, 86_400.0)
DNS_MODES: Final = ("servfail", "silent", "refused", "garbage")


class Disturber:
    """Disturbs a world from `start` to `stop`, every `pause_s` on average."""

    def __init__(self, world: World, seed: int, pause_s: float) -> None:
        self._world = world
        self._seed = seed
        self._pause_s = pause_s
        self._stopped = threading.Event()
        self._threads: list[threading.Thread] = []
        harms: list[Callable[[random.Random], None]] = [
            *(self._reload, self._certificate, self._upgrade, self._stop_worker, self._kill_worker),
            *(self._stop_pod, self._kill_pod, self._kill_program, self._stop_program, self._no_descriptors),
            *(self._stop_replica, self._kill_replica),
        ]
        lasting: list[Callable[[random.Random], None]] = [self._names]
        if not any(one.startswith("ENOSPC") for one in world.left_out):
            lasting.append(self._full_disk)
        if not any(one.startswith("clock") for one in world.left_out):
            lasting.append(self._clock)
        self._kinds = {"harms": harms, "lasting": lasting}

    def start(self, number: int) -> None:
        """Begin; the number makes it draw other lots."""
        self._stopped.clear()
        for name, kinds in self._kinds.items():
            chance = random.Random(f"{self._seed} {number} {name}")
            self._threads.append(threading.Thread(target=self._run, args=(kinds, chance), name=name))
            self._threads[-1].start()

    def stop(self) -> None:
        """End, and undo what was done to the configuration and to the clock."""
        self._stopped.set()
        for thread in self._threads:
            thread.join()
        self._threads = []
        self._world.set_clock(0.0)
        self._world.machine.write(self._world.configuration())
        self._apply()

    def _run(self, kinds: list[Callable[[random.Random], None]], chance: random.Random) -> None:
        """All kinds in turns, each turn in another order, so that a short run has most of them."""
        while True:
            for kind in chance.sample(kinds, len(kinds)):
                if self._stopped.wait(chance.uniform(0.0, 2.0 * self._pause_s)):
                    return
                try:
                    kind(chance)
                except Exception as error:
                    self._world.ledger.violate(f"{kind.__name__.strip('_')} failed: {error!r}"[:1_000])

    def _wait(self, chance: random.Random, range_s: tuple[float, float]) -> None:
        time.sleep(chance.uniform(*range_s))

    # --- of the configuration ---

    def _apply(self) -> None:
        status, _, body = self._world.activator.command("/reload")
        if status != 200:
            self._world.ledger.violate(f"a reload failed: {status} {body!r}")

    def _reload(self, chance: random.Random) -> None:
        world = self._world
        disturbance = world.ledger.disturb("reload with other pods")
        chosen = chance.sample(world.fixed, chance.randint(PODS_MIN, FIXED_PODS))
        world.machine.write(world.configuration(chosen))
        self._apply()
        disturbance.end(0.0)

    def _certificate(self, chance: random.Random) -> None:
        world = self._world
        disturbance = world.ledger.disturb("certificate replaced")
        issued = world.files.issue("localhost")
        host, _, port = world.machine.addresses[1].rpartition(":")
        secure = type("Door", (), {"host": host, "port": int(port)})()
        eventually(lambda: served_certificate(secure) == issued, "the new certificate is served", SERVED_S)
        disturbance.end(0.0)

    def _upgrade(self, chance: random.Random) -> None:
        world = self._world
        pids(world.activator)  # a worker that was killed has been replaced
        disturbance = world.ledger.disturb("upgrade")
        before = world.machine.newest()
        done = world.machine.try_upgrade()
        if done.code != 0:
            kind = "upgrade refused: a program was being stopped"
            if "is being stopped" not in done.errors:
                world.ledger.violate(f"an upgrade failed: {done}")
            else:
                world.ledger.disturbed[kind] += 1
        elif world.machine.newest() == before:
            world.ledger.violate(f"an upgrade has not replaced {before}: {done}")
        disturbance.end(0.0)

    # --- of processes ---

    def _worker(self, chance: random.Random) -> int:
        return pids(self._world.activator)[chance.randrange(WORKERS)]

    def _stop_worker(self, chance: random.Random) -> None:
        pid = self._worker(chance)
        self._stop("SIGSTOP of a worker", pid, chance)

    def _stop(self, kind: str, pid: int, chance: random.Random) -> None:
        """Nobody fails: requests wait."""
        disturbance = self._world.ledger.disturb(kind)
        try:
            os.kill(pid, signal.SIGSTOP)
            self._wait(chance, STOP_S)
        finally:
            resume(pid)
        disturbance.end(0.0)

    def _kill_worker(self, chance: random.Random) -> None:
        """Only the clients whose connections it has see that."""
        world = self._world
        pid = self._worker(chance)
        try:
            os.kill(pid, signal.SIGSTOP)  # so that it accepts no more
            ports = world.client_ports(pid)
            explanation = Explanation("activator", ANY, frozenset({CUT}), ports=ports or frozenset({-1}))
            disturbance = world.ledger.disturb("SIGKILL of a worker", explanation)
            os.kill(pid, signal.SIGKILL)
            disturbance.end(AFTERMATH_S)
        finally:
            resume(pid)  # where it was not killed
        pids(world.activator)

    def _stop_pod(self, chance: random.Random) -> None:
        self._stop("SIGSTOP of a pod", chance.choice(self._world.fixed).process.pid, chance)

    def _kill_pod(self, chance: random.Random) -> None:
        pod = chance.choice(self._world.fixed)
        victim = frozenset({pod.process.pid})
        disturbance = self._world.ledger.disturb(
            "SIGKILL of a pod", Explanation("activator", "fixed", POD_FAILURES, pids=victim)
        )
        pod.kill()
        self._wait(chance, (0.0, 1.0))
        pod.start()
        disturbance.end(AFTERMATH_S)

    def _program(self, chance: random.Random) -> tuple[int, str]:
        programs = sorted(self._world.programs().items())
        return chance.choice(programs) if programs else (0, "")

    def _stop_program(self, chance: random.Random) -> None:
        pid, _ = self._program(chance)
        if pid:
            with suppress(ProcessLookupError):
                self._stop("SIGSTOP of a program", pid, chance)

    def _kill_program(self, chance: random.Random) -> None:
        pid, revision = self._program(chance)
        if not pid:
            return
        disturbance = self._world.ledger.disturb(
            "SIGKILL of a program",
            Explanation("activator", revision, POD_FAILURES, pids=frozenset({pid})),
        )
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        disturbance.end(AFTERMATH_S)

    def _no_descriptors(self, chance: random.Random) -> None:
        """A worker may open no more descriptors, and many clients connect.

        Only connections that it does not accept end: nothing has come over them, and no process had their requests.
        """
        world = self._world
        pid = self._worker(chance)
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        disturbance = world.ledger.disturb(
            "EMFILE",
            Explanation("activator", ANY, NOT_ACCEPTED, only_new=True, not_accepted=True),
            Explanation("activator", ANY, NO_CONNECTION),
        )
        host, _, port = world.machine.address.rpartition(":")
        with ExitStack() as stack:
            try:
                limit = max(int(name) for name in os.listdir(f"/proc/{pid}/fd")) + 1 + SPARE_DESCRIPTORS
                resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, before[1]))
                for _ in range(BURST):
                    with suppress(OSError):
                        stack.enter_context(socket.create_connection((host, int(port)), timeout=0.5))
                self._wait(chance, (0.2, 2.0))
            finally:
                with suppress(ProcessLookupError):
                    resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        disturbance.end(AFTERMATH_S)

    # --- of replicas; the first one lives for the whole run ---

    def _stop_replica(self, chance: random.Random) -> None:
        index = chance.randrange(REPLICAS)
        self._stop("SIGSTOP of a replica", self._world.replicas.running[index].process.pid, chance)
        self._world.replicas.wait_together()

    def _kill_replica(self, chance: random.Random) -> None:
        replicas = self._world.replicas
        index = chance.randrange(1, REPLICAS)
        door = f"replica {index}"
        disturbance = self._world.ledger.disturb(
            "SIGKILL of a replica", Explanation(door, ANY, frozenset({CUT, REFUSED}))
        )
        self._world.kill_replica(index)
        self._wait(chance, (0.0, 1.0))
        replicas.start(index)
        disturbance.end(AFTERMATH_S)
        replicas.wait_together()

    # --- what lasts and harms nobody ---

    def _names(self, chance: random.Random) -> None:
        world = self._world
        mode = chance.choice(DNS_MODES)
        disturbance = world.ledger.disturb(f"DNS: {mode}")
        world.names.modes["pods.test"] = mode
        try:
            self._wait(chance, LASTS_S)
        finally:
            del world.names.modes["pods.test"]
        disturbance.end(0.0)

    def _full_disk(self, chance: random.Random) -> None:
        """ENOSPC for all that the activator writes to its temporary files."""
        disturbance = self._world.ledger.disturb("ENOSPC")
        path = self._world.temporary_folder() / "everything"
        try:
            with suppress(OSError), path.open("wb", buffering=0) as file:
                while file.write(bytes(65_536)) == 65_536:
                    pass
            self._wait(chance, LASTS_S)
        finally:
            path.unlink(missing_ok=True)
        disturbance.end(0.0)

    def _clock(self, chance: random.Random) -> None:
        disturbance = self._world.ledger.disturb("clock jump")
        self._world.set_clock(chance.choice(CLOCKS_S))
        self._wait(chance, LASTS_S)
        disturbance.end(0.0)
