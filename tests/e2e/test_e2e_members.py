"""Replicas that hold limits together: real processes on one machine, killed, stopped, cut off and started again."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import RunActivator
from tests.e2e.counting_pods import CountingPods
from tests.e2e.http_client import Client, ask, request
from tests.e2e.load import Tally, limited
from tests.e2e.running import Activator, cli, configured, eventually
from tests.e2e.test_e2e_workers import pids

START_S = 90.0  # beside replicas that take all of the machine
PORTS = (12_000, 32_000)
SHARES = 8


def free_ports(count: int) -> list[int]:
    """Below those that the kernel gives to whoever asks for any, so that it gives them to nobody meanwhile."""
    chance = random.SystemRandom()  # tests in other processes have the same seed
    share = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % SHARES  # none of another process of the tests
    sockets: list[socket.socket] = []
    while len(sockets) < count:
        port = chance.randrange(*PORTS)
        with contextlib.suppress(OSError):
            if port % SHARES == share:
                sockets.append(socket.create_server(("127.0.0.1", port)))
    ports = [sock.getsockname()[1] for sock in sockets]
    for sock in sockets:
        sock.close()
    return ports


class Replicas:
    """Of one group, each at the same addresses in all its lives. `more` of the configuration of each."""

    def __init__(self, run: RunActivator, folder: Path, count: int, revisions: list[dict[str, Any]], **more: Any):
        self.key = folder / "members.key"
        self.key.write_text("a key of the group that is long enough\n")
        ports = [f"127.0.0.1:{port}" for port in free_ports(2 * count)]
        self.peers, self.served = ports[:count], ports[count:]
        self._run = run
        self._revisions = revisions
        self._more = more
        self.running: dict[int, Activator] = {}

    def configuration(self, index: int, **members: Any) -> dict[str, Any]:
        group = {"listen": self.peers[index], "peers": self.peers, "key_file": str(self.key), **members}
        more = {**self._more, "listen": self.served[index]}
        return configured(self._revisions, **{**more, "members": {**group, **self._more.get("members", {})}})

    def start(self, index: int) -> Activator:
        activator = self.running[index] = self._run(self.configuration(index), timeout_s=START_S)
        activator.may_log_errors = True
        return activator

    def start_all(self) -> list[Activator]:
        started = [self.start(index) for index in range(len(self.peers))]
        self.wait_together()
        return started

    def kill(self, index: int) -> None:
        self.running[index].signal(signal.SIGKILL)
        self.running.pop(index).process.wait(10.0)

    def view(self, index: int) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.running[index].ask("/debug/members")[2])
        return found

    def states(self, index: int) -> list[str]:
        """Of the seats, as this one sees them."""
        return [one["state"] for one in self.view(index)["seats"]]

    def wait_together(self) -> None:
        """All that run act in one view, which has all of them and nobody unproven."""

        views: list[dict[str, Any]] = []

        def together() -> bool:
            views[:] = [self.view(index) for index in self.running]
            one = views[0]
            fits = len(one["members"]) == len(self.running) and not one["unproven"] and one["grants"]
            return fits and all((view["epoch"], view["members"]) == (one["epoch"], one["members"]) for view in views)

        try:
            eventually(together)
        except AssertionError as error:
            raise AssertionError(f"the members are not together: {views}") from error

    def owner(self, name: str = "app") -> int:
        """The replica that owns the revision: it has its line."""
        (owner,) = [index for index, one in self.running.items() if one.revision(name)["owner"]]
        return owner

    @property
    def addresses(self) -> list[str]:
        return [one.address for one in self.running.values()]


@pytest.mark.parametrize(
    ("limit", "workers"),
    [pytest.param(1, 1, marks=pytest.mark.deep), pytest.param(3, 1, marks=pytest.mark.deep), (1, 2)],
)
def test_a_limit_holds_over_all_replicas(run_activator: RunActivator, tmp_path: Path, limit: int, workers: int) -> None:
    with CountingPods(3, 0.002) as pods:
        replicas = Replicas(run_activator, tmp_path, 3, [limited(pods.addresses, limit)], workers=workers)
        replicas.start_all()
        load = Tally(replicas.addresses, 30)
        load.run(lambda: load.goes_on(2_000))
        assert pods.most <= limit
        assert (load.cut, load.other) == (0, [])
        assert all(one.revision("app")["requests"] for one in replicas.running.values())


@pytest.mark.parametrize("limit", [pytest.param(1, marks=pytest.mark.deep), 3])
def test_limits_hold_while_replicas_are_killed_and_started_again(
    run_activator: RunActivator, tmp_path: Path, limit: int
) -> None:
    chance = random.Random(limit)
    clients, kills = 24, 4
    with CountingPods(2, 0.004) as pods:
        replicas = Replicas(run_activator, tmp_path, 3, [limited(pods.addresses, limit)])
        replicas.start_all()
        load = Tally(replicas.addresses, clients)

        def kill_some() -> None:
            for _ in range(kills):
                load.goes_on(100)
                index = chance.choice(list(replicas.running))
                replicas.kill(index)
                load.goes_on(100)
                replicas.start(index)
                replicas.wait_together()

        load.run(kill_some)
        assert pods.most <= limit
        assert load.other == []
        assert load.longest_s < 10.0, "nobody was forgotten"
        for one in replicas.running.values():
            one.wait_idle("app")


def test_a_revision_is_granted_again_soon_after_its_owner_has_died(run_activator: RunActivator, tmp_path: Path) -> None:
    """Its requests at pods have ended with it: the kernel of this machine says so."""
    with CountingPods(1, 30.0) as pods:
        replicas = Replicas(run_activator, tmp_path, 3, [limited(pods.addresses, 1)])
        replicas.start_all()
        owner = replicas.owner()
        first = Client(replicas.running[owner].address)
        first.send(request())
        eventually(lambda: replicas.running[owner].revision("app")["in_flight"] == 1)
        waiting = [Client(one.address) for index, one in replicas.running.items() if index != owner]
        for client in waiting:
            client.send(request())
        eventually(lambda: replicas.running[owner].revision("app")["in_flight"] == 1)
        pods.takes_s = 0.001
        began_s = time.monotonic()
        replicas.kill(owner)
        assert [client.answer().status for client in waiting] == [200, 200]
        took_s = time.monotonic() - began_s
        assert pods.most == 1
        for client in (first, *waiting):
            client.close()
        print(f"granted again after {took_s * 1000:.0f} ms")


def test_a_replica_that_stands_still_keeps_its_slots(run_activator: RunActivator, tmp_path: Path) -> None:
    """`on_silence: strict`: nobody knows what it has, and it goes on with that when it can."""
    with CountingPods(1, 0.01) as pods:
        replicas = Replicas(run_activator, tmp_path, 3, [limited(pods.addresses, 1)])
        replicas.start_all()
        owner = replicas.owner()
        others = [index for index in replicas.running if index != owner]
        replicas.running[owner].signal(signal.SIGSTOP)
        try:
            eventually(lambda: len(replicas.view(others[0])["unproven"]) == 1)
            client = Client(replicas.running[others[0]].address)
            client.send(request())
            time.sleep(1.0)
            assert pods.answered == 0, "what it owns waits for it"
        finally:
            replicas.running[owner].signal(signal.SIGCONT)
        assert client.answer().status == 200
        client.close()
        replicas.wait_together()
        load = Tally(replicas.addresses, 12)
        load.run(lambda: load.goes_on(300))
        assert (pods.most, load.other, load.cut) == (1, [], 0)


def test_slots_of_a_silent_replica_are_given_on_where_the_operator_says_so(
    run_activator: RunActivator, tmp_path: Path
) -> None:
    with CountingPods(1, 0.01) as pods:
        members = {"on_silence": "prompt", "release": "1s", "silence": "500ms"}
        replicas = Replicas(run_activator, tmp_path, 3, [limited(pods.addresses, 1)], members=members)
        replicas.start_all()
        owner = replicas.owner()
        other = next(index for index in replicas.running if index != owner)
        replicas.running[owner].signal(signal.SIGSTOP)
        try:
            assert ask(replicas.running[other].address, request()).status == 200
            eventually(lambda: "released" in replicas.states(other), "each replica has a clock of its own for that")
        finally:
            replicas.running[owner].signal(signal.SIGCONT)
        replicas.wait_together()


def test_a_minority_grants_nothing_until_it_has_a_majority_again(run_activator: RunActivator, tmp_path: Path) -> None:
    with CountingPods(1, 0.01) as pods:
        replicas = Replicas(run_activator, tmp_path, 3, [limited(pods.addresses, 1)])
        replicas.start_all()
        owner = replicas.owner()
        others = [index for index in replicas.running if index != owner]
        for other in others:
            replicas.running[other].signal(signal.SIGSTOP)
        try:
            replicas.running[owner].wait_log("no majority of the group is reached")
            assert not replicas.view(owner)["grants"]
            assert replicas.running[owner].ask("/readyz")[0] == 503
            client = Client(replicas.running[owner].address)
            client.send(request())
            time.sleep(0.5)
            assert pods.answered == 0
        finally:
            for other in others:
                replicas.running[other].signal(signal.SIGCONT)
        assert client.answer().status == 200
        client.close()
        replicas.wait_together()


def test_a_replica_that_leaves_gives_up_what_it_has(run_activator: RunActivator, tmp_path: Path) -> None:
    with CountingPods(1, 0.3) as pods:
        replicas = Replicas(run_activator, tmp_path, 2, [limited(pods.addresses, 1)])
        replicas.start_all()
        leaving = replicas.owner()
        clients = [Client(one.address) for one in replicas.running.values() for _ in range(2)]
        for client in clients:
            client.send(request())
        eventually(lambda: replicas.running[leaving].revision("app")["in_flight"] >= 1 or pods.answered)
        gone = replicas.running.pop(leaving)
        gone.signal(signal.SIGTERM)
        assert [client.answer().status for client in clients] == [200] * 4
        for client in clients:
            client.close()
        assert gone.wait_end() == 0
        replicas.wait_together()
        assert pods.most == 1
        (left,) = replicas.running.values()
        assert ask(left.address, request()).status == 200


def test_who_does_not_have_the_key_cannot_take_part(run_activator: RunActivator, tmp_path: Path) -> None:
    with CountingPods(1, 0.0) as pods:
        replicas = Replicas(run_activator, tmp_path, 2, [limited(pods.addresses, 1)])
        one = replicas.start(0)
        other_key = tmp_path / "other.key"
        other_key.write_text("another key, of which nobody knows\n")
        stranger = run_activator(replicas.configuration(1, key_file=str(other_key)))
        stranger.may_log_errors = True
        one.wait_log(f"{replicas.peers[1]} is refused as a member: it reports that we do not have the key of its group")
        assert len(replicas.view(0)["members"]) <= 1
        host, _, port = replicas.peers[0].rpartition(":")
        for nonsense in (
            b"GET / HTTP/1.1\r\n\r\n",
            b"\xff\xff\xff\xff",
            b"\x00\x00\x00\x00",
            b"\x10\x00\x00\x00" + b"x" * 16,
        ):
            with socket.create_connection((host, int(port)), timeout=10.0) as sock:
                sock.sendall(nonsense)
                with contextlib.suppress(ConnectionResetError):
                    while sock.recv(4096):
                        pass
        text = one.ask("/metrics")[2].decode()
        assert 'activator_group_connections_refused_total{reason="refused"}' in text


def test_a_list_of_peers_without_oneself_is_refused(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("a key of the group that is long enough\n")
    members = {"listen": "127.0.0.1:8015", "peers": ["203.0.113.1:8015", "203.0.113.2:8015"], "key_file": str(key)}
    path = tmp_path / "activator.yaml"
    path.write_text(json.dumps(configured([limited(["127.0.0.1:1"], 1)], members=members)))
    ended = cli("run", "-c", str(path), cwd=tmp_path)
    assert ended.returncode == 3
    assert "members.peers does not have this replica" in ended.stderr


def test_policies_see_what_other_replicas_have(run_activator: RunActivator, tmp_path: Path) -> None:
    """A revision without a limit: one request after the other goes to another pod, whichever replica has it."""
    with CountingPods(6, 30.0) as pods:
        replicas = Replicas(run_activator, tmp_path, 3, [limited(pods.addresses, 0, policy="least-connections")])
        replicas.start_all()
        clients = []
        for sent in range(6):
            clients.append(Client(replicas.addresses[sent % 3]))
            clients[-1].send(request())
            eventually(lambda: known(replicas) == [sent + 1] * 3, "all know of it")  # noqa: B023
        assert pods.most == 1
        replicas.kill(0)
        eventually(lambda: known(replicas) == [4, 4], "what it had is out")
        for client in clients:
            client.close()


def known(replicas: Replicas) -> list[int]:
    """The requests that each replica knows of."""
    return [
        sum(slot["in_flight"] + slot["elsewhere"] for slot in one.slots("app")) for one in replicas.running.values()
    ]


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.deep), 2])
def test_a_replica_that_drains_hands_over_what_it_owns_at_once(
    run_activator: RunActivator, tmp_path: Path, workers: int
) -> None:
    """Others grant while it still has requests; those that wait there are granted by the next owner."""
    with CountingPods(2, 0.02) as pods:
        replicas = Replicas(run_activator, tmp_path, 3, [limited(pods.addresses, 1)], workers=workers)
        replicas.start_all()
        owner = replicas.owner()
        drains = replicas.running[owner]
        pods.takes_s = 8.0
        first = Client(drains.address)
        first.send(request())
        eventually(lambda: pods.most == 1)
        pods.takes_s = 0.02
        second = Client(drains.address)
        second.send(request())
        assert second.answer().status == 200
        pods.takes_s = 0.5
        waiting = [Client(drains.address) for _ in range(4)]
        for client in waiting:
            client.send(request())
        eventually(lambda: drains.revision("app")["queued"] == 3)
        drains.signal(signal.SIGTERM)
        others = [one for index, one in replicas.running.items() if index != owner]
        eventually(lambda: any(one.revision("app")["owner"] for one in others), "one of the others owns it")
        pods.takes_s = 0.02
        load = Tally([one.address for one in others], 4)
        load.run(lambda: load.goes_on(50))
        assert (load.cut, load.other) == (0, [])
        assert load.longest_s < 5.0, "nobody waited for the end of the first request"
        assert [client.answer().status for client in waiting] == [200] * 4
        assert drains.process.poll() is None, "it still has its first request"
        assert first.answer().status == 200
        assert drains.wait_end() == 0
        assert pods.most == 1
        for client in (first, second, *waiting):
            client.close()


def test_all_workers_of_a_group_end_at_once(run_activator: RunActivator, tmp_path: Path) -> None:
    """Those that take their places grant again."""
    with CountingPods(1, 0.0) as pods:
        replicas = Replicas(run_activator, tmp_path, 1, [limited(pods.addresses, 1)], workers=2)
        (activator,) = replicas.start_all()
        for _ in range(4):  # with more, those that end at once again are started later and later
            killed = set(pids(activator))
            for pid in killed:
                os.kill(pid, signal.SIGKILL)
            eventually(lambda killed=killed: not killed & set(pids(activator)), "others serve")  # type: ignore[misc]
            assert [ask(activator.address, request()).status for _ in range(8)] == [200] * 8


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.deep)])
def test_a_group_that_cannot_grant_is_not_ready_until_the_operator_has_spoken(
    run_activator: RunActivator, tmp_path: Path, workers: int
) -> None:
    """All but a silent member start again: nobody knows any more what that one has."""
    with CountingPods(1, 0.001) as pods:
        replicas = Replicas(run_activator, tmp_path, 3, [limited(pods.addresses, 1)], workers=workers)
        replicas.start_all()
        silent = replicas.running.pop(2)
        seat = json.loads(silent.ask("/debug/members")[2])["seat"]
        silent.signal(signal.SIGSTOP)
        try:
            for index in (0, 1):
                replicas.kill(index)
            for index in (0, 1):
                replicas.start(index)
            left = list(replicas.running.values())
            client = Client(left[0].address)
            client.send(request())
            for one in left:
                one.wait_log(
                    rf"no slots are granted: members at seats \[{seat}\] are unreachable and not proven to have ended",
                    timeout_s=30.0,
                )
                status, _, body = one.ask("/readyz")
                assert status == 503 and b"`activator member-ended SEAT`" in body
            assert pods.answered == 0
            said = [cli("member-ended", str(seat), "--admin", one.admin).returncode for one in left]
            assert 0 in said, "one of them decides on views"
            assert client.answer().status == 200
            eventually(lambda: all(one.ask("/readyz")[0] == 200 for one in left))
            client.close()
        finally:
            silent.signal(signal.SIGCONT)
