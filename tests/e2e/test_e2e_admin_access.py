"""Who may control the program: the token of the admin port, and pods that would lead to its own ports."""

from __future__ import annotations

import http.client
import json
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import RunActivator
from tests.e2e.http_client import ask, request
from tests.e2e.pods import ScriptedPod, serve
from tests.e2e.running import PATIENCE_S, Activator, cli, configured, eventually


def post(address: str, report: dict[str, str], token: str = "") -> tuple[int, Any]:
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
    connection = http.client.HTTPConnection(address, timeout=PATIENCE_S)
    try:
        connection.request("POST", "/pods", json.dumps(report), headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def push_address(activator: Activator) -> str:
    return activator.wait_log(r"pods may report themselves on (\S+)")


def test_the_token_from_the_file_to_the_commands(tmp_path: Path, run_activator: RunActivator) -> None:
    token = tmp_path / "token"
    token.write_text("s3cret-of-admin\n")
    with ScriptedPod(serve) as pod:
        revision = {"name": "a", "hosts": ["*"], "pods": [pod.address]}
        admin = {"listen": "0.0.0.0:0", "token": f"file:{token}"}
        activator = run_activator({"listen": "127.0.0.1:0", "admin": admin, "revisions": [revision]})
        activator.admin = activator.admin.replace("0.0.0.0", "127.0.0.1")
        for path in ("/healthz", "/readyz", "/metrics"):
            assert activator.ask(path)[0] == 200
        for path in ("/", "/debug/config", "/debug/revisions"):
            assert activator.ask(path)[0] == 401
        assert activator.command("/drain")[0] == 401
        url = f"http://{activator.admin}"
        refused = cli("status", "--admin", url)
        assert (refused.returncode, "the token is missing or wrong" in refused.stderr) == (3, True)
        assert cli("status", "--admin", url, "--token", "other").returncode == 3
        for given in ("s3cret-of-admin", f"file:{token}"):
            assert "default/a" in cli("status", "--admin", url, "--token", given).stdout
        file = tmp_path / "client.yaml"
        said = {"admin": {"listen": activator.admin, "token": f"file:{token}"}, "revisions": [revision]}
        file.write_text(json.dumps(said))
        assert "default/a" in cli("status", "-c", str(file)).stdout
        assert cli("drain", "-c", str(file)).returncode == 0
        assert activator.wait_end() == 0


@pytest.mark.parametrize("admin", ["0.0.0.0:0", {"listen": "0.0.0.0:0"}, {"listen": "[::]:0", "insecure": False}])
def test_an_open_admin_port_is_refused(tmp_path: Path, admin: Any) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(json.dumps({"admin": admin, "revisions": [{"name": "a", "hosts": ["*"], "pods": ["127.0.0.1:9"]}]}))
    for command in (("check", str(file)), ("run", "-c", str(file))):
        done = cli(*command)
        assert done.returncode == 1
        (line,) = done.stderr.splitlines()
        assert "lets other machines control the program: write `admin: {listen: " in line
    done = cli("run", "--listen", "127.0.0.1:0", "--admin", "0.0.0.0:8008", "--", "sleep", "1")
    assert (done.returncode, "lets other machines control" in done.stderr) == (1, True)


def test_no_pod_is_a_port_of_the_program(run_activator: RunActivator, tmp_path: Path) -> None:
    """By a report, by a file of pods, and by a name that leads there."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    pods = tmp_path / "pods.json"
    pods.write_text(json.dumps([f"127.0.0.1:{port}"]))
    revisions = [
        {"name": "by-report", "hosts": ["a.test"]},
        {"name": "by-file", "hosts": ["b.test"], "pods_file": str(pods)},
    ]
    activator = run_activator(
        configured(revisions, admin=f"127.0.0.1:{port}", push={"listen": "127.0.0.1:0", "token": "s3cret-of-push"})
    )
    shown = activator.ask("/debug/config")[2].decode()
    assert "s3cret-of-push" not in shown
    push = push_address(activator)
    for own in (activator.admin, activator.address, push):
        report = {"revision": "by-report", "pod": "p", "address": own, "state": "ready"}
        assert post(push, report, "s3cret-of-push") == (403, {"pod": "p", "outcome": "own_address"})
    assert activator.slots("by-report") == []
    eventually(lambda: activator.logged("is ignored: .* is a port of the activator itself"))
    assert activator.slots("by-file") == []


def test_without_a_token_pods_of_other_sources_cannot_be_reported(run_activator: RunActivator) -> None:
    with ScriptedPod(serve) as pod:
        revision = {"name": "a", "hosts": ["*"], "pods": [pod.address]}
        activator = run_activator(configured([revision], push={"listen": "127.0.0.1:0"}))
        activator.wait_ready_pods("a")
        (slot,) = activator.slots("a")
        report = {"revision": "a", "pod": slot["pod"], "address": pod.address, "state": "draining"}
        assert post(push_address(activator), report) == (403, {"pod": slot["pod"], "outcome": "foreign_pod"})
        assert ask(activator.address, request()).status == 200


def test_a_host_that_is_none(run_activator: RunActivator) -> None:
    activator = run_activator(configured([{"name": "a", "hosts": ["*"], "pods": ["127.0.0.1:9"]}]))
    for host in ("[", "]", "[x"):
        assert activator.ask("/healthz", headers={"Host": host})[0] == 403
    assert not activator.logged("Traceback")
