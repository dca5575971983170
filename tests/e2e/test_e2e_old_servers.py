"""Servers whose heads have the shapes of long ago, behind `lenient_pods`."""

from __future__ import annotations

from tests.e2e.conftest import RunActivator
from tests.e2e.http_client import Client, request
from tests.e2e.pods import PodSide, ScriptedPod
from tests.e2e.running import configured


def test_an_old_server_behind_lenient_pods(run_activator: RunActivator) -> None:
    """Also the answers to its probes."""

    def old(side: PodSide) -> None:
        side.request()
        side.send(b"\nHTTP/1.0 200 OK\nServer : Old\nX-Long: a\n  b\nContent-Length: 3\n\nold")

    with ScriptedPod(old) as pod:
        revision = {"name": "app", "hosts": ["*"], "pods": [pod.address], "probe": {"path": "/ready"}}
        activator = run_activator(configured([{**revision, "lenient_pods": True}]))
        with Client(activator.address) as client:
            for _ in range(2):
                client.send(request())
                answer = client.answer()
                assert (answer.status, answer.body) == (200, b"old")
                assert answer.header("server") == "Old" and answer.header("x-long") == "a b"
