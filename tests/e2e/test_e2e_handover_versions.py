"""`activator upgrade` to another version of the program, which replaces the files of the one that runs."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

from tests.e2e.conftest import RunActivator
from tests.e2e.handover_clients import next_id
from tests.e2e.handover_machine import Machine, settings
from tests.e2e.http_client import Client
from tests.e2e.running import cli, eventually
from tests.sources import ROOT

OTHER = "9.9.9"


class Installed:
    """The files of the program that an activator runs from, in plain Python."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "installed"
        self._folder = folder
        self.install("first")

    def install(self, name: str, **edits: tuple[str, str]) -> None:
        """Replace the program by a copy with another version; `edits`: file, without ".py" → old and new text."""
        made = self._folder / name
        for package in ("activator", "lb"):
            shutil.copytree(ROOT / package, made / package, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
        if name != "first":
            _edit(made / "activator" / "__init__.py", '__version__ = "', f'__version__ = "{OTHER}"  # "')
        for file, (old, new) in edits.items():
            _edit(made / f"{file.replace('__', '/')}.py", old, new)
        link = self._folder / "next"
        link.symlink_to(made)
        link.rename(self.path)


def _edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1, (path, old)
    path.write_text(text.replace(old, new))


@pytest.fixture
def installed(tmp_path: Path) -> Installed:
    return Installed(tmp_path)


@pytest.fixture
def machine(installed: Installed, run_activator: RunActivator, tmp_path: Path) -> Machine:
    return Machine(tmp_path, settings(tmp_path), run_activator, PYTHONPATH=str(installed.path))


def _end(machine: Machine) -> None:
    machine.activator.signal(signal.SIGTERM)
    assert machine.activator.wait_end() == 0
    machine.activator.wait_nothing_left()


def test_a_version_with_another_field_in_a_message(installed: Installed, machine: Machine) -> None:
    """Reports of the old process lack the field, and commands to it have one that it does not know."""
    program = machine.pid()
    with Client(machine.address) as held:
        held.send(b"GET /plain/1 HTTP/1.1\r\nHost: a\r\nX-Id: " + next_id("held").encode() + b"\r\n\r\n")
        installed.install(
            "second",
            activator__messages__reports=("    oldest_s: float = 0.0", "    oldest_s: float = 0.0\n    newer: int = 7"),
            activator__workers__messages=(
                "    epoch: int\n    workers:",
                "    epoch: int\n    newer: int\n    workers:",
            ),
            activator__workers__worker_members=("Members(self.epoch, members)", "Members(self.epoch, 7, members)"),
        )
        output = machine.try_upgrade()
        assert output.code == 0, output
        assert f"version {OTHER} serves" in output.output
        assert held.answer().status == 200
    assert machine.pid() == program
    _end(machine)


def test_a_version_that_does_not_understand_this_one(installed: Installed, machine: Machine) -> None:
    program, old = machine.pid(), machine.newest()
    installed.install("second", activator__app__handover__messages=("PROTOCOL: Final = ", "PROTOCOL: Final = 1 + "))
    machine.activator.may_log_errors = True
    done = machine.try_upgrade()
    assert done.code == 1
    assert f"version {OTHER} cannot take over from version" in done.errors
    assert "restart the activator" in done.errors
    eventually(lambda: machine.newest() == old, "the refused process has ended")
    assert machine.pid() == program
    _end(machine)


def test_the_same_version_is_only_reloaded_with_or_reload(machine: Machine) -> None:
    old = machine.newest()
    done = cli("upgrade", "--or-reload", "--admin", machine.admin)
    assert (done.returncode, done.stdout) == (0, "reloaded\n")
    assert machine.newest() == old
    _end(machine)
