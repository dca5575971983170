"""Units of systemd: what is in them, what systemd itself says of them, and what they never replace."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from activator.config.model.file import Config
from activator.config.model.listeners import Listener
from activator.runtime.errors import StartError
from activator.systemd_units import install, stream_of, units

PROGRAM = [sys.executable, "-m", "activator.cli"]


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1:8012", "127.0.0.1:8012"),
        ("0.0.0.0:80", "0.0.0.0:80"),
        ("[::1]:443", "[::1]:443"),
        ("localhost:80", ""),
        (":80", ""),
        ("127.0.0.1:0", ""),
    ],
)
def test_what_systemd_can_open(address: str, expected: str) -> None:
    assert stream_of(address) == expected


def test_the_units(tmp_path: Path, need_program: Callable[[str], str]) -> None:
    """As systemd reads them; a path with characters that mean something to it, too."""
    folder = tmp_path / "50% of $HOME"
    folder.mkdir()
    config = Config(listen=["127.0.0.1:8080", Listener("[::1]:8443"), "localhost:8081"])
    found = units(folder / "activator.yaml", config, "root", PROGRAM)
    assert list(found) == ["activator.service", "activator.socket"]
    assert "ListenStream=127.0.0.1:8080\nListenStream=[::1]:8443\n" in found["activator.socket"]
    assert "localhost" not in found["activator.socket"]
    assert "Requires=activator.socket" in found["activator.service"]
    assert f"WorkingDirectory={tmp_path}/50%% of $$HOME" in found["activator.service"]
    plain = units(tmp_path / "activator.yaml", config, "root", PROGRAM)
    lines = install(plain, tmp_path)
    assert lines[-1].strip() == "systemctl enable --now activator.service activator.socket"
    command = [need_program("systemd-analyze"), "verify", *(str(tmp_path / name) for name in plain)]
    verified = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    complaints = [line for line in verified.stderr.splitlines() if str(tmp_path) in line or "activator." in line]
    assert complaints == [], verified.stderr


def test_unix_sockets_have_a_unit_for_each_kind_of_access(tmp_path: Path, need_program: Callable[[str], str]) -> None:
    """Also with several workers, which share them."""
    other = Listener("unix:/run/b.sock", mode="0666", group="daemon")
    listen: list[str | Listener] = ["unix:/run/activator/a.sock", other, "unix:/run/c 1"]
    found = units(tmp_path / "activator.yaml", Config(listen=listen, workers=3), "root", PROGRAM)
    assert list(found) == ["activator.service", "activator-unix.socket", "activator-unix2.socket"]
    first, second = found["activator-unix.socket"], found["activator-unix2.socket"]
    assert "ListenStream=/run/activator/a.sock\nListenStream=/run/c 1\n" in first
    assert "SocketMode=0660\nSocketUser=root\nService=activator.service" in first
    assert "SocketMode=0666\nSocketUser=root\nSocketGroup=daemon\nService=activator.service" in second
    assert "Requires=activator-unix.socket activator-unix2.socket" in found["activator.service"]
    install(found, tmp_path)
    command = [need_program("systemd-analyze"), "verify", *(str(tmp_path / name) for name in found)]
    verified = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    complaints = [line for line in verified.stderr.splitlines() if str(tmp_path) in line or "activator" in line]
    assert complaints == [], verified.stderr


def test_without_an_address_that_systemd_can_open_there_are_no_sockets(tmp_path: Path) -> None:
    found = units(tmp_path / "a.yaml", Config(listen="localhost:80"), "me", PROGRAM)
    assert list(found) == ["activator.service"]
    assert "activator.socket" not in found["activator.service"] and "User=me\n" in found["activator.service"]
    assert list(units(tmp_path / "a.yaml", Config(workers=2), "me", PROGRAM)) == ["activator.service"]


def test_a_unit_of_somebody_else_is_never_replaced(tmp_path: Path) -> None:
    found = units(tmp_path / "a.yaml", Config(), "me", PROGRAM)
    (tmp_path / "activator.socket").write_text("[Socket]\n")
    with pytest.raises(StartError, match=r"activator\.socket is not ours.*nothing was written"):
        install(found, tmp_path)
    assert not (tmp_path / "activator.service").exists()
    (tmp_path / "activator.socket").unlink()
    install(found, tmp_path)
    install(found, tmp_path)
    assert (tmp_path / "activator.service").read_text() == found["activator.service"]
    assert sorted(one.name for one in tmp_path.iterdir()) == ["activator.service", "activator.socket"]


def test_where_nothing_can_be_written(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="cannot be written: No such file or directory; be root, or give another"):
        install(units(tmp_path / "a.yaml", Config(), "me", PROGRAM), tmp_path / "missing")
