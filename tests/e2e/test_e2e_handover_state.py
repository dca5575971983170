"""What is not a connection and not a program goes on after `activator upgrade`: groups, stored responses, users."""

from __future__ import annotations

import json
import os
import resource
import signal
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.control_plane.sources.fixed_pods.name_server import NameServer
from tests.e2e.conftest import RunActivator
from tests.e2e.handover_clients import next_id
from tests.e2e.handover_machine import Start, running, started_machines
from tests.e2e.http_client import Client, ask
from tests.e2e.pods import ScriptedPod, serve
from tests.e2e.running import cli, eventually, is_dead

HOLD = "GET /plain/{seconds} HTTP/1.1\r\nHost: {host}\r\nX-Id: {id}\r\n{more}\r\n"


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Pods that are entered into it are closed after the activator."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def start(run_activator: RunActivator, tmp_path: Path) -> Iterator[Start]:
    yield from started_machines(run_activator, tmp_path)


def held(host: str = "a", seconds: float = 0.0, more: str = "") -> bytes:
    return HOLD.format(seconds=seconds, host=host, id=next_id("state"), more=more).encode()


def stream(host: str, more: str = "") -> bytes:
    """A request for events until there is a file PROGRAM.stream: it does not depend on how long an upgrade takes."""
    head = f"GET /events/stream/0.05 HTTP/1.1\r\nHost: {host}\r\nX-Id: {next_id('stream')}\r\n"
    return f"{head}{more}\r\n".encode()


def boots(path: Path) -> list[int]:
    """The processes of a program, from its record."""
    if not path.exists():
        return []
    return [int(line.split()[1]) for line in path.read_text().splitlines() if line.startswith("boot ")]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_group_keeps_its_budget_and_its_programs(start: Start, tmp_path: Path, workers: int) -> None:
    """Two of three programs fit: one idles, one is at work, and a request for the third waits for the idle one only."""
    members = [{**running(tmp_path / name, name, name), "needs": {"m": 1}} for name in "abc"]
    groups = [{"name": "g", "budget": {"m": 2}, "members": ["a", "b", "c"]}]
    machine = start(*members, groups=groups, workers=workers)
    for host in "ab":
        assert ask(machine.address, held(host)).status == 200
    first = {name: boots(tmp_path / name) for name in "ab"}
    machine.upgrade()
    for host in "ab":
        assert ask(machine.address, held(host)).status == 200
    assert {name: boots(tmp_path / name) for name in "ab"} == first, "both have stayed"
    with Client(machine.address) as one, Client(machine.address) as other, Client(machine.address) as third:
        for client, host in ((one, "a"), (other, "b")):
            client.send(stream(host))
            assert client.head().status == 200
        machine.upgrade()
        third.send(held("c"))
        eventually(lambda: machine.activator.revision("c")["queued"] == 1)
        eventually(lambda: "waits" in machine.activator.revision("c")["group"])
        assert boots(tmp_path / "c") == [], "there is no room while both are at work"
        (tmp_path / "a.stream").touch()  # ends the stream of a
        assert third.answer().status == 200
        eventually(lambda: is_dead(first["a"][0]))
        assert not is_dead(first["b"][0])
        assert len(boots(tmp_path / "c")) == 1
        (tmp_path / "b.stream").touch()


@pytest.mark.parametrize("workers", [1, 2])
def test_stored_responses_are_served_by_the_new_process(start: Start, tmp_path: Path, workers: int) -> None:
    revision = {**running(tmp_path / "a", "a", "a"), "respond_async": {"keep": "10m"}}
    machine = start(revision, workers=workers)
    later = "Prefer: respond-async\r\n"
    done = ask(machine.address, held("a", 0.0, later))
    under_way = ask(machine.address, stream("a", later))
    assert (done.status, under_way.status) == (202, 202)
    places = [one.header("location") for one in (done, under_way)]
    eventually(lambda: _fetched(machine.address, places[0]) == 200)
    machine.upgrade()
    assert [_fetched(machine.address, place) for place in places] == [200, 202]
    (tmp_path / "a.stream").touch()
    eventually(lambda: _fetched(machine.address, places[1]) == 200)


def _fetched(address: str, place: str) -> int:
    request = f"GET {place} HTTP/1.1\r\nHost: a\r\n\r\n".encode()
    status: int = ask(address, request).status
    return status


@pytest.mark.parametrize("workers", [1, 2])
def test_limits_of_users_hold_over_an_upgrade(start: Start, tmp_path: Path, workers: int) -> None:
    key = "a-key-of-twenty-letters"
    users = [{"name": "ann", "key": key, "limits": {"concurrency": 3, "requests": "8/h"}}]
    machine = start(running(tmp_path / "a", "a", "a"), keys=users, workers=workers)
    more = f"Authorization: Bearer {key}\r\n"
    with Client(machine.address) as one, Client(machine.address) as two:
        for client in (one, two):
            client.send(stream("a", more))
            assert client.head().status == 200
        machine.upgrade()
        with Client(machine.address) as third:
            third.send(stream("a", more))
            assert third.head().status == 200
            refused = ask(machine.address, held("a", 0.0, more))
            assert refused.status == 429, "two at the old process, and one here"
            (tmp_path / "a.stream").touch()
            eventually(lambda: machine.activator.revision("a")["in_flight"] == 0)
    statuses = [ask(machine.address, held("a", 0.0, more)).status for _ in range(8)]
    assert statuses == [200] * 5 + [429] * 3, "eight in an hour, three of them before"


def test_a_program_that_an_operator_has_loaded_stays(start: Start, tmp_path: Path) -> None:
    idle = running(tmp_path / "a", "a", "a")
    idle["process"] |= {"idle": "0.3s"}
    machine = start(idle)
    status, _, body = machine.activator.ask("/load/a?for=1h", "POST", {"Activator-Admin": "1"})
    assert status == 200, body
    eventually(lambda: machine.activator.revision("a")["processes"]["processes"] == 1)
    machine.upgrade()
    eventually(lambda: machine.activator.revision("a")["scaling"]["reason"] == "held")
    assert machine.activator.revision("a")["processes"]["processes"] == 1
    assert len(boots(tmp_path / "a")) == 1


def test_a_pod_that_an_operator_has_drained_gets_no_request(stack: ExitStack, start: Start) -> None:
    one, two = (stack.enter_context(ScriptedPod(serve)) for _ in range(2))
    machine = start({"name": "a", "hosts": ["a"], "pods": [one.address, two.address]})
    machine.activator.wait_ready_pods("a", 2)

    def served_by(count: int) -> set[str]:
        return {ask(machine.address, held()).body.decode() for _ in range(count)}

    eventually(lambda: served_by(4) == {one.address, two.address})
    path = f"/drain-pod/a?pod={one.address}"
    status, _, body = machine.activator.ask(path, "POST", {"Activator-Admin": "1"})
    assert status == 200, body
    eventually(lambda: served_by(4) == {two.address})
    before = len(one.requests)
    machine.upgrade()
    assert served_by(20) == {two.address}
    assert len(one.requests) == before


@pytest.mark.parametrize("mode", ["servfail", "silent"])
def test_names_keep_their_pods_while_name_servers_fail(stack: ExitStack, start: Start, mode: str) -> None:
    server = stack.enter_context(NameServer())
    pod = stack.enter_context(ScriptedPod(serve))
    server.records[("app.test", "A")] = ["127.0.0.1"]
    named = {"name": "named", "hosts": ["named"], "pods": [f"app.test:{pod.address.rpartition(':')[2]}"]}
    machine = start(named, dns={"servers": [server.address], "timeout": "500ms"})
    assert ask(machine.address, held("named")).status == 200
    server.modes["app.test"] = mode
    for _ in range(2):
        machine.upgrade()
        for _ in range(3):
            assert ask(machine.address, held("named")).status == 200
    server.modes.clear()
    eventually(lambda: not machine.activator.revision("named").get("problems"), "it resolves again")
    assert ask(machine.address, held("named")).status == 200


@pytest.mark.parametrize("spare", [0, 2, 5])
def test_without_descriptors_the_old_process_continues(start: Start, tmp_path: Path, spare: int) -> None:
    machine = start(running(tmp_path / "a", "a", "a"))
    machine.activator.may_log_errors = True
    assert ask(machine.address, held("a")).status == 200
    first = boots(tmp_path / "a")
    before = resource.prlimit(machine.first, resource.RLIMIT_NOFILE)
    open_count = max(int(name) for name in os.listdir(f"/proc/{machine.first}/fd")) + 1
    resource.prlimit(machine.first, resource.RLIMIT_NOFILE, (open_count + spare, before[1]))
    done = machine.try_upgrade()
    assert done.code != 0, done
    resource.prlimit(machine.first, resource.RLIMIT_NOFILE, before)
    assert ask(machine.address, held("a")).status == 200
    machine.upgrade()
    assert ask(machine.address, held("a")).status == 200
    assert boots(tmp_path / "a") == first


@pytest.mark.parametrize("workers", [1, 2])
def test_a_signal_to_all_processes_fails_no_request(start: Start, tmp_path: Path, workers: int) -> None:
    """`pkill -USR2` and `systemctl kill -s USR2` also reach workers, the fork server and the reaper."""
    machine = start(running(tmp_path / "a", "a", "a"), workers=workers)
    machine.activator.may_log_errors = True  # the process gets a signal and the one that is forwarded
    machine.upgrade()
    assert ask(machine.address, held()).status == 200
    (program,) = boots(tmp_path / "a")
    old = machine.newest()
    with Client(machine.address) as client:
        client.send(stream("a"))
        answer = client.head()
        assert answer.status == 200
        for process in machine.activator.processes():
            if process != program:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGUSR2)
        machine.activator.wait_log("serves now", 2)
        assert machine.newest() != old and ask(machine.address, held()).status == 200
        (tmp_path / "a.stream").touch()
        client.body(answer)
    assert boots(tmp_path / "a") == [program]


def test_a_sleeping_program_sleeps_on(start: Start, tmp_path: Path) -> None:
    program = running(tmp_path / "a", "a", "a")
    program["process"] |= {"idle": "200ms", "sleep": {"signal": "SIGSTOP"}}
    machine = start(program)
    assert ask(machine.address, held()).status == 200
    eventually(lambda: machine.activator.revision("a")["processes"].get("sleeping") == 1, "it sleeps")
    machine.upgrade()
    assert not machine.activator.logged("exited while asleep")
    assert machine.activator.revision("a")["processes"]["sleeping"] == 1
    assert ask(machine.address, held()).status == 200
    assert len(boots(tmp_path / "a")) == 1


def test_records_of_the_old_process_are_shown_until_it_ends(start: Start, tmp_path: Path) -> None:
    program = running(tmp_path / "a", "a", "a")
    program["record"] = {"requests": 10, "capture": {"bytes": "1KiB", "keep": "10m"}}
    machine = start(program)
    with Client(machine.address) as client:
        client.send(stream("a"))
        answer = client.head()
        with Client(machine.address) as second:
            second.send(held(seconds=1.0))
            eventually(lambda: machine.activator.revision("a")["in_flight"] == 2)
            machine.upgrade()
            assert second.answer().status == 200
        admin = ("--admin", machine.admin)
        (listed,) = cli("requests", "--json", *admin).stdout.splitlines()
        found = json.loads(listed)["id"]
        assert found.startswith("old1-")
        captured = cli("requests", "--capture", found, *admin)
        assert captured.returncode == 0 and "GET /plain/1.0" in captured.stdout
        (tmp_path / "a.stream").touch()
        client.body(answer)
