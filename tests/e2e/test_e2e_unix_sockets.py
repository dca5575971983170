"""Unix sockets on every side: clients, the admin port, fixed pods and local programs; with one worker and several."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import grpc  # type: ignore[import-untyped]
import pytest

from activator.cli import main
from tests.e2e.conftest import RunActivator
from tests.e2e.http_client import Answer, Client, ask, request
from tests.e2e.load import Tally
from tests.e2e.pods import PodSide, ScriptedPod, serve
from tests.e2e.running import Activator, cli, eventually, process_revision
from tests.e2e.test_e2e_workers import pids

APP = """
async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
    await send({"type": "http.response.body", "body": b"fine"})
"""


def echo(side: PodSide) -> None:
    """Answers with what it is told of the client."""
    while True:
        told = side.request()
        names = ("x-forwarded-for", "x-forwarded-proto", "forwarded", "host")
        side.answer("|".join(",".join(told.all(name)) for name in names).encode())


def unix(folder: Path, name: str) -> str:
    return f"unix:{folder / name}"


def config(folder: Path, revisions: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    listen: list[Any] = [unix(folder, "front.sock"), "127.0.0.1:0"]
    return {"listen": listen, "admin": "127.0.0.1:0", **more, "revisions": revisions}


def sockets_in(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.iterdir() if stat.S_ISSOCK(one.lstat().st_mode))


class House(NamedTuple):
    """An activator with all of its doors in one folder, and what stands behind it."""

    activator: Activator
    folder: Path
    front: str
    grpc: str
    dying: Path


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory, run_shared_activator: RunActivator) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("house")
    server = grpc.server(ThreadPoolExecutor(2))
    twice = grpc.unary_unary_rpc_method_handler(lambda data, context: data * 2)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Twice", {"Call": twice}),))
    server.add_insecure_port(unix(folder, "grpc.sock"))
    server.start()
    settings = config(
        folder,
        [
            {"name": "app", "hosts": ["a.test"], "pods": [unix(folder, "pod.sock")]},
            {"name": "grpc", "hosts": ["grpc.test"], "protocol": "h2c", "pods": [unix(folder, "grpc.sock")]},
            {
                "name": "dying",
                "hosts": ["dying.test"],
                "pods": [unix(folder, "dying.sock")],
                "timeouts": {"unreachable": "200ms"},
            },
        ],
    )
    settings["listen"][0] = {"address": unix(folder, "front.sock"), "mode": "0600"}
    settings["forwarded"] = {"headers": "both", "trust": ["unix"]}
    try:
        with ScriptedPod(echo, path=str(folder / "pod.sock")):
            activator = run_shared_activator(settings)
            yield House(activator, folder, unix(folder, "front.sock"), unix(folder, "grpc.sock"), folder / "dying.sock")
    finally:
        server.stop(None).wait()


def test_a_client_and_a_pod_over_unix_sockets(house: House) -> None:
    assert ask(house.front, request()).body == b'|http|for=unknown;host="a.test";proto=http|a.test'
    told = ask(house.front, request(headers="X-Forwarded-For: 192.0.2.1\r\nX-Forwarded-Proto: https\r\n")).body
    assert told.startswith(b"192.0.2.1|https|")
    assert stat.S_IMODE((house.folder / "front.sock").stat().st_mode) == 0o600


def test_grpc_over_unix_sockets_on_both_sides(house: House) -> None:
    """A real server and a real client; the activator speaks HTTP/2 with both."""
    # The client's own choice for :authority would be the path, which is no host.
    with grpc.insecure_channel(house.front, [("grpc.default_authority", "grpc.test")]) as channel:
        call: Callable[..., bytes] = channel.unary_unary("/test.Twice/Call")
        assert call(b"ab" * 50_000, timeout=20) == b"ab" * 100_000


def test_a_pod_that_left_its_file_behind_comes_back(house: House) -> None:
    path = house.dying
    with ExitStack() as stack:
        first = stack.enter_context(ScriptedPod(serve, path=str(path)))
        eventually(lambda: ask(house.front, request(host="dying.test")).status == 200)
        first.close()
        eventually(lambda: ask(house.front, request(host="dying.test")).status == 503, "it is found to be dead")
        assert path.exists()
        path.unlink()
        stack.enter_context(ScriptedPod(serve, path=str(path)))
        eventually(lambda: ask(house.front, request(host="dying.test")).status == 200, "it is found to be back")


def test_the_admin_port_and_a_second_start(
    run_activator: RunActivator, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    revision = {"name": "app", "hosts": ["*"], "pods": ["127.0.0.1:9"]}
    admin = unix(tmp_path, "admin.sock")
    activator = run_activator(config(tmp_path, [revision], admin=admin))
    assert activator.admin == admin
    activator.admin = ""  # this class asks over TCP only
    assert stat.S_IMODE((tmp_path / "admin.sock").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "front.sock").stat().st_mode) == 0o660
    second = cli("run", "-c", str(tmp_path / "activator0.yaml"))
    assert second.returncode == 3
    said = "another program listens on it; stop that program or choose another path"
    assert second.stderr.splitlines()[-1].endswith(said)
    assert main(["status", "--admin", admin]) == 0
    assert "default/app" in capsys.readouterr().out
    assert main(["drain", "--admin", admin]) == 0
    assert activator.wait_end() == 0
    assert sockets_in(tmp_path) == [], "what it has made is gone"


def test_a_program_on_a_socket_of_its_own_from_zero_and_what_is_left_of_it(
    run_activator: RunActivator, tmp_path: Path
) -> None:
    (tmp_path / "app.py").write_text(textwrap.dedent(APP))
    runtime = tmp_path / "run"
    runtime.mkdir()
    command = [sys.executable, "-m", "uvicorn", "app:app", "--uds", "{socket}", "--log-level", "warning"]
    revision = process_revision(command, idle="1500ms", directory=str(tmp_path))
    activator = run_activator(config(tmp_path, [revision]), RUNTIME_DIRECTORY=str(runtime))
    assert ask(activator.address, request()).body == b"fine"
    (slot,) = activator.slots("app")
    assert slot["address"].startswith(f"unix:{runtime}/activator-")
    (folder,) = runtime.iterdir()
    eventually(lambda: list(folder.iterdir()) == [], "the folder of a program that has ended is gone")
    assert ask(activator.address, request()).body == b"fine", "and the next one has another"
    activator.process.kill()
    activator.wait_nothing_left()
    eventually(lambda: list(runtime.iterdir()) == [], "also when the activator is killed")
    assert sockets_in(tmp_path) == ["front.sock"], "of which nobody but the next start takes care"
    again = run_activator(config(tmp_path, [revision]), RUNTIME_DIRECTORY=str(runtime))
    assert ask(unix(tmp_path, "front.sock"), request()).body == b"fine"
    assert again.process.poll() is None


def test_a_program_whose_socket_the_file_says(run_activator: RunActivator, tmp_path: Path) -> None:
    """Its file is left when the program is killed; while another program listens there, it is not started."""
    (tmp_path / "app.py").write_text(textwrap.dedent(APP))
    command = [sys.executable, "-m", "uvicorn", "app:app", "--uds", "own.sock", "--log-level", "warning"]
    revision = process_revision(command, idle="60s", directory=str(tmp_path), socket="own.sock")
    activator = run_activator(config(tmp_path, [revision]))
    assert ask(activator.address, request()).body == b"fine"
    (slot,) = activator.slots("app")
    assert slot["address"] == f"unix:{tmp_path}/own.sock"
    started = activator.wait_log("started default/app#1 on .*, process [0-9]+")
    os.kill(int(started.rpartition(" ")[2]), signal.SIGKILL)
    activator.wait_log("default/app#1: the program was ended by SIGKILL")
    assert ask(activator.address, request()).body == b"fine", "its file was in the way of nobody"
    activator.command("/unload/app")
    eventually(lambda: activator.revision("app")["processes"]["processes"] == 0, "it has ended again")
    with socket.socket(socket.AF_UNIX) as sock:
        (tmp_path / "own.sock").unlink(missing_ok=True)
        sock.bind(str(tmp_path / "own.sock"))
        sock.listen()
        answer = ask(activator.address, request())
        assert answer.status == 503
        said = f"{tmp_path}/own.sock is in use by another program: end that program, or set another `socket`"
        assert said.encode() in answer.body


def test_no_connection_is_lost_with_a_worker(run_activator: RunActivator, tmp_path: Path) -> None:
    """All workers accept from one queue: what waits there when one ends is served by the others."""
    front = unix(tmp_path, "front.sock")
    with ScriptedPod(serve) as pod:
        activator = run_activator(config(tmp_path, [{"name": "app", "hosts": ["*"], "pods": [pod.address]}], workers=3))
        activator.may_log_errors = True
        stopped = pids(activator)
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        found: list[Answer] = []
        with ExitStack() as stack:
            clients = [stack.enter_context(Client(front)) for _ in range(60)]
            for client in clients:
                client.send(request())
            os.kill(stopped[0], signal.SIGKILL)
            for pid in stopped[1:]:
                os.kill(pid, signal.SIGCONT)
            found = [client.answer() for client in clients]
        assert [one.status for one in found] == [200] * 60
        load = Tally([front], 12)

        def another_worker_serves() -> bool:
            assert ask(front, request()).status == 200
            return sum(1 for one in activator.revision("app")["workers"] if one["requests"]) >= 2

        def kill_some() -> None:
            for _ in range(2):
                load.goes_on(150)
                os.kill(pids(activator)[0], signal.SIGKILL)
            load.goes_on(150)
            # The figures of the killed workers are gone, and the load may have all its connections at one worker.
            eventually(another_worker_serves, "more than one worker takes part")

        load.run(kill_some)
        assert load.other == [], "whoever had no connection to a killed worker sees nothing of it"


def test_a_reload_says_anew_who_may_connect_and_refuses_nobody(run_activator: RunActivator, tmp_path: Path) -> None:
    front = tmp_path / "front.sock"
    with ScriptedPod(serve) as pod:
        settings = config(tmp_path, [{"name": "app", "hosts": ["*"], "pods": [pod.address]}])
        activator = run_activator(settings)
        failures: list[Exception] = []
        over = threading.Event()

        def visit() -> None:
            while not over.is_set():
                try:
                    assert ask(f"unix:{front}", request()).status == 200
                except (AssertionError, OSError) as error:
                    failures.append(error)

        visitor = threading.Thread(target=visit)
        visitor.start()
        path = tmp_path / "activator0.yaml"
        settings["listen"][0] = {"address": f"unix:{front}", "mode": "0666"}
        path.write_text(json.dumps(settings))
        assert activator.command("/reload")[0] == 200
        eventually(lambda: stat.S_IMODE(front.stat().st_mode) == 0o666)
        settings["listen"].append(unix(tmp_path, "second.sock"))
        path.write_text(json.dumps(settings))
        assert activator.command("/reload")[0] == 200
        eventually(lambda: sockets_in(tmp_path) == ["front.sock", "second.sock"])
        del settings["listen"][-1]
        path.write_text(json.dumps(settings))
        assert activator.command("/reload")[0] == 200
        eventually(lambda: sockets_in(tmp_path) == ["front.sock"], "a listener that leaves takes its file along")
        over.set()
        visitor.join(20.0)
        assert failures == []
