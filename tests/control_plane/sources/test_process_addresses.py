"""Where processes listen: free ports, a range of the file, and Unix sockets in folders of their own."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from activator.config.model.programs import Process
from activator.control_plane.sources.process.addresses import AddressAllocator, ProgramAddress, holders
from activator.control_plane.sources.process.reaping import Reaping
from activator.runtime.errors import StartError


class Reported(Reaping):
    def __init__(self) -> None:
        super().__init__(None, "")
        self.folders: list[str] = []

    def add_folder(self, path: str) -> None:
        self.folders.append(path)


@contextmanager
def listeners(count: int, free: int = 0) -> Iterator[list[int]]:
    """So many ports in a row that somebody listens on, and behind them so many that are free.

    Below those that the kernel gives to connections.
    """
    first = 21_000 + os.getpid() % 1_000 * 10
    while True:
        with ExitStack() as stack:
            try:
                with ExitStack() as looked_at:
                    for port in range(first, first + count + free):
                        kept = stack if port < first + count else looked_at
                        kept.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                first += count + free
                continue
            yield [*range(first, first + count)]
            return


def test_each_copy_has_a_port_of_the_range_and_what_others_have_is_passed_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    places = AddressAllocator(Reported())
    with listeners(1, free=2) as (used,):
        settings = Process(command=["x"], port=f"{used}-{used + 2}")
        with caplog.at_level(logging.WARNING, "activator.process"):
            first, second = places.reserve(settings, 1), places.reserve(settings, 2)
            assert first is not None and second is not None and first.is_chosen
            assert {first.port, second.port} == {used + 1, used + 2}
            assert places.reserve(settings, 3) is None, "one has to end first"
            places.release(first)
            third = places.reserve(settings, 4)
            assert third is not None and third.port == first.port, "the only one that is free"
        said = [record.getMessage() for record in caplog.records]
        assert said == [f"port {used} of {used}-{used + 2} is in use by another program; skipping it"]
    places.release(second)
    again = [places.reserve(settings, number) for number in (5, 6)]
    assert {one.port for one in again if one} == {used, second.port}, "what was passed over is looked at again"


def test_where_others_have_them_all_it_says_who() -> None:
    with listeners(2) as ports:
        place = AddressAllocator(Reported()).reserve(Process(command=["x"], port=f"{ports[0]}-{ports[1]}"), 1)
        assert place is not None and place.taken == tuple(ports)
        said = holders(place.taken)
    assert said.startswith(f"{ports[0]} by ") and f"(process {os.getpid()})" in said
    assert holders(tuple(range(1, 6))).endswith("and 2 more")


def test_a_unix_socket_stands_in_a_folder_that_nobody_else_can_enter(tmp_path: Path) -> None:
    reaping = Reported()
    places = AddressAllocator(reaping, {"RUNTIME_DIRECTORY": str(tmp_path)})
    settings = Process(command=["x", "{socket}"])
    place, other = places.reserve(settings, 7), places.reserve(settings, 8)
    assert place is not None and other is not None and place.path != other.path
    assert place.address == place.first_address == f"unix:{place.path}"
    assert place.fill("--uds={socket}") == f"--uds={place.path}"
    assert place.variables() == {"SOCKET": place.path}
    place.make_folder(settings)
    folder = Path(place.path).parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert folder.parent.parent == tmp_path and reaping.folders == [str(folder.parent)]
    (folder / "left behind").mkdir()
    (folder / "elsewhere").symlink_to(tmp_path)
    asyncio.run(places.remove_folder(place))
    assert not folder.exists() and tmp_path.exists()
    places.close()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_whose_path_is_too_long_is_told(tmp_path: Path) -> None:
    long = tmp_path / ("a" * 100)
    long.mkdir()
    place = AddressAllocator(Reported(), {"RUNTIME_DIRECTORY": str(long)}).reserve(Process(command=["{socket}"]), 1)
    assert place is not None and "the path is too long: set TMPDIR to a shorter folder" in place.problem


def test_a_socket_of_the_file_stands_where_it_says(tmp_path: Path) -> None:
    settings = Process(command=["x"], socket="run/$NAME.sock", directory=str(tmp_path))
    places = AddressAllocator(Reported(), {"NAME": "app"})
    place = places.reserve(settings, 1)
    assert place is not None and place.is_chosen and not place.has_folder and not place.problem
    assert place.path == f"{tmp_path}/run/app.sock" and place.variables() == {"SOCKET": place.path}
    place.remove_stale_socket()  # nothing is there
    (tmp_path / "run").mkdir()
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(place.path)
        sock.listen()
        assert place.is_taken()
        with pytest.raises(StartError, match="another program listens on it"):
            place.remove_stale_socket()
    assert os.path.exists(place.path) and not place.is_taken()
    place.remove_stale_socket()
    assert not os.path.exists(place.path)
    Path(place.path).write_text("precious")
    with pytest.raises(StartError, match="it is no socket"):
        place.remove_stale_socket()
    asyncio.run(places.remove_folder(place))
    places.close()
    assert Path(place.path).read_text() == "precious"


@pytest.mark.parametrize(
    ("path", "problem"), [("$NONE/a", "the variable NONE is not set"), ("/" + "a" * 110, "and the kernel takes 107")]
)
def test_a_socket_that_cannot_be_is_told(path: str, problem: str) -> None:
    place = AddressAllocator(Reported(), {}).reserve(Process(command=["x"], socket=path), 1)
    assert place is not None and problem in place.problem


def test_a_port_is_told_as_before() -> None:
    place = ProgramAddress(8080)
    assert (place.fill("{port}"), place.variables(), place.shown) == ("8080", {"PORT": "8080"}, "port 8080")
    assert place.first_address == "127.0.0.1:8080"
