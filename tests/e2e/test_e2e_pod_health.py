"""Fixed pods under active health checks: out while they answer badly, back when they answer well, with the reason."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from tests.e2e.conftest import RunActivator
from tests.e2e.http_client import Client, request
from tests.e2e.pods import PodSide, ScriptedPod
from tests.e2e.running import Activator, cli, configured, eventually


class Sick:
    """A pod that answers its health path as it is told, and everything else well."""

    def __init__(self) -> None:
        self.mode = "well"
        self.pod = ScriptedPod(self._serve)

    def _serve(self, side: PodSide) -> None:
        while True:
            asked = side.request()
            if asked.target != "/health" or self.mode == "well":
                side.answer(self.pod.address.encode())
            elif self.mode == "fails":
                side.answer(b"ill", status="503 Service Unavailable")
            elif self.mode == "resets":
                side.reset()
                return
            elif self.mode == "trickles":
                side.send(b"HTTP/1.1 2")
                side.stall()
                return
            else:
                side.stall()
                return


def state_of(activator: Activator, address: str) -> tuple[str, str]:
    return next((one["state"], one["reason"]) for one in activator.slots("a") if one["address"] == address)


def test_a_pod_that_fails_its_checks_gets_no_requests_until_it_passes_them(run_activator: RunActivator) -> None:
    with ExitStack() as stack:
        sick, other = Sick(), Sick()
        stack.enter_context(sick.pod)
        stack.enter_context(other.pod)
        health: dict[str, Any] = {"http_get": "/health", "interval": "400ms", "rise": 2, "fall": 2}
        pods = [sick.pod.address, other.pod.address]
        activator = run_activator(
            configured([{"name": "a", "hosts": ["*"], "pods": pods, "policy": "round-robin", "health": health}])
        )
        activator.wait_ready_pods("a", 2)
        causes = {
            "fails": "it answered the probe with 503",
            "resets": "connection reset by peer",
            "stalls": "answering the probe took longer than 0.4 s",
            "trickles": "answering the probe took longer than 0.4 s",
        }
        for mode, cause in causes.items():
            sick.mode = mode
            eventually(lambda: state_of(activator, sick.pod.address)[0] == "quarantined", mode)
            reason = state_of(activator, sick.pod.address)[1]
            assert f"failed 2 health checks in a row: {cause}" in reason, mode
            assert state_of(activator, other.pod.address)[0] == "ready"
            with Client(activator.address) as client:
                for _ in range(10):
                    assert client.ask(request()).body.decode() == other.pod.address
            sick.mode = "well"
            with Client(activator.address) as client:  # the trial needs a request
                eventually(
                    lambda: client.ask(request()).status == 200 and state_of(activator, sick.pod.address)[0] == "ready",
                    f"back after {mode}",
                )
        activator.wait_log(r"the pod \S+ failed 2 health checks in a row: it answered the probe with 503")
        status = cli("status", "--admin", activator.admin).stdout
        assert sick.pod.address in status


def test_the_last_pod_is_taken_out_and_its_requests_are_told_why(run_activator: RunActivator) -> None:
    sick = Sick()
    with sick.pod:
        health = {"http_get": "/health", "interval": "100ms", "fall": 1}
        timeouts = {"unreachable": "500ms"}
        pods = [sick.pod.address]
        activator = run_activator(
            configured([{"name": "a", "hosts": ["*"], "pods": pods, "health": health, "timeouts": timeouts}])
        )
        activator.wait_ready_pods("a")
        sick.mode = "fails"
        eventually(lambda: state_of(activator, sick.pod.address)[0] == "quarantined", "out")
        with Client(activator.address) as client:
            answer = client.ask(request())
            assert (answer.status, answer.reason) == (503, "revision_failed")
            assert b"it answered the probe with 503" in answer.body
            sick.mode = "well"
            eventually(lambda: client.ask(request()).status == 200, "back")
