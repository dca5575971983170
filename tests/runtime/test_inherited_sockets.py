"""Listening sockets that a former process of the activator has left."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from activator.runtime import sockets


def test_the_other_process_never_blocks_in_accept() -> None:
    """Both have one open file, with one flag; `socket.dup` sets it to what its object says."""
    with socket.socket() as theirs:
        theirs.bind(("127.0.0.1", 0))
        theirs.listen()
        theirs.setblocking(False)
        address = sockets.address_of(theirs)
        ours = socket.socket(fileno=os.dup(theirs.fileno()))
        assert ours.gettimeout() is None
        sockets.inherit([(address, [ours])])
        (taken,) = sockets.inherited(address)
        with taken, taken.dup():
            assert not os.get_blocking(theirs.fileno())


@pytest.mark.parametrize(
    ("address", "fits"),
    [
        ("127.0.0.1:PORT", True),
        ("127.0.0.1:0", True),
        ("localhost:PORT", True),
        ("127.0.0.2:PORT", False),
        ("127.0.0.1:1", False),
        ("0.0.0.0:0", False),
        (":PORT", False),
        ("[::1]:0", False),
        ("no-such-host.invalid:0", False),
        ("unix:/run/app.sock", False),
    ],
)
def test_a_socket_is_bound_to_what_a_configuration_names(address: str, fits: bool) -> None:
    with sockets.bind("127.0.0.1:0") as sock:
        assert sockets.is_bound_to(sock, address.replace("PORT", str(sock.getsockname()[1]))) == fits


def test_a_unix_socket_is_bound_to_its_path(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tmp_path / "a.sock"))
        assert sockets.is_bound_to(sock, f"unix:{tmp_path}/a.sock")
        assert sockets.is_bound_to(sock, f"unix://{tmp_path}/./a.sock")
        assert not sockets.is_bound_to(sock, f"unix:{tmp_path}/b.sock")
        assert not sockets.is_bound_to(sock, "127.0.0.1:0")
