"""Pods that are asked as their revision's probe says: those that report themselves, without a list or a process, and
fixed ones that listen before they are ready.
"""

from __future__ import annotations

import http.client
import http.server
import json
import threading
from typing import Any

from tests.e2e.conftest import RunActivator, one_worker
from tests.e2e.http_client import Answer, Client, ask, burst, failures, request
from tests.e2e.running import PATIENCE_S, configured, eventually
from tests.e2e.single_pods import SinglePods

REVISION = {
    "name": "model",
    "hosts": ["*"],
    "container_concurrency": 1,
    "probe": {"path": "/who", "identity_header": "X-Pod"},
}


def report(to: str, identity: str, address: str, state: str) -> tuple[int, dict[str, Any]]:
    """What a pod reports of itself; the status of the answer and the answer."""
    connection = http.client.HTTPConnection(to, timeout=PATIENCE_S)
    try:
        said = {"revision": "model", "pod": identity, "address": address, "state": state}
        connection.request("POST", "/pods", json.dumps(said), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        found: dict[str, Any] = json.loads(answer.read())
        return answer.status, found
    finally:
        connection.close()


class ReportingPod(http.server.ThreadingHTTPServer):
    """Says who it is, once it is ready."""

    def __init__(self, identity: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.identity = identity
        self.is_ready = False
        self.asked: list[str] = []
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def close(self) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()

    def report(self, to: str, state: str) -> tuple[int, dict[str, Any]]:
        return report(to, self.identity, f"127.0.0.1:{self.server_address[1]}", state)


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        pod = self.server
        assert isinstance(pod, ReportingPod)
        pod.asked.append(self.path)
        self.send_response(503 if self.path == "/who" and not pod.is_ready else 200)
        self.send_header("X-Pod", pod.identity)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *arguments: object) -> None:
        pass


@one_worker
def test_pods_that_nobody_lists_serve_once_they_have_said_so_and_answered(run_activator: RunActivator) -> None:
    activator = run_activator(configured([REVISION], push={"listen": "127.0.0.1:0"}))
    reports = activator.wait_log(r" report themselves on (\S+)")
    pod = ReportingPod("uid-1")
    try:
        assert pod.report(reports, "ready") == (409, {"pod": "uid-1", "outcome": "not_validated"})
        pod.is_ready = True
        assert pod.report(reports, "ready") == (200, {"pod": "uid-1", "outcome": "applied"})
        activator.wait_ready_pods("model")
        for _ in range(3):
            assert ask(activator.address, request()).status == 200
        assert pod.asked == ["/who", "/who", "/who", "/", "/", "/"], "asked twice, then once on the one connection"
        assert pod.report(reports, "draining") == (200, {"pod": "uid-1", "outcome": "applied"})
        activator.wait_ready_pods("model", 0)
    finally:
        activator.signal(15)
        assert activator.wait_end() == 0
        pod.close()


def test_a_request_waits_until_a_pod_that_listens_says_that_it_is_ready(run_activator: RunActivator) -> None:
    pod = ReportingPod("uid-1")
    try:
        address = f"127.0.0.1:{pod.server_address[1]}"
        revision = {"name": "model", "hosts": ["*"], "pods": [address], "probe": {"path": "/who", "host": "pod.test"}}
        activator = run_activator(configured([revision]))
        with Client(activator.address) as client:
            client.send(request())
            eventually(lambda: activator.revision("model")["queued"] == 1)
            before = len(pod.asked)
            eventually(lambda: len(pod.asked) >= before + 20, "asked every few milliseconds while somebody waits")
            assert set(pod.asked) == {"/who"}, "nothing else goes to a pod that is not ready"
            pod.is_ready = True
            assert client.answer().status == 200
        activator.signal(15)
        assert activator.wait_end() == 0
    finally:
        pod.close()


def test_a_pod_of_many_names_never_has_more_requests_than_its_limit(run_activator: RunActivator) -> None:
    """A list has its address, and it reports itself by one new name after another while it is full."""
    limit, names, requests = 3, 20, 600
    with SinglePods(1, service_s=0.005, limit=limit) as pods:
        (address,) = pods.addresses
        revision = {"name": "model", "hosts": ["*"], "container_concurrency": limit, "pods": [address]}
        activator = run_activator(configured([revision], push={"listen": "127.0.0.1:0"}))
        reports = activator.wait_log(r" report themselves on (\S+)")
        activator.wait_ready_pods("model")
        answers: list[Answer | Exception] = []
        crowd = threading.Thread(target=lambda: answers.extend(burst(activator.address, requests, request())))
        crowd.start()
        try:
            for number in range(names):
                served = len(pods.pods[0].served)
                found = report(reports, f"uid-{number}", address, "ready")
                assert found == (200, {"pod": f"uid-{number}", "outcome": "applied"})
                eventually(lambda served=served: len(pods.pods[0].served) > served + 5 or not crowd.is_alive())  # type: ignore[misc]
        finally:
            crowd.join()
        assert failures(answers) == [] and len(answers) == requests
        assert (pods.pods[0].violations, pods.pods[0].most) == ([], limit)
        live = [slot["pod"] for slot in activator.slots("model") if slot["state"] != "draining"]
        assert live == [f"uid-{names - 1}"]
        activator.signal(15)
        assert activator.wait_end() == 0
