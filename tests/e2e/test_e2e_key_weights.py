"""The weights of users whose requests wait for one slot, in the exact order in which the pod serves them."""

from __future__ import annotations

import json
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import RunActivator
from tests.e2e.http_client import Client, request
from tests.e2e.pods import PodSide, ScriptedPod
from tests.e2e.running import Activator, configured, eventually

EACH = 16  # requests of each user


def config(address: str, alice: int, bob: int, workers: int) -> str:
    revision = {
        "name": "app",
        "hosts": ["*"],
        "pods": [address],
        "container_concurrency": 1,
        "queue": {"discipline": "fair"},
    }
    keys: list[dict[str, Any]] = [
        {"name": "alice", "key": "alices-secret-key", "weight": alice},
        {"name": "bob", "key": "bobs-secret-key", "weight": bob},
    ]
    return json.dumps(configured([revision], keys=keys, workers=workers))


class OneByOne:
    """A pod that serves one request at a time, when the test says so, and notes whose it was."""

    def __init__(self) -> None:
        self.served: list[str] = []
        self.begun = 0
        self.allowed = 0
        self.pod = ScriptedPod(self._serve)

    def _serve(self, side: PodSide) -> None:
        while True:
            target = side.request().target
            self.begun += 1
            if target != "/first":
                self.served.append(target[1:])
            eventually(lambda: self.allowed >= self.begun or side.pod.closing.is_set(), timeout_s=60.0)
            side.answer()

    def until(self, count: int) -> None:
        """Serve until `count` requests have begun behind the first one."""
        self.allowed = count
        eventually(lambda: self.begun == count + 1, f"{count} served")


@pytest.mark.parametrize("workers", [1, 2])
def test_two_users_share_one_slot_by_weight(run_activator: RunActivator, tmp_path: Path, workers: int) -> None:
    path, one = tmp_path / "a.json", OneByOne()
    with one.pod, ExitStack() as stack:
        path.write_text(config(one.pod.address, 3, 1, workers))
        activator = run_activator(arguments=["-c", str(path)])
        activator.wait_ready_pods("app")

        def send(user: str, target: str) -> None:
            client = stack.enter_context(Client(activator.address, 120.0))
            client.send(request(target, headers=f"X-Api-Key: {user}s-secret-key\r\n"))

        send("alice", "/first")
        eventually(lambda: one.begun == 1)
        for number in range(EACH):
            for user in ("alice", "bob"):
                send(user, f"/{user}")
            eventually(lambda number=number: waiting(activator) == 2 * (number + 1))  # type: ignore[misc]
        one.until(12)
        turn = ["alice"] * 3 + ["bob"]
        assert rotated(one.served, turn), one.served
        path.write_text(config(one.pod.address, 1, 1, workers))
        activator.signal(signal.SIGHUP)
        activator.wait_log(" reloaded")
        rest = EACH * 2 - 12
        one.until(EACH * 2)
        assert sorted(one.served) == ["alice"] * EACH + ["bob"] * EACH
        after = one.served[12 : 12 + 2 * (EACH - one.served[:12].count("alice"))]
        assert len(one.served[12:]) == rest and rotated(after, ["alice", "bob"]), one.served
        one.allowed += 1


def rotated(found: list[str], turn: list[str]) -> bool:
    """Return True if `found` repeats `turn`, from any of its places on."""
    long = turn * (len(found) // len(turn) + 2)
    return any(found == long[at : at + len(found)] for at in range(len(turn)))


def waiting(activator: Activator) -> int:
    count: int = activator.revision("app")["queue"]["waiting"]
    return count
