"""Pods that a name or a file gives: real name servers, real files, and requests that go on while both change."""

from __future__ import annotations

import json
import os
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from tests.control_plane.sources.fixed_pods.name_server import NameServer
from tests.e2e.conftest import RunActivator
from tests.e2e.http_client import Client, ask, request
from tests.e2e.pods import ScriptedPod, serve
from tests.e2e.running import Activator, configured, eventually


def addresses(activator: Activator) -> set[str]:
    return {slot["address"] for slot in activator.slots("a") if slot["state"] == "ready"}


def port_of(pod: ScriptedPod) -> str:
    return pod.address.rpartition(":")[2]


def revision(**more: Any) -> dict[str, Any]:
    return {"name": "a", "hosts": ["*"], "policy": "round-robin", **more}


class Load:
    """A client that asks all the time; whatever is no 200 is kept."""

    def __init__(self, address: str) -> None:
        self.bad: list[object] = []
        self.count = 0
        self._over = threading.Event()
        self._address = address
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(30.0)

    def _run(self) -> None:
        with Client(self._address) as client:
            while not self._over.is_set():
                answer = client.ask(request())
                self.count += 1
                if answer.status != 200:
                    self.bad.append(answer)


def test_services_come_and_go_without_a_lost_request(run_activator: RunActivator) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(NameServer())
        pods = [stack.enter_context(ScriptedPod(serve)) for _ in range(3)]

        def says(*chosen: ScriptedPod) -> None:
            server.records[("_http._tcp.app.test", "SRV")] = [f"1 1 {port_of(pod)} host.test." for pod in chosen]

        server.records[("host.test", "A")] = ["127.0.0.1"]
        says(*pods[:2])
        configuration = configured([revision(pods=[{"srv": "_http._tcp.app.test"}])], dns={"servers": [server.address]})
        activator = run_activator(configuration)
        activator.wait_ready_pods("a", 2)
        with Load(activator.address) as load:
            for chosen in (pods[1:], pods[:1], pods, pods[2:]):
                says(*chosen)
                wanted = {pod.address for pod in chosen}
                eventually(lambda: addresses(activator) == wanted, "the answer is applied")  # noqa: B023
            server.modes["_http._tcp.app.test"] = "servfail"
            activator.wait_log(r"SRV _http._tcp.app.test cannot be resolved: the name servers answered SERVFAIL")
            assert addresses(activator) == {pods[2].address}, "the old answer is kept"
            (problem,) = activator.revision("a")["problems"]
            assert problem == "SRV _http._tcp.app.test: the name servers answered SERVFAIL"
            before = load.count
            eventually(lambda: load.count > before + 20)
        assert load.bad == [] and load.count > 50


def test_a_name_that_does_not_exist_is_told_to_the_client(run_activator: RunActivator) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(NameServer())
        pod = stack.enter_context(ScriptedPod(serve))
        name = f"app.test:{port_of(pod)}"
        configuration = configured(
            [revision(pods=[name], timeouts={"unreachable": "500ms"})], dns={"servers": [server.address]}
        )
        activator = run_activator(configuration)
        answer = ask(activator.address, request())
        assert (answer.status, answer.reason) == (503, "revision_failed")
        cause = f"it has no pods ({name}: there is no such name (NXDOMAIN))"
        assert cause in answer.body.decode()
        server.records[("app.test", "A")] = ["127.0.0.1"]
        eventually(lambda: ask(activator.address, request()).status == 200, "it is found while requests come")
        assert not activator.revision("a")["failure"]


def test_a_name_server_that_says_nothing_keeps_the_program_serving_others(run_activator: RunActivator) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(NameServer())
        pod = stack.enter_context(ScriptedPod(serve))
        server.modes["app.test"] = "silent"
        other = {"name": "b", "hosts": ["b.test"], "pods": [pod.address]}
        activator = run_activator(
            configured([revision(pods=["app.test:1"]), other], dns={"servers": [server.address], "timeout": "1s"})
        )
        assert ask(activator.address, request(host="b.test")).status == 200, "at once"
        answer = ask(activator.address, request())
        assert (answer.status, answer.reason) == (503, "revision_failed")
        assert "the name servers did not answer in 1 s" in answer.body.decode()


def test_pods_of_a_file(run_activator: RunActivator, tmp_path: Path) -> None:
    with ExitStack() as stack:
        pods = [stack.enter_context(ScriptedPod(serve)) for _ in range(2)]
        path = tmp_path / "pods.json"

        def write(text: str) -> None:
            (tmp_path / "new").write_text(text)
            os.replace(tmp_path / "new", path)

        write(json.dumps([pods[0].address]))
        activator = run_activator(configured([revision(pods_file=str(path))]))
        activator.wait_ready_pods("a", 1)
        with Load(activator.address) as load:
            write(json.dumps([pods[1].address]))
            eventually(lambda: addresses(activator) == {pods[1].address}, "another list")
            write('["127.0.0.1:')
            activator.wait_log(r"pods\.json: it is neither JSON nor YAML: .*; its 1 pods stay")
            path.unlink()
            activator.wait_log(r"pods\.json: it cannot be read: no such file or directory; its 1 pods stay")
            assert addresses(activator) == {pods[1].address}
            write(f"- {pods[0].address}\n- {pods[1].address}\n")
            activator.wait_ready_pods("a", 2)
        assert load.bad == [] and load.count > 50
