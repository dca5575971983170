"""What goes wrong around an upgrade: new processes that do not come up, refused files, and killed processes."""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from tests.e2e.handover_clients import Background, ShortRequests
from tests.e2e.handover_machine import ADMIN, PLAIN, SECURE, UPGRADE_S, Machine, Start
from tests.e2e.running import ROOT, cli, eventually, is_dead

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


class Mistake(NamedTuple):
    """A file that an upgrade refuses. `reasons`: the lines that say why; without them, what `activator check` says."""

    file: dict[str, Any] | str | None  # None: there is none
    reasons: tuple[str, ...] = ()


def broken_file(machine: Machine, stack: ExitStack) -> Mistake:
    return Mistake("listen: [\n")


def no_file(machine: Machine, stack: ExitStack) -> Mistake:
    advice = "name one with -c, start a program with -- CMD, or write one with `activator init`"
    return Mistake(None, (f"{machine.file}: there is no such file; {advice}",))


def unknown_keys(machine: Machine, stack: ExitStack) -> Mistake:
    return Mistake({**machine.configuration, "listens": PLAIN, "admins": ADMIN})


def listener_in_use(machine: Machine, stack: ExitStack) -> Mistake:
    taken = in_use(stack)
    hint = "the port is in use; stop the other program or choose another address"
    return Mistake({**machine.configuration, "listen": [PLAIN, taken]}, (f"cannot listen on {taken}: {hint}",))


def admin_port_in_use(machine: Machine, stack: ExitStack) -> Mistake:
    taken = in_use(stack)
    hint = "the port is in use; stop the other program or choose another address"
    where = "(`admin:` in the file, --admin, or ACTIVATOR_ADMIN)"
    return Mistake(
        {**machine.configuration, "admin": taken}, (f"admin port: cannot listen on {taken}: {hint} {where}",)
    )


def in_use(stack: ExitStack) -> str:
    """An address at which another program listens."""
    taken = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    return f"127.0.0.1:{taken.getsockname()[1]}"


def missing_certificate(machine: Machine, stack: ExitStack) -> Mistake:
    missing = str(machine.folder / "missing.crt")
    secure = {"address": SECURE, "certificate": missing, "key": missing}
    return Mistake({**machine.configuration, "listen": [PLAIN, secure]})


def members(machine: Machine, stack: ExitStack) -> Mistake:
    key = machine.folder / "members.key"
    key.write_text("0123456789abcdef" * 4)
    key.chmod(0o600)
    group = {"listen": "127.0.0.1:21011", "peers": ["127.0.0.1:21011", "127.0.0.1:21012"], "key_file": str(key)}
    reason = "`members` is set: restart the replicas one after the other, which loses no request"
    return Mistake({**machine.configuration, "members": group}, (reason,))


def push(machine: Machine, stack: ExitStack) -> Mistake:
    return Mistake(
        {**machine.configuration, "push": {"listen": "127.0.0.4:0"}}, ("`push` is set: restart the activator",)
    )


def cluster(machine: Machine, stack: ExitStack) -> Mistake:
    reason = "in a cluster, replicas are replaced by its own means"
    return Mistake({**machine.configuration, "kubernetes": {}}, (reason,))


MISTAKES: list[Callable[[Machine, ExitStack], Mistake]] = [
    *(broken_file, no_file, unknown_keys, listener_in_use, admin_port_in_use, missing_certificate),
    *(members, push, cluster),
]
CRASHES = {  # the code and what it ends with
    "import os; os._exit(7)": 7,
    "import os, signal; os.kill(os.getpid(), signal.SIGKILL)": -signal.SIGKILL,
    "import os; os._exit(0)": 0,
}


def check_mistake(machine: Machine, mistake: Mistake) -> None:
    """The upgrade is refused with the reasons of a mistake in the file."""
    reasons = mistake.reasons
    if mistake.file is None:
        machine.file.unlink()
    else:
        machine.write(mistake.file)
    if not reasons:
        checked = cli("check", str(machine.file)).stderr.splitlines()
        reasons = tuple(line.removeprefix("activator: ") for line in checked)
    check_refused(machine, *reasons)


def check_refused(machine: Machine, *reasons: str) -> None:
    """The upgrade fails with these reasons, which the command prints and the old process logs; nothing has changed."""
    before, program = machine.generations(), machine.pid()
    done = machine.try_upgrade()
    assert done.code == 1, done
    assert reasons and done.errors.splitlines() == [f"activator: {reason}" for reason in reasons], done
    for reason in reasons:
        machine.activator.wait_log(re.escape(f"ERROR activator: upgrade: {reason}; this process continues"))
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
