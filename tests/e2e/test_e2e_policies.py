"""Policies as a user sees them: through the file, over real sockets, by who answers."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import pytest

from tests.e2e.conftest import RunActivator
from tests.e2e.http_client import Client, request
from tests.e2e.pods import PodSide, ScriptedPod, serve
from tests.e2e.running import Activator, configured, eventually


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


@pytest.fixture
def pods(stack: ExitStack) -> list[ScriptedPod]:
    return [stack.enter_context(ScriptedPod(serve)) for _ in range(4)]


def ready(run_activator: RunActivator, listed: Sequence[ScriptedPod | dict[str, object]], **keys: object) -> Activator:
    pods = [one.address if isinstance(one, ScriptedPod) else one for one in listed]
    activator = run_activator(configured([{"name": "a", "hosts": ["*"], "pods": pods, **keys}]))
    activator.wait_ready_pods("a", len(pods))
    return activator


def answered(activator: Activator, count: int, headers: str = "") -> Counter[str]:
    with Client(activator.address) as client:
        return Counter(client.ask(request(headers=headers)).body.decode() for _ in range(count))


def test_weighted(pods: list[ScriptedPod], run_activator: RunActivator) -> None:
    """Weights 0, 1, 1 (unsaid) and 8, 300 requests; the bounds are 6 standard deviations."""
    listed: list[ScriptedPod | dict[str, object]] = [
        {"address": pods[0].address, "weight": 0},
        {"address": pods[1].address, "weight": 1},
        pods[2],
        {"address": pods[3].address, "weight": 8},
    ]
    activator = ready(run_activator, listed, policy="weighted")
    assert [slot["weight"] for slot in activator.slots("a")] == [0, 1, 1, 8]
    found = answered(activator, 300)
    assert found[pods[0].address] == 0
    assert 200 <= found[pods[3].address] <= 280
    assert min(found[pods[1].address], found[pods[2].address]) >= 1


def test_ewma(stack: ExitStack, run_activator: RunActivator) -> None:
    """Of two pods one takes 1 s: after an answer of each the other has nearly all.

    So long because peaks are believed: had the machine a pause that is longer, the other would be the slow one.
    """

    def slow(side: PodSide) -> None:
        while True:
            side.request()
            time.sleep(1.0)  # what makes it slow
            side.answer(side.pod.address.encode())

    both = [stack.enter_context(ScriptedPod(serve)), stack.enter_context(ScriptedPod(slow))]
    activator = ready(run_activator, both, policy="ewma")
    found = answered(activator, 200)
    assert found[both[1].address] < 100, "of 200; usually it is two or three"
    assert sum(found.values()) == 200


@pytest.mark.parametrize(
    ("hash_on", "header"),
    [
        pytest.param({"header": "X-User"}, "X-User: {}\r\n", id="header"),
        pytest.param({"cookie": "session"}, "Cookie: theme=dark; session={}\r\n", id="cookie", marks=pytest.mark.deep),
    ],
)
def test_consistent_hash(
    pods: list[ScriptedPod], run_activator: RunActivator, hash_on: dict[str, str], header: str
) -> None:
    """Each user has a pod, the same after a restart; users are spread; who is nobody is spread as well."""
    first = ready(run_activator, pods, policy="consistent-hash", hash_on=hash_on)
    homes = {user: answered(first, 3, header.format(user)) for user in range(40)}
    assert all(len(found) == 1 for found in homes.values())
    many = [answered(first, 1, header.format(user)) for user in range(300)]
    assert len({address for found in many for address in found}) >= 3, "ports are chance's, and so are the shares"
    assert len(answered(first, 60)) == 4
    second = ready(run_activator, pods[::-1], policy="consistent-hash", hash_on=hash_on)
    assert {user: answered(second, 3, header.format(user)) for user in range(40)} == homes


def test_consistent_hash_by_the_clients_address(pods: list[ScriptedPod], run_activator: RunActivator) -> None:
    """All clients of this test have one address."""
    activator = ready(run_activator, pods, policy="consistent-hash")
    assert len(answered(activator, 10) + answered(activator, 10)) == 1


def test_a_sticky_pod_that_is_full_or_gone_is_no_reason_to_wait(
    stack: ExitStack, pods: list[ScriptedPod], run_activator: RunActivator
) -> None:
    activator = ready(run_activator, pods, policy="consistent-hash")
    (home,) = answered(activator, 1)
    next(pod for pod in pods if pod.address == home).close()
    (heir,) = answered(activator, 5)
    assert heir != home


def test_slow_start(stack: ExitStack, pods: list[ScriptedPod], run_activator: RunActivator) -> None:
    """A pod that comes later is new, gets a little, and is there when the others are full."""
    late = ScriptedPod(serve)
    late.close()
    listed = [pods[0].address, late.address]
    revision = {"name": "a", "hosts": ["*"], "policy": "round-robin", "slow_start": "1h", "pods": listed}
    activator = run_activator(configured([revision]))
    activator.wait_ready_pods("a", 1)
    assert answered(activator, 5) == {pods[0].address: 5}
    eventually(lambda: answered(activator, 1))
    stack.enter_context(ScriptedPod(serve, late.port))
    activator.wait_ready_pods("a", 2)
    shown = {slot["pod"]: slot["warming"] for slot in activator.slots("a")}
    assert shown == {pods[0].address: False, late.address: True}
    found = answered(activator, 300)
    # The first is seconds old itself, so the ramp is the ratio of the two ages: at most a half each, but for chance.
    assert found[pods[0].address] >= 150 - 52  # 6 standard deviations
