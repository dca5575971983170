"""Programs that end after one request, and copies on a range of ports: real processes, none of them left behind."""

from __future__ import annotations

import os
import socket
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import RunActivator
from tests.e2e.http_client import Answer, ask, request
from tests.e2e.running import PROGRAMS, SERVING, Activator, configured, eventually

ONCE = [sys.executable, "-I", "-S", str(PROGRAMS / "once.py")]
IMPATIENT = """
import os, socket, time
with socket.create_server(("127.0.0.1", int(os.environ["PORT"]))):
    time.sleep(0.05)
print("nobody came")
"""


def once(name: str, command: list[str] = ONCE, **more: Any) -> dict[str, Any]:
    process = {"command": command, "lifetime": "request", "idle": "500ms", "stop": {"grace": "200ms"}, **more}
    return {"name": name, "hosts": [name], "process": process}


def answers(activator: Activator, host: str, targets: list[str]) -> list[Answer]:
    """Of requests that are sent at the same time."""
    found: list[Answer] = []

    def visit(target: str) -> None:
        found.append(ask(activator.address, request(target, host=host)))

    threads = [threading.Thread(target=visit, args=(target,)) for target in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)
    return found


def programs(activator: Activator, name: str) -> int:
    found: int = activator.revision(name)["processes"]["processes"]
    return found


def ports_in_a_row(count: int) -> range:
    """Below those that the kernel gives to connections."""
    first = 21_000 + os.getpid() % 1_000 * 10
    while True:
        with ExitStack() as stack:
            try:
                for port in range(first, first + count):
                    stack.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                first += count
                continue
        return range(first, first + count)


PORTS = ports_in_a_row(3)


@pytest.fixture(scope="module")
def tools(run_shared_activator: RunActivator) -> Activator:
    ranged = {"command": SERVING, "port": f"{PORTS[0]}-{PORTS[-1]}", "max_scale": 3}
    return run_shared_activator(
        configured(
            [
                once("port", max_scale=4),
                once("socket", max_scale=4, socket=True),
                once("one", max_scale=1),
                {"name": "range", "hosts": ["range"], "container_concurrency": 1, "process": ranged},
            ]
        )
    )


@pytest.mark.parametrize("name", ["port", "socket"])
def test_one_start_for_each_request(tools: Activator, name: str) -> None:
    check_starts(tools, name)


@pytest.mark.deep
def test_one_start_for_each_request_with_several_workers(run_activator: RunActivator) -> None:
    activator = run_activator(configured([once("port", max_scale=4)], workers=2))
    for _ in range(5):
        check_starts(activator, "port")


def check_starts(activator: Activator, name: str) -> None:
    one_by_one = [ask(activator.address, request(host=name)) for _ in range(2)]
    found = [*one_by_one, *answers(activator, name, ["/", "/slow"] * 4)]
    assert [one.status for one in found] == [200] * 10
    assert len({one.body for one in found}) == 10, "no copy has served two"
    assert activator.revision(name)["processes"]["crashes"] == 0
    assert not activator.logged("a connection without a request"), "nothing connects to a copy but its request"
    eventually(lambda: programs(activator, name) == 0, "it goes to zero")


def test_a_request_that_is_not_answered_fails_with_its_cause_and_holds_up_no_other(tools: Activator) -> None:
    for target, cause in (("/crash", "exited with code 7: out of cheese"), ("/nothing", "exited with code 0")):
        answer = ask(tools.address, request(target, host="port"))
        assert (answer.status, answer.reason) == (502, "pod_closed")
        tools.wait_log(rf"failed during its request \(pod_closed\): the program {cause}")
        assert ask(tools.address, request(host="port")).status == 200
    assert not tools.logged("it ended before a request came")


def test_what_does_not_end_by_itself_is_stopped_and_counts_until_then(tools: Activator) -> None:
    for _ in range(2):
        assert ask(tools.address, request("/linger", host="one")).status == 200
        assert programs(tools, "one") <= 1
    tools.wait_log("did not exit within 0.2 s after its request; stopping it", 2)


def test_a_copy_for_each_port_of_a_range(tools: Activator) -> None:
    with socket.create_server(("127.0.0.1", PORTS[0])):
        found = answers(tools, "range", ["/sleep/0.2"] * 6)
        assert [one.status for one in found] == [200] * 6
        assert len({one.body for one in found}) == 2, "as many copies as there are ports that are free"
        used = {slot["address"] for slot in tools.slots("range")}
        assert used == {f"127.0.0.1:{port}" for port in PORTS[1:]}
        said = f"port {PORTS[0]} of {PORTS[0]}-{PORTS[-1]} is in use by another program"
        tools.wait_logged_once(said)


def test_a_tool_that_ends_without_a_request_is_a_failed_start(run_activator: RunActivator, tmp_path: Path) -> None:
    """It is started more and more slowly, and not at the rate at which it ends."""
    program = tmp_path / "impatient.py"
    program.write_text(IMPATIENT)
    command = [sys.executable, "-I", "-S", str(program)]
    activator = run_activator(configured([once("impatient", command, min_scale=1)]))
    activator.wait_log("it ended before a request came: the program exited with code 0: nobody came", 3)
    eventually(lambda: activator.revision("impatient")["processes"]["crashes"] >= 3)
