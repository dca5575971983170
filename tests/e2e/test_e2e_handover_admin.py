"""An upgrade whose file has another admin port, or other permissions of Unix sockets."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from activator.runtime.sockets import split_address
from tests.e2e.conftest import RunActivator
from tests.e2e.handover_clients import Background
from tests.e2e.handover_machine import PAUSE_MAX_S, PLAIN, Start, started_machines
from tests.e2e.running import PATIENCE_S, cli, eventually


@pytest.fixture
def start(run_activator: RunActivator, tmp_path: Path) -> Iterator[Start]:
    yield from started_machines(run_activator, tmp_path)


@pytest.fixture
def background() -> Iterator[Background]:
    with Background() as made:
        yield made


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_admin_port_moves(start: Start, background: Background) -> None:
    """The response to the command comes by the old port, which is closed although the old process has a request."""
    machine = start()
    former, program = machine.activator.admin, machine.pid()
    exchanges = machine.exchanges(background)
    exchanges.events(machine.address)
    exchanges.wait_progress()
    machine.write({**machine.configuration, "admin": "127.0.0.4:0"})
    asked = http.client.HTTPConnection(former, timeout=PATIENCE_S)
    asked.request("POST", "/upgrade", headers={"Activator-Admin": "1"})
    response = asked.getresponse()
    outcome = json.loads(response.read())
    assert response.status == 200 and outcome["problems"] == [], outcome
    current = machine.activator.wait_log(r" admin port on (\S+)", 2)
    assert current.startswith("127.0.0.4:")
    machine.admin, machine.activator.admin = f"http://{current}", current
    assert machine.activator.ask("/readyz")[0] == 200
    assert machine.activator.revision("app")["processes"]["processes"] == 1
    eventually(lambda: refuses(former), "the former port is closed")
    asked.close()
    exchanges.finish(PAUSE_MAX_S)
    machine.upgrade()
    assert machine.activator.wait_log(r" admin port on (\S+)", 3) == current, "the port stays with the next one"
    assert machine.pid() == program


def refuses(address: str) -> bool:
    """True if no program listens at the address."""
    try:
        socket.create_connection(split_address(address), PATIENCE_S).close()
    except ConnectionRefusedError:
        return True
    return False


def test_files_and_permissions_of_unix_sockets_change(start: Start, tmp_path: Path) -> None:
    """A path may be written in several ways."""
    front, former, admin = tmp_path / "front.sock", tmp_path / "former.sock", tmp_path / "admin.sock"
    machine = start(listen=[PLAIN, {"address": f"unix:{front}", "mode": "0600"}], admin=f"unix:{former}")
    program = machine.pid()
    assert (mode_of(front), mode_of(former)) == (0o600, 0o600)
    listen = [PLAIN, {"address": f"unix:{front}", "mode": "0666"}]
    machine.write({**machine.configuration, "listen": listen, "admin": f"unix://{admin}"})
    machine.upgrade()
    machine.admin = f"unix:{admin}"
    eventually(lambda: not former.exists(), "the former file is removed")
    assert (mode_of(front), mode_of(admin)) == (0o666, 0o600)
    inode = os.stat(admin).st_ino
    changed = {"address": f"unix://{admin}", "mode": "0660"}
    machine.write({**machine.configuration, "listen": [PLAIN, f"unix:{front}"], "admin": changed})
    machine.upgrade()
    assert os.stat(admin).st_ino == inode, "the same socket"
    assert (mode_of(front), mode_of(admin)) == (0o660, 0o660), "0660 is the default"
    assert cli("status", "--admin", machine.admin).returncode == 0
    assert machine.get(address=f"unix:{front}").status == 200
    assert machine.pid() == program
    machine.activator.signal(signal.SIGTERM)
    assert machine.activator.wait_end() == 0
    assert not front.exists() and not admin.exists()
