"""What goes wrong around an upgrade: new processes that do not come up, refused files, and killed processes."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

from tests.e2e.handover_clients import Background, ShortRequests
from tests.e2e.handover_machine import PLAIN, SECURE, UPGRADE_S, Machine, Start
from tests.e2e.running import ROOT, eventually, is_dead

KILL_WITHIN_S = 1.5  # the time after the start of an upgrade, or of its new process, in which a process is killed
LIMIT = 2  # of requests at the program


class CrashingStarts:
    """Code that every Python process of an activator runs first: `sitecustomize` on its path (see Python's `site`).

    Programs that run with `-I` do not have that path.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "site"
        self._folder.mkdir()
        self.variables = {
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(self._folder)]),
            "PYTHONDONTWRITEBYTECODE": "1",  # the code may change twice within a second
        }

    def set(self, code: str) -> None:
        path = self._folder / "sitecustomize.py"
        if code:
            path.write_text(code)
        else:
            path.unlink()


def broken_file(machine: Machine, stack: ExitStack) -> Any:
    return "listen: [\n"


def unknown_key(machine: Machine, stack: ExitStack) -> Any:
    return {**machine.configuration, "listens": PLAIN}


def listener_in_use(machine: Machine, stack: ExitStack) -> Any:
    taken = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    return {**machine.configuration, "listen": [PLAIN, f"127.0.0.1:{taken.getsockname()[1]}"]}


def missing_certificate(machine: Machine, stack: ExitStack) -> Any:
    missing = str(machine.folder / "missing.crt")
    secure = {"address": SECURE, "certificate": missing, "key": missing}
    return {**machine.configuration, "listen": [PLAIN, secure]}


Mistake = Callable[[Machine, ExitStack], Any]
MISTAKES: list[Mistake] = [broken_file, unknown_key, listener_in_use, missing_certificate]
CRASHES = {
    "exits": "import os; os._exit(7)",
    "is killed": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "exits with 0": "import os; os._exit(0)",
}


def check_refused(machine: Machine) -> None:
    """The upgrade fails with a reason, and nothing has changed."""
    before, program = machine.generations(), machine.pid()
    done = machine.try_upgrade()
    assert done.code == 1, done
    assert done.errors.strip() and "Traceback" not in done.errors, done
    eventually(lambda: machine.generations() == before, "the same processes as before, and no other")
    assert machine.pid() == program


def check_kill(start: Start, background: Background, chance: Random, victim: str, workers: int) -> None:
    """Kill the "new" or the "old" process at a random moment of an upgrade: nothing hangs, and nothing is left."""
    machine = start(concurrency=LIMIT, workers=workers)
    machine.activator.may_log_errors = True
    assert machine.get().status == 200
    if chance.random() < 0.5:
        machine.upgrade()  # the first process is only a parent from here on
        machine.settled()
    old = machine.newest()
    exchanges = machine.exchanges(background)
    exchanges.events(machine.address)
    exchanges.wait_progress()
    load = ShortRequests(machine.address, keeping=3, fresh=2, pause_s=0.005)
    loading = background.start(load.run())
    command = machine.begin_upgrade()
    killed = old
    if victim == "new":
        eventually(lambda: machine.newest() != old or command.poll() is not None, "there is a new process")
        killed = machine.newest()
        assert killed != old, command.communicate()
    delay_s, only_main = chance.uniform(0.0, KILL_WITHIN_S), chance.random() < 0.5
    print(f"killing the {victim} {killed} after {delay_s:.3f} s; only its main process: {only_main}")
    time.sleep(delay_s)
    machine.kill(killed, only_main)
    output, _ = command.communicate(timeout=UPGRADE_S)
    print(f"`activator upgrade` ended with {command.returncode}: {output}")
    exchanges.let_end()
    cut = exchanges.cut(20.0)
    if victim == "new":
        assert cut == [], "the old process had it all the time"
    eventually(lambda: machine.serves() or not machine.activator.processes(), "it serves, or all has ended")
    load.stop()
    loading.result(30.0)
    assert [one for one in load.failed if "TimeoutError" in one] == [], "no request hangs"
    assert machine.record.repeated() == []
    assert machine.record.most() <= LIMIT
    # Workers accept for a moment after their main process was killed.
    eventually(lambda: machine.serves() or not machine.activator.processes(), "it serves, or all has ended")
    if machine.activator.processes():
        check_service(machine)
    machine.activator.wait_nothing_left()
    assert machine.record.running() == []


def check_service(machine: Machine) -> None:
    """What is left serves as before, and ends."""
    program = machine.pid()
    assert machine.record.running() == [program], "one program runs"
    machine.settled()
    machine.activator.wait_idle("app")
    if is_dead(machine.first):
        machine.end_all()
        return
    machine.activator.signal(signal.SIGTERM)
    machine.activator.wait_end()
