"""Commands as they are typed: what they print, how they end, and what a running activator makes of a new file."""

from __future__ import annotations

import json
import re
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import RunActivator
from tests.e2e.http_client import Client, ask, request
from tests.e2e.pods import PodSide, ScriptedPod, serve
from tests.e2e.running import OWN_PROCESSES, SERVING, Activator, cli, configured, eventually, process_revision

GOOD = """\
listen: 127.0.0.1:0
revisions:
  - name: a
    hosts: [a.test]
    pods: [127.0.0.1:9001]
"""
BAD = """\
listen: 127.0.0.1:0
colour: red
revisions:
  - name: a
    hosts: [a.test]
    container_concurrency: many
    pods: [nonsense]
"""


def test_version() -> None:
    done = cli("version")
    assert done.returncode == 0
    assert re.fullmatch(r"activator \d+\.\d+\.\d+ \((compiled|plain Python)\)\n", done.stdout)


def test_schema() -> None:
    done = cli("schema")
    assert done.returncode == 0
    schema = json.loads(done.stdout)
    assert {"listen", "admin", "revisions"} <= set(json.dumps(schema).replace('"', " ").split())


def test_check(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text(GOOD)
    bad.write_text(BAD)
    done = cli("check", str(good))
    assert (done.returncode, done.stderr) == (0, "")
    done = cli("check", str(bad))
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert [re.search(r"bad\.yaml:(\d+)", line)[1] for line in lines] == ["2", "6", "7"]  # type: ignore[index]
    assert all(line.startswith("activator: ") for line in lines)
    assert "colour" in lines[0]
    assert "many" in lines[1]
    assert "nonsense" in lines[2]


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["fly"],
        ["run", "--colour"],
        ["run", "--"],
        ["run", "--listen", "127.0.0.1:0"],
        ["run", "-c", "x.yaml", "--", "true"],
        ["check"],
        ["run", "--listen", "99999", "--", "true"],
        ["run", "--listen", "foo", "--", "true"],
        ["run", "--listen", "", "--", "true"],
        ["run", "--listen", ":18080", "--", "true"],
        ["run", "--admin", "99999", "--", "true"],
        ["run", "--admin", "127.0.0.1:0"],
    ],
    ids=" ".join,
)
def test_wrong_usage(words: list[str]) -> None:
    done = cli(*words)
    assert done.returncode == 2
    assert done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("option", ["--listen", "--admin"])
@pytest.mark.parametrize("typed", ["99999", "foo", "1.2.3:80"])
def test_what_is_no_address_is_told_in_one_line(option: str, typed: str) -> None:
    done = cli("run", option, typed, "--", "true")
    expected = (
        f'activator: {option}: found "{typed}", expected a port, host:port such as 127.0.0.1:8080, or unix:/path\n'
    )
    assert (done.returncode, done.stderr) == (2, expected)


def test_a_port_alone_is_one_of_this_machine(run_activator: RunActivator) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    activator = run_activator(arguments=["--listen", str(port), "--admin", "0", "--", *SERVING])
    assert activator.address == f"127.0.0.1:{port}"
    assert activator.admin.startswith("127.0.0.1:")
    assert ask(activator.address, request()).status == 200


def test_one_address_for_clients_and_admin(tmp_path: Path) -> None:
    done = cli("run", "--listen", "18080", "--admin", "18080", "--", "true")
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert done.stderr.startswith("activator: 127.0.0.1:18080: is the address of clients and the admin port")


def test_files_that_cannot_be_run(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text(BAD)
    (tmp_path / "broken.yaml").write_text("listen: [")
    (tmp_path / "empty.yaml").write_text("")
    for name in ("absent.yaml", "bad.yaml", "broken.yaml", "empty.yaml"):
        done = cli("run", "-c", name, cwd=tmp_path)
        assert done.returncode == 1, name
        assert all(line.startswith(f"activator: {name}") for line in done.stderr.splitlines()), done.stderr
    done = cli("run", cwd=tmp_path)
    assert done.returncode == 1
    assert "activator.yaml: there is no such file" in done.stderr


@pytest.mark.parametrize("which", ["listen", "admin"])
def test_a_port_in_use(tmp_path: Path, which: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        path = tmp_path / "activator.yaml"
        revision = process_revision(SERVING, min_scale=1)
        path.write_text(json.dumps({**configured([revision]), which: address}))
        done = cli("run", "-c", str(path))
    assert done.returncode == 3
    last = done.stderr.splitlines()[-1]
    assert last.startswith("activator: ")
    assert address in last
    assert "in use" in last
    assert "Traceback" not in done.stderr


def test_a_port_that_may_not_be_used(tmp_path: Path) -> None:
    done = cli("run", "--listen", "192.0.2.1:80", "--admin", "", "--", "true")
    assert done.returncode == 3
    assert "192.0.2.1:80" in done.stderr


def test_an_address_of_another_machine(tmp_path: Path) -> None:
    done = cli("run", "--listen", "192.0.2.1:8080", "--admin", "", "--", "true")
    expected = "cannot listen on 192.0.2.1:8080: this machine has no such address; `ip address` shows those it has"
    assert (done.returncode, expected in done.stderr) == (3, True), done.stderr


def test_status(run_activator: RunActivator) -> None:
    with ScriptedPod(serve) as pod:
        revisions: list[dict[str, Any]] = [
            {"name": "a", "hosts": ["a.test"], "pods": [pod.address]},
            {"name": "b", "hosts": ["b.test"], "process": {"command": SERVING}},
        ]
        activator = run_activator(configured(revisions))
        activator.wait_ready_pods("a")
        done = cli("status", "--admin", f"http://{activator.admin}")
        assert done.returncode == 0
        assert "default/a" in done.stdout
        assert pod.address in done.stdout
        assert "ready" in done.stdout
        done = cli("status", "--json", "--admin", activator.admin)
        assert [one["name"] for one in json.loads(done.stdout)["revisions"]] == ["a", "b"]


def test_why_so_many_processes(run_activator: RunActivator) -> None:
    process = {"command": SERVING, "max_scale": 2, "target_concurrency": 10}
    with ScriptedPod(serve) as pod:
        fixed = {"name": "fixed", "hosts": ["fixed.test"], "pods": [pod.address]}
        activator = run_activator(configured([{"name": "app", "hosts": ["app.test"], "process": process}, fixed]))
        admin = ("--admin", f"http://{activator.admin}")
        assert "No pod, and no request is here." in cli("status", "--why", "app", *admin).stdout
        assert ask(activator.address, request(host="app.test")).status == 200
        done = cli("status", "--why", *admin)
        assert done.returncode == 0
        assert "default/app: wanted 1 (" in done.stdout
        assert "0 to 1 (" in done.stdout
        assert "at a target of 10 for each pod" in done.stdout
        assert "default/fixed: not scaled here" in done.stdout
        missing = cli("status", "--why", "other", *admin)
        assert (missing.returncode, missing.stdout) == (1, "")
        assert "there is no revision other; `activator status` lists them" in missing.stderr
        shown = activator.revisions()
        assert shown["app"]["scaling"]["changed"]["to"] == 1
        assert "scaling" not in shown["fixed"]
        _, _, metrics = activator.ask("/metrics")
    assert b'activator_scaling_wanted_pods{namespace="default",revision="app"} 1.0' in metrics


def test_a_program_that_cannot_start_is_still_told_when_nobody_asks_for_it(run_activator: RunActivator) -> None:
    process = {"command": [sys.executable, "-c", "raise SystemExit('no model file')"], "idle": "500ms"}
    activator = run_activator(configured([{"name": "app", "hosts": ["*"], "process": process}]))
    admin = ("--admin", f"http://{activator.admin}")
    assert ask(activator.address, request()).reason == "revision_failed"
    eventually(lambda: activator.revision("app")["scaling"]["wanted"] == 0)
    eventually(lambda: activator.revision("app")["failure"] is None, "the next request may start it")
    why = cli("status", "--why", "app", *admin).stdout
    assert "  the last run failed: the program exited with code 1: no model file\n" in why
    assert "the last run failed" in cli("status", *admin).stdout.replace("\n", " ").replace("  ", " ")
    assert json.loads(activator.ask("/debug/overview")[2])["revisions"][0]["state"] == "degraded"


def test_a_revision_that_does_not_exist(run_activator: RunActivator) -> None:
    activator = run_activator(configured([process_revision(SERVING)]))
    pod = ["127.0.0.1:1"]
    one = (["status"], ["status", "--why"], ["load"], ["unload"], ["restart"], ["logs"], ["requests"], ["drain-pod"])
    for words in (*one, ["status", "--watch"], ["requests", "--json"], ["requests", "-f"], ["enable-pod"]):
        typed = ["ap", *(pod if words[0].endswith("-pod") else [])]
        done = cli(*words, *typed, "--admin", f"http://{activator.admin}")
        expected = (1, "", "activator: there is no revision ap; did you mean app?\n")
        assert (done.returncode, done.stdout, done.stderr) == expected, words
    done = cli("load", "default/nobody", "--admin", f"http://{activator.admin}")
    expected = (1, "", "activator: there is no revision default/nobody; `activator status` lists them\n")
    assert (done.returncode, done.stdout, done.stderr) == expected


def test_requests_of_a_revision_that_keeps_no_records(run_activator: RunActivator) -> None:
    pods = {"hosts": ["*"], "pods": ["127.0.0.1:9"]}
    recording = {"name": "b", **pods, "hosts": ["b.test"], "record": {}}
    activator = run_activator(configured([{"name": "a", **pods}, recording]))
    done = cli("requests", "a", "--admin", f"http://{activator.admin}")
    assert (done.returncode, done.stdout.split()[0]) == (0, "TIME")
    assert done.stderr == "a keeps no records of its requests; set `record: {}` for it, and reload the file\n"
    for words in (["b"], []):
        done = cli("requests", *words, "--admin", f"http://{activator.admin}")
        assert (done.returncode, done.stdout.split()[0], done.stderr) == (0, "TIME", "")


def test_nobody_there_to_ask() -> None:
    for command in ("status", "drain"):
        done = cli(command, "--admin", "http://127.0.0.1:1")
        assert done.returncode == 3
        assert len(done.stderr.splitlines()) == 1
        assert "no activator answers there" in done.stderr


# --- a new file -----------------------------------------------------------------------------------------------------


def by_signal(activator: Activator) -> None:
    activator.signal(signal.SIGHUP)


def by_request(activator: Activator) -> None:
    activator.command("/reload")


@pytest.mark.parametrize("reload", [by_signal, by_request])
def test_reload(run_activator: RunActivator, tmp_path: Path, reload: Callable[[Activator], None]) -> None:
    """A bad file is refused and the old one goes on; a good one adds, changes and removes revisions."""
    with ExitStack() as stack:
        pods = {name: stack.enter_context(ScriptedPod(serve)) for name in "abc"}

        def revision(name: str, **more: Any) -> dict[str, Any]:
            return {"name": name, "hosts": [f"{name}.test"], "pods": [pods[name].address], **more}

        def status(host: str) -> int:
            return ask(activator.address, request(host=host)).status

        first = configured([revision("a"), revision("b")])
        activator = run_activator(first)
        activator.may_log_errors = True
        path = tmp_path / "activator0.yaml"
        assert (status("a.test"), status("b.test"), status("c.test")) == (200, 200, 404)

        path.write_text(path.read_text().replace('"name"', '"nome"'))
        reload(activator)
        activator.wait_log("reload rejected: .*nome")
        assert (status("a.test"), status("b.test"), status("c.test")) == (200, 200, 404)

        with Client(activator.address) as client:
            assert client.ask(request(host="a.test")).status == 200
            moved = revision("a", hosts=["new.test"], container_concurrency=3, policy="least-connections")
            path.write_text(json.dumps(configured([moved, revision("c")])))
            reload(activator)
            activator.wait_log(" reloaded")
            eventually(lambda: set(activator.revisions()) == {"a", "c"})
            assert client.ask(request(host="new.test")).body.decode() == pods["a"].address
            assert client.ask(request(host="c.test")).body.decode() == pods["c"].address
            assert client.ask(request(host="a.test")).status == 404
            assert client.ask(request(host="b.test")).status == 404
        shown = activator.revision("a")
        assert (shown["policy"], shown["container_concurrency"]) == ("least-connections", 3)
        assert [slot["limit"] for slot in shown["slots"]] == [3]


def test_reload_adds_and_removes_pods(run_activator: RunActivator, tmp_path: Path) -> None:
    with ExitStack() as stack:
        pods = [stack.enter_context(ScriptedPod(serve)).address for _ in range(3)]
        activator = run_activator(configured([{"name": "a", "hosts": ["*"], "pods": pods[:2]}]))
        activator.wait_ready_pods("a", 2)
        revision = {"name": "a", "hosts": ["*"], "pods": pods[1:]}
        (tmp_path / "activator0.yaml").write_text(json.dumps(configured([revision])))
        activator.signal(signal.SIGHUP)
        eventually(
            lambda: {(one["pod"], one["state"]) for one in activator.slots("a")} == {(p, "ready") for p in pods[1:]}
        )
        for _ in range(10):
            assert ask(activator.address, request()).body.decode() in pods[1:]


def test_a_request_at_a_removed_pod_that_closes_unanswered_goes_elsewhere(
    run_activator: RunActivator, tmp_path: Path
) -> None:
    """The pod's kept connection ends without a byte of an answer while the pod drains: GET goes to another pod."""

    def closes(side: PodSide) -> None:
        while True:
            one = side.request()
            if one.target == "/second":
                side.wait()
                return
            side.answer(side.pod.address.encode())

    with ScriptedPod(closes) as leaving, ScriptedPod(serve) as staying:
        revision = {"name": "a", "hosts": ["*"], "policy": "first-available", "pods": [leaving.address]}
        activator = run_activator(configured([revision]))
        with Client(activator.address) as client:
            assert client.ask(request("/first")).body.decode() == leaving.address
            client.send(request("/second"))
            eventually(lambda: len(leaving.requests) == 2)
            path = tmp_path / "activator0.yaml"
            path.write_text(json.dumps(configured([{**revision, "pods": [staying.address]}])))
            activator.signal(signal.SIGHUP)
            eventually(
                lambda: staying.address in {one["pod"] for one in activator.slots("a") if one["state"] == "ready"}
            )
            leaving.go_on()
            answer = client.answer()
        assert (answer.status, answer.body.decode()) == (200, staying.address)


def test_reload_ends_the_programs_of_a_removed_revision(run_activator: RunActivator, tmp_path: Path) -> None:
    """Those who wait are told; what is in flight ends in its own time, and only then does its program."""
    keep = {"name": "keep", "hosts": ["keep.test"], "process": {"command": SERVING}}
    gone = {
        "name": "gone",
        "hosts": ["gone.test"],
        "container_concurrency": 1,
        "process": {"command": SERVING, "max_scale": 1},
    }
    activator = run_activator(configured([keep, gone]))
    done = tmp_path / "done"
    with Client(activator.address) as busy, Client(activator.address) as waiting:
        busy.send(request(f"/until{done}", host="gone.test"))
        eventually(lambda: activator.revision("gone")["in_flight"] == 1)
        waiting.send(request(host="gone.test"))
        eventually(lambda: activator.revision("gone")["queued"] == 1)
        (tmp_path / "activator0.yaml").write_text(json.dumps(configured([keep])))
        activator.signal(signal.SIGHUP)
        answer = waiting.answer()
        assert (answer.status, answer.reason) == (503, "revision_removed")
        assert ask(activator.address, request(host="gone.test")).status == 404
        done.touch()
        assert busy.answer().status == 200
    eventually(lambda: len(activator.processes()) == OWN_PROCESSES, "only its own are left")
    assert ask(activator.address, request(host="keep.test")).status == 200


def test_a_reload_applies_limits_and_names_what_it_could_not_apply(run_activator: RunActivator, tmp_path: Path) -> None:
    configuration = configured([process_revision(SERVING)])
    activator = run_activator(configuration)
    file = tmp_path / "activator0.yaml"
    five_fields = request(headers="A: 1\r\nB: 2\r\nC: 3\r\nD: 4\r\n")
    with Client(activator.address) as before:
        for changed, needs_restart, status_then in (
            ({"limits": {"headers": 4}, "dns": {"servers": ["127.0.0.1"]}}, ["dns"], 431),
            ({}, [], 200),
        ):
            file.write_text(json.dumps({**configuration, **changed}))
            status, _, body = activator.command("/reload")
            assert (status, json.loads(body)) == (200, {"problems": [], "needs_restart": needs_restart})
            # Workers are told, not asked: each applies it within its next turn.
            eventually(partial(_is_answered, activator.address, five_fields, status_then))
            before.send(five_fields)
            assert before.answer().status == 200, "what is about a request holds for new connections"


def _is_answered(address: str, asked: bytes, status: int) -> bool:
    return ask(address, asked).status == status


def test_without_a_file_there_is_nothing_to_reload(run_activator: RunActivator) -> None:
    activator = run_activator(arguments=["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--", *SERVING])
    activator.signal(signal.SIGHUP)
    status, _, body = activator.command("/reload")
    assert (status, json.loads(body)) == (400, {"problems": ["started without a file: there is nothing to reload"]})
    assert ask(activator.address, request()).status == 200


def test_the_environment_is_laid_over_the_file(run_activator: RunActivator) -> None:
    with ScriptedPod(serve) as pod:
        configuration = configured([{"name": "a", "hosts": ["*"], "pods": [pod.address]}])
        activator = run_activator(configuration, ACTIVATOR_LIMITS__HEADER_BYTES="1KiB", ACTIVATOR_ADMIN="")
        assert activator.admin == ""
        assert ask(activator.address, request(headers=f"X: {'x' * 2000}\r\n")).status == 431
        assert ask(activator.address, request()).status == 200
