"""Unix sockets that listen: who may connect, whose file is taken over, and when it is removed."""

from __future__ import annotations

import fcntl
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from activator.runtime import sockets
from activator.runtime.errors import StartError
from activator.runtime.local_listeners import Listening
from activator.runtime.proc_listeners import port_listens, socket_listens
from activator.runtime.sockets import address_of, bind, join_address, pass_on, split_address, unused
from activator.runtime.unix_address import UNIX_PATH_BYTES_MAX, path_of, problem_with
from activator.runtime.unix_listeners import listening_at
from activator.runtime.unix_sockets import SocketAccess, remove_all_files, remove_file, set_access


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    remove_all_files()


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("unix:/run/a.sock", ""),
        ("unix:///run/a.sock", ""),
        ("unix:@name", "abstract sockets have no permissions"),
        ("unix:run/a.sock", "use an absolute path"),
        ("unix:", "use an absolute path"),
        ("unix:/run/", "use an absolute path"),
        ("unix:/run/a\n", "use an absolute path"),
        ("unix:/" + "é" * 53 + "a", "the path has 108 bytes, and the kernel takes 107"),
        ("unix:/" + "a" * 106, ""),
    ],
)
def test_addresses(address: str, problem: str) -> None:
    found = problem_with(address)
    assert found.startswith(problem) and bool(found) == bool(problem)


def test_an_address_is_one_text() -> None:
    assert path_of("unix:///run/./a//b.sock") == path_of("unix:/run/a/b.sock") == "/run/a/b.sock"
    assert split_address("unix:/run/a.sock") == ("/run/a.sock", 0)
    assert join_address(*split_address("unix:///run/a.sock")) == "unix:/run/a.sock"
    assert UNIX_PATH_BYTES_MAX == 107


def test_only_who_may_write_connects_and_the_file_goes_with_the_listener(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    address = f"unix:{path}"
    with bind(address) as sock:
        assert address_of(sock) == address
        assert mode_of(path) == 0o660
        set_access(address, SocketAccess(0o666))
        assert mode_of(path) == 0o666
        remove_file(address)
        assert not path.exists()
        remove_file(address)  # once is enough
    with bind(address, access=SocketAccess(0o600, str(os.getuid()), str(os.getgid()))):
        assert mode_of(path) == 0o600


def test_what_nobody_listens_on_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
        dead.listen()
    with bind(f"unix:{path}"), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))


def test_what_somebody_listens_on_is_not(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    with ExitStack() as stack:
        alive = stack.enter_context(socket.socket(socket.AF_UNIX))
        alive.bind(str(path))
        alive.listen(0)
        for _ in range(3):  # also when its queue is full
            with pytest.raises(StartError, match="another program listens on it; stop that program or choose another"):
                bind(f"unix:{path}")
        assert path.exists()


def test_nor_is_anything_else(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    with pytest.raises(StartError, match="there is a file of that name, and it is no socket"):
        bind(f"unix:{tmp_path / 'file'}")
    assert (tmp_path / "file").read_text() == "precious"
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(StartError, match="it is no socket"):
        bind(f"unix:{tmp_path / 'link'}")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(str(tmp_path / "datagrams"))
        with pytest.raises(StartError, match="there is a socket of another type"):
            bind(f"unix:{tmp_path / 'datagrams'}")


def test_every_mistake_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(
        StartError, match=r"cannot listen on unix:.*/no/a.sock: there is no directory .*/no; create it$"
    ):
        bind(f"unix:{tmp_path}/no/a.sock")
    with pytest.raises(StartError, match=r"abstract sockets have no permissions"):
        bind("unix:@a")
    with pytest.raises(StartError, match=r"there is no user nobody-of-that-name here; correct `owner`"):
        bind(f"unix:{tmp_path}/a.sock", access=SocketAccess(owner="nobody-of-that-name"))
    with pytest.raises(StartError, match=r"there is no group nobody-of-that-name here; correct `group`"):
        bind(f"unix:{tmp_path}/a.sock", access=SocketAccess(group="nobody-of-that-name"))
    assert list(tmp_path.iterdir()) == [], "a socket that was not to be had as it was asked for leaves nothing"


def test_of_two_that_start_in_one_moment_one_is_told(tmp_path: Path) -> None:
    """Both have seen that nobody listens; were both to take it over, one would listen on a file that is gone."""
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        with pytest.raises(StartError, match="another program is binding an address in its folder; try again"):
            bind(f"unix:{tmp_path}/a.sock")
    finally:
        os.close(folder)
    bind(f"unix:{tmp_path}/a.sock").close()


def test_the_file_of_a_successor_stays(tmp_path: Path) -> None:
    """Another program has taken the address over while this one drains, and its file may have the same number."""
    path = tmp_path / "a.sock"
    with bind(f"unix:{path}"):
        path.unlink()
        with socket.socket(socket.AF_UNIX) as successor:
            successor.bind(str(path))
            successor.listen()
            remove_file(f"unix:{path}")
            assert path.exists()
            set_access(f"unix:{path}", SocketAccess(0o600))
            assert mode_of(path) != 0o600, "nor is anything done to it"


def test_whether_somebody_listens_is_known_without_a_connection(tmp_path: Path) -> None:
    path = str(tmp_path / "a.sock")
    assert listening_at(path) is Listening.NO
    with socket.socket(socket.AF_UNIX) as sock, ExitStack() as stack:
        sock.bind(path)
        assert (listening_at(path), socket_listens(path)) == (Listening.NO, False)
        sock.listen(0)
        assert (listening_at(path), socket_listens(path)) == (Listening.YES, True)
        hard = tmp_path / "other name"
        os.link(path, hard)
        assert listening_at(str(hard)) is Listening.YES, "under whatever name"
        stack.enter_context(socket.socket(socket.AF_UNIX)).connect(path)
        assert listening_at(path) is Listening.FULL
        sock.setblocking(False)
        accepted, _ = sock.accept()
        accepted.close()
        assert listening_at(path) is Listening.YES
        with pytest.raises(BlockingIOError):
            sock.accept()  # nobody has connected to look
    assert (listening_at(path), socket_listens(path)) == (Listening.NO, False)


def test_ports_as_proc_shows_them() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
        assert not port_listens(port)
        sock.listen()
        assert port_listens(port)
    assert not port_listens(port)
    assert not port_listens(port, "/nowhere") and not socket_listens("/a", "/nowhere")


@pytest.mark.parametrize(
    ("family", "address", "is_loopback"),
    [
        (socket.AF_INET, "127.0.0.1", True),
        (socket.AF_INET, "127.1.2.3", True),
        (socket.AF_INET, "0.0.0.0", False),
        (socket.AF_INET6, "::1", True),
        (socket.AF_INET6, "::ffff:127.0.0.1", True),
        (socket.AF_INET6, "::", False),
    ],
)
def test_ports_that_only_this_machine_reaches(family: socket.AddressFamily, address: str, is_loopback: bool) -> None:
    with socket.socket(family) as sock:
        sock.bind((address, 0))
        sock.listen()
        port = sock.getsockname()[1]
        assert port_listens(port)
        assert port_listens(port, loopback=False) is not is_loopback


def test_a_socket_that_systemd_has_opened_is_used_as_it_is_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    with socket.socket(socket.AF_UNIX) as opened:
        opened.bind(str(path))
        opened.listen()
        path.chmod(0o640)
        pass_on([opened])
        try:
            assert unused() == [f"unix:{path}"]
            for shared in (False, True):  # several workers can have it, since they need no socket each
                with bind(f"unix:{path}", shared, SocketAccess(0o666)) as sock, socket.socket(socket.AF_UNIX) as client:
                    client.connect(str(path))
                    sock.accept()[0].close()
            assert unused() == []
        finally:
            sockets._passed.clear()
        remove_file(f"unix:{path}")
        assert path.exists() and mode_of(path) == 0o640
