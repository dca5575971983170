"""Revisions with fixed pods: routed by host, held until a pod is up, balanced, and served while a pod is dead."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.e2e.conftest import RunActivator, one_worker
from tests.e2e.http_client import Answer, Client, Visitor, ask, burst, failures, request
from tests.e2e.pods import PodSide, ScriptedPod, serve, serve_or_hold
from tests.e2e.running import Activator, cli, configured, eventually

POLICIES = ["random", "choice-of-2", "round-robin", "least-connections", "first-available"]
POLICIES += ["weighted", "ewma", "consistent-hash"]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Pods that are entered into it are closed after the activator."""
    with ExitStack() as stack:
        yield stack


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def test_routing_by_host(stack: ExitStack, run_activator: RunActivator) -> None:
    hosts = {
        "exact": ["one.test", "two.test"],
        "suffix": ["*.apps.test"],
        "deeper": ["*.eu.apps.test"],
        "under": ["special.apps.test"],
        "all": ["*"],
    }
    pods = {name: stack.enter_context(ScriptedPod(serve)) for name in hosts}
    revisions = [{"name": name, "hosts": hosts[name], "pods": [pods[name].address]} for name in hosts]
    activator = run_activator(configured(revisions))
    expected = {
        "one.test": "exact",
        "TWO.Test": "exact",
        "one.test:8080": "exact",
        "one.test.": "exact",
        "a.apps.test": "suffix",
        "a.b.apps.test:1": "suffix",
        "a.eu.apps.test": "deeper",
        "eu.apps.test": "suffix",
        "special.apps.test": "under",
        "a.special.apps.test": "suffix",
        "apps.test": "all",
        "elsewhere.test": "all",
        "127.0.0.1:99": "all",
        "[::1]:99": "all",
    }
    with Client(activator.address) as client:
        for host, name in expected.items():
            assert client.ask(request(host=host)).body.decode() == pods[name].address, host
        # The authority of an absolute-form target decides, and the pod sees the host as it was asked for.
        answer = client.ask(b"GET http://one.test/x?y HTTP/1.1\r\nHost: one.test\r\n\r\n")
        assert answer.body.decode() == pods["exact"].address
        assert pods["exact"].requests[-1].target == "/x?y"
        assert pods["exact"].requests[-1].all("host") == ["one.test"]


def test_a_pod_out_of_service(stack: ExitStack, run_activator: RunActivator) -> None:
    """It finishes the request that it has, gets no other, also after a reload, and is put back."""
    one, two = (stack.enter_context(ScriptedPod(serve_or_hold)) for _ in range(2))
    activator = run_activator(configured([{"name": "app", "hosts": ["*"], "pods": [one.address, two.address]}]))
    activator.wait_ready_pods("app", 2)

    def command(name: str, pod: str) -> tuple[int, str]:
        done = cli(name, "app", pod, "--admin", f"http://{activator.admin}")
        return done.returncode, done.stdout + done.stderr

    def served_by(count: int = 20) -> set[str]:
        return {ask(activator.address, request()).body.decode() for _ in range(count)}

    def slots() -> dict[str, str]:
        return {slot["address"]: slot["state"] for slot in activator.slots("app")}

    holding = [stack.enter_context(Client(activator.address)) for _ in range(2)]
    for client in holding:
        client.send(request("/held"))
    eventually(lambda: len(one.requests) + len(two.requests) >= 2)
    assert command("drain-pod", one.address) == (0, f"{one.address} of app gets no more requests\n")
    eventually(lambda: served_by(4) == {two.address})
    before = len(one.requests)
    activator.signal(signal.SIGHUP)
    activator.wait_log(" reloaded")
    assert served_by() == {two.address} and len(one.requests) == before
    one.go_on()
    two.go_on()
    assert [client.answer().status for client in holding] == [200, 200]
    told = cli("status", "app", "--admin", f"http://{activator.admin}").stdout
    assert "drain-pod" in told and "first byte" in told
    (busy,) = [slot for slot in activator.slots("app") if slot["address"] == two.address]
    eventually(lambda: busy["responses"] >= 24 and busy["errors"] == 0 and busy["first_byte_total_s"] > 0.0)
    missing = cli("status", "other", "--admin", f"http://{activator.admin}")
    assert (missing.returncode, "there is no revision other" in missing.stderr) == (1, True)

    def responses(pod: ScriptedPod) -> int:
        return sum(slot["responses"] for slot in activator.slots("app") if slot["address"] == pod.address)

    assert command("drain-pod", two.address)[0] == 0
    waiting = stack.enter_context(Client(activator.address))
    eventually(lambda: "ready" not in slots().values())
    waiting.send(request())
    eventually(lambda: activator.revision("app")["queued"] == 1)
    assert command("enable-pod", one.address) == (0, f"{one.address} of app is in service again\n")
    assert waiting.answer().body.decode() == one.address
    assert served_by() == {one.address}
    eventually(lambda: responses(one) == len(one.requests), "its counts do not begin anew")
    assert command("enable-pod", two.address)[0] == 0
    eventually(lambda: served_by() == {one.address, two.address})

    code, said = command("drain-pod", "10.9.9.9:1")
    assert code != 0 and f"it has no pod '10.9.9.9:1', but {', '.join(sorted([one.address, two.address]))}" in said
    done = cli("drain-pod", "unknown", one.address, "--admin", f"http://{activator.admin}")
    assert done.returncode == 1 and "there is no revision unknown" in done.stderr


def test_routing_by_revision_headers(stack: ExitStack, run_activator: RunActivator) -> None:
    """Where they are trusted they go before the host; one that names nothing known leaves it to the host."""
    pods = {name: stack.enter_context(ScriptedPod(serve)) for name in ("one", "two")}
    revisions = [{"name": name, "hosts": [f"{name}.test"], "pods": [pods[name].address]} for name in pods]
    trusting = run_activator(configured(revisions, trust_revision_headers=True))
    wary = run_activator(configured(revisions))
    for name, expected in (("two", "two"), ("three", "one")):
        headers = f"Knative-Serving-Namespace: default\r\nKnative-Serving-Revision: {name}\r\n"
        data = request(host="one.test", headers=headers)
        assert ask(trusting.address, data).body.decode() == pods[expected].address
        assert ask(wary.address, data).body.decode() == pods["one"].address


def test_an_unknown_host(stack: ExitStack, run_activator: RunActivator) -> None:
    pod = stack.enter_context(ScriptedPod(serve))
    activator = run_activator(configured([{"name": "a", "hosts": ["a.test", "*.b.test"], "pods": [pod.address]}]))
    with Client(activator.address) as client:
        for host in ("nobody.test", "b.test", "xa.test", "x.a.test"):
            answer = client.ask(request(host=host))
            assert (answer.status, answer.reason) == (404, "no_route")
            assert answer.body.decode() == f"no route matches the request: {host}\n"
            assert answer.header("content-type").startswith("text/plain")
        assert client.ask(request(host="a.test")).status == 200  # the connection goes on
    assert len(pod.requests) == 1


def test_requests_are_held_until_a_pod_is_up(stack: ExitStack, run_activator: RunActivator) -> None:
    ports = [free_port(), free_port()]
    pods = [f"127.0.0.1:{port}" for port in ports]
    activator = run_activator(configured([{"name": "a", "hosts": ["*"], "pods": pods}]))
    with ExitStack() as clients:
        waiting = [clients.enter_context(Client(activator.address)) for _ in range(10)]
        for client in waiting:
            client.send(request())
        eventually(lambda: activator.revision("a")["queued"] == 10)
        assert activator.revision("a")["waits_for"] == "a pod to become ready"
        first = stack.enter_context(ScriptedPod(serve, ports[0]))
        assert {client.answer().body.decode() for client in waiting} == {first.address}
        stack.enter_context(ScriptedPod(serve, ports[1]))
        activator.wait_ready_pods("a", 2)
        eventually(lambda: ask(activator.address, request()).body.decode() == pods[1])


@one_worker
def test_one_dead_of_two(stack: ExitStack, run_activator: RunActivator) -> None:
    """A request that the dead pod refuses is tried on the other; it is quarantined, and back when it answers."""
    living = stack.enter_context(ScriptedPod(serve))
    dying = ScriptedPod(serve)
    revision = {"name": "a", "hosts": ["*"], "policy": "round-robin", "pods": [living.address, dying.address]}
    activator = run_activator(configured([revision]))
    activator.wait_ready_pods("a", 2)
    answers = burst(activator.address, 20, request(method="POST"))
    assert Counter(one.body.decode() for one in answers if isinstance(one, Answer)) == {
        living.address: 10,
        dying.address: 10,
    }

    dying.close()
    eventually(lambda: all(slot["connections"]["open"] == 0 for slot in activator.slots("a") if slot["slot"] == 1))
    answers = burst(activator.address, 50, request(method="POST"))
    assert failures(answers) == []
    shown = activator.revision("a")
    assert sum(shown["retries"].values()) >= 1
    assert {slot["pod"]: slot["state"] for slot in shown["slots"]} == {
        living.address: "ready",
        dying.address: "quarantined",
    }
    seen = activator.revision("a")["retries"]
    assert failures(burst(activator.address, 50, request(method="POST"))) == []
    assert activator.revision("a")["retries"] == seen, "nothing is sent to a pod in quarantine"

    back = stack.enter_context(ScriptedPod(serve, dying.port))
    with Client(activator.address) as client:
        eventually(lambda: client.ask(request()).body.decode() == back.address, "it is picked again")
    activator.wait_ready_pods("a", 2)
    assert activator.revision("a")["failed"] == {}


def test_all_dead_and_one_comes_back(stack: ExitStack, run_activator: RunActivator) -> None:
    pods = [ScriptedPod(serve), ScriptedPod(serve)]
    revision = {"name": "a", "hosts": ["*"], "pods": [pod.address for pod in pods]}
    activator = run_activator(configured([revision]))
    activator.wait_ready_pods("a", 2)
    for pod in pods:
        pod.close()
    with Client(activator.address) as client:
        client.send(request(method="POST"))
        eventually(lambda: activator.revision("a")["queued"] == 1)
        eventually(lambda: {slot["state"] for slot in activator.slots("a")} == {"quarantined"})
        back = stack.enter_context(ScriptedPod(serve, pods[0].port))
        assert client.answer().body.decode() == back.address


class Crowd:
    """A pod's script that notices when two requests are in the pod at the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self.most = 0
        self.served = 0

    def __call__(self, side: PodSide) -> None:
        while True:
            side.request()
            with self._lock:
                self._inside += 1
                self.most = max(self.most, self._inside)
                self.served += 1
            time.sleep(0.002)
            with self._lock:
                self._inside -= 1
            side.answer()


def test_one_at_a_time_in_each_pod(stack: ExitStack, run_activator: RunActivator) -> None:
    """container_concurrency 1 under every policy: many clients, three pods each, never two requests in one pod."""
    crowds = {policy: [Crowd() for _ in range(3)] for policy in POLICIES}
    revisions = [
        {
            "name": policy,
            "hosts": [f"{policy}.test"],
            "policy": policy,
            "container_concurrency": 1,
            "pods": [stack.enter_context(ScriptedPod(crowd)).address for crowd in crowds[policy]],
        }
        for policy in POLICIES
    ]
    activator = run_activator(configured(revisions))
    clients, times = 12, 10

    async def visit(policy: str) -> list[int]:
        visitor = await Visitor.connect(activator.address)
        statuses = [(await visitor.ask(request(host=f"{policy}.test"))).status for _ in range(times)]
        await visitor.close()
        return statuses

    async def visit_all() -> list[list[int]]:
        return await asyncio.gather(*(visit(policy) for policy in POLICIES for _ in range(clients)))

    for policy in POLICIES:
        activator.wait_ready_pods(policy, 3)
    assert all(statuses == [200] * times for statuses in asyncio.run(visit_all()))
    for policy in POLICIES:
        assert [crowd.most for crowd in crowds[policy]] == [1, 1, 1], policy
        assert sum(crowd.served for crowd in crowds[policy]) == clients * times
        assert all(crowd.served > 0 for crowd in crowds[policy]), policy


def one_at_a_time(
    stack: ExitStack, run_activator: RunActivator, queue: dict[str, Any]
) -> tuple[ScriptedPod, Activator]:
    """A pod that takes one request at a time and answers when the test says so; the others wait as `queue` says."""

    def slow(side: PodSide) -> None:
        while True:
            side.request()
            side.wait()
            side.answer()

    pod = stack.enter_context(ScriptedPod(slow))
    revision = {"name": "a", "hosts": ["*"], "container_concurrency": 1, "queue": queue, "pods": [pod.address]}
    activator = run_activator(configured([revision]))
    activator.wait_ready_pods("a")
    return pod, activator


def test_a_full_line_is_refused_with_when_to_come_again(stack: ExitStack, run_activator: RunActivator) -> None:
    pod, activator = one_at_a_time(stack, run_activator, {"depth": 2})
    with ExitStack() as clients:
        waiting = []
        for count in range(3):
            client = clients.enter_context(Client(activator.address))
            client.send(request())
            waiting.append(client)
            eventually(lambda count=count: activator.revision("a")["requests"] == count + 1)  # type: ignore[misc]
        refused = ask(activator.address, request())
        assert (refused.status, refused.reason) == (503, "queue_full")
        assert 1 <= int(refused.header("retry-after")) <= 120
        pod.go_on()
        assert [client.answer().status for client in waiting] == [200, 200, 200]


def test_a_wait_that_is_too_long(stack: ExitStack, run_activator: RunActivator) -> None:
    pod, activator = one_at_a_time(stack, run_activator, {"timeout": "200ms"})
    with Client(activator.address) as first:
        first.send(request())
        eventually(lambda: pod.requests)
        late = ask(activator.address, request())
        assert (late.status, late.reason) == (504, "queue_timeout")
        pod.go_on()
        assert first.answer().status == 200
    assert len(pod.requests) == 1


# --- pods that cannot be reached ---


@pytest.mark.parametrize("was_up", [False, True])
def test_a_dead_pod_is_refused_with_its_cause_and_served_when_it_is_back(
    was_up: bool, stack: ExitStack, run_activator: RunActivator
) -> None:
    port = free_port()
    first = ScriptedPod(serve, port if was_up else 0)
    stack.callback(first.close)
    activator = run_activator(configured([{"name": "app", "hosts": ["*"], "pods": [f"127.0.0.1:{port}"]}]))
    if was_up:
        assert ask(activator.address, request()).status == 200
    first.close()
    answer = ask(activator.address, request())
    assert (answer.status, answer.reason) == (503, "revision_failed")
    cause = f"its pod cannot be reached (127.0.0.1:{port}: connection refused)"
    assert cause.encode() in answer.body
    queued = activator.revision("app")["queue"]["queued"]
    assert ask(activator.address, request()).status == 503
    assert activator.revision("app")["queue"]["queued"] == queued, "the next one is refused at once"
    assert activator.revision("app")["failure"] == cause
    assert len(activator.logged("cannot be reached")) == 1, "not one line for each request"
    again = stack.enter_context(ScriptedPod(serve, port))
    eventually(lambda: ask(activator.address, request()).status == 200, "it is back", timeout_s=5.0)
    assert not activator.revision("app")["failure"]
    assert again.requests


def test_a_short_absence_is_waited_out(stack: ExitStack, run_activator: RunActivator) -> None:
    """A pod that comes after some refused probes, and one for which requests wait without a bound."""
    ports = {name: free_port() for name in ("short", "patient", "dead")}
    revisions: list[dict[str, Any]] = [
        {"name": name, "hosts": [f"{name}.test"], "pods": [f"127.0.0.1:{port}"]} for name, port in ports.items()
    ]
    revisions[1] |= {"timeouts": {"unreachable": "0s"}}
    activator = run_activator(configured(revisions))
    with Client(activator.address) as short, Client(activator.address) as patient, Client(activator.address) as dead:
        for client, name in ((short, "short"), (patient, "patient"), (dead, "dead")):
            client.send(request(host=f"{name}.test"))
        asked = 'activator_pod_ready_validations_total{outcome="refused"} '
        eventually(lambda: number_of(activator, asked) > 30, "each has refused some probes")
        assert activator.revision("short")["queued"] == 1
        stack.enter_context(ScriptedPod(serve, ports["short"]))
        assert short.answer().status == 200
        assert dead.answer().reason == "revision_failed", "that is how long the default is"
        assert activator.revision("patient")["queued"] == 1
        stack.enter_context(ScriptedPod(serve, ports["patient"]))
        assert patient.answer().status == 200


def number_of(activator: Activator, beginning: str) -> float:
    lines = activator.ask("/metrics")[2].decode().splitlines()
    return next(float(line.removeprefix(beginning)) for line in lines if line.startswith(beginning))
