"""The requests that wait for a revision: in its JSON, in `activator status NAME` and on the page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.e2e.conftest import RunActivator
from tests.e2e.http_client import Client, request
from tests.e2e.pods import ScriptedPod, serve_or_hold
from tests.e2e.running import Activator, cli, configured, eventually

SHOWN_MAX = 20


@pytest.fixture
def pod() -> Iterator[ScriptedPod]:
    with ScriptedPod(serve_or_hold) as made:
        yield made


def started(run_activator: RunActivator, pod: ScriptedPod, workers: int) -> Activator:
    revision = {
        "name": "app",
        "hosts": ["*"],
        "container_concurrency": 1,
        "pods": [pod.address],
    }
    keys = [{"name": "alice", "key": "alices-key"}, {"name": "guest", "key": "none"}]
    return run_activator(configured([revision], workers=workers, keys=keys))


def waiting(activator: Activator) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = activator.revision("app")["waiting_requests"]
    return found


def wait_until(activator: Activator, stack: ExitStack, target: str, fields: str, queued: int) -> Client:
    """Send a request on a connection of its own, and return when so many requests wait."""
    client = stack.enter_context(Client(activator.address))
    client.send(request(target, headers=fields))
    eventually(lambda: activator.revision("app")["queued"] == queued, f"{queued} requests wait")
    return client


@pytest.mark.parametrize("workers", [1, 2])
def test_who_waits_since_when_and_for_how_long(run_activator: RunActivator, pod: ScriptedPod, workers: int) -> None:
    activator = started(run_activator, pod, workers)
    with ExitStack() as stack:
        clients = [wait_until(activator, stack, "/held", "", 0)]
        eventually(lambda: activator.revision("app")["in_flight"] == 1, "the pod has a request")
        clients.append(wait_until(activator, stack, "/second?token=secret", "Authorization: Bearer alices-key\r\n", 1))
        eventually(lambda: waiting(activator)[0]["waited_s"] >= 0.05, "it has waited for longer than the next one will")
        clients.append(wait_until(activator, stack, "/" + "x" * 1000, "", 2))
        one, two = waiting(activator)
        assert one["method"] == "GET" and one["target"].startswith("/second?token=") and "secret" not in one["target"]
        assert (one["user"], two["user"]) == ("alice", "guest")
        assert two["target"] == "/" + "x" * 255
        assert one["waited_s"] > two["waited_s"] and one["expected_s"] >= 1
        shown = cli("status", "app", "--admin", f"http://{activator.admin}").stdout.replace("\n", "")
        assert re.search(r" 1\. GET /second\?token=\S+, user alice: waits for \d+ s, probably \d+ s more", shown)
        assert re.search(r" 2\. GET /x+, user guest: waits for ", shown)
        pod.go_on()
        assert [client.answer().status for client in clients] == [200, 200, 200]
        assert waiting(activator) == []


@pytest.mark.parametrize("workers", [1, 2])
def test_only_the_first_ones_are_listed(run_activator: RunActivator, pod: ScriptedPod, workers: int) -> None:
    activator = started(run_activator, pod, workers)
    with ExitStack() as stack:
        wait_until(activator, stack, "/held", "", 0)
        eventually(lambda: activator.revision("app")["in_flight"] == 1, "the pod has a request")
        for number in range(SHOWN_MAX + 5):
            wait_until(activator, stack, f"/{number}", "", number + 1)
        assert [one["target"] for one in waiting(activator)] == [f"/{number}" for number in range(SHOWN_MAX)]
        pod.go_on()
