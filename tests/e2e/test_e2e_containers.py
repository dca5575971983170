"""Revisions whose pods are containers, on real engines: Podman and Docker, by the API that they share."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from activator.control_plane.sources.container.engine import Engine
from tests.conftest import Need
from tests.control_plane.sources.container.contract import check_contract
from tests.e2e.conftest import RunActivator
from tests.e2e.container_engines import IMAGE, PORT, Docker, Podman, RealEngine, RootlessPodman
from tests.e2e.http_client import Answer, ask, burst, failures, request
from tests.e2e.running import ROOT, Activator, cli, configured, eventually, is_dead

_PUBLISHED: set[int] = set()
WEB = "activator.revision=default/web"
SHORT = {"idle": "500ms", "stop": {"grace": "2s"}}


@pytest.fixture(
    scope="module",
    params=[Podman, *(pytest.param(kind, marks=pytest.mark.deep) for kind in (RootlessPodman, Docker))],
    ids=["podman", "rootless-podman", "docker"],
)
def engine(need: Need, request: pytest.FixtureRequest) -> Iterator[RealEngine]:
    kind: type[RealEngine] = request.param
    lacks = kind.missing()
    need(not lacks, lacks)
    engine = kind()
    try:
        engine.start()
        engine.import_image()
        yield engine
    finally:
        engine.close()


def published() -> str:
    """A port of this machine that no ephemeral one can take meanwhile: Podman chooses when it creates, not when it
    starts.
    """
    for port in range(20_000 + os.getpid() % 10_000, 32_000):
        with socket.socket() as sock:
            try:
                sock.bind(("127.0.0.1", port))
            except OSError:
                continue
            if port not in _PUBLISHED:
                _PUBLISHED.add(port)
                return f"127.0.0.1:{port}:{PORT}"
    raise AssertionError("no free port")


def revision(name: str, **container: Any) -> dict[str, Any]:
    return {"name": name, "hosts": [f"{name}.test"], "container": {**SHORT, **container}}


def on(engine: RealEngine, /, *revisions: dict[str, Any], **containers: Any) -> dict[str, Any]:
    return configured(list(revisions), containers={"engine": engine.engine, **containers})


def get(activator: Activator, name: str, path: str = "/") -> Answer:
    return ask(activator.address, request(path, host=f"{name}.test"))


def copies(activator: Activator, name: str) -> int:
    found: int = activator.revision(name)["processes"]["processes"]
    return found


def test_the_engine_holds_the_contract(engine: RealEngine) -> None:
    async def check() -> None:
        asked = Engine(str(engine.socket))
        try:
            await check_contract(asked, IMAGE, engine.HAS_CGROUPS)
        finally:
            await asked.close()

    asyncio.run(check())


def test_containers_come_with_requests_and_go_without(run_activator: RunActivator, engine: RealEngine) -> None:
    activator = run_activator(
        on(
            engine,
            revision("web", image=IMAGE, labels={"team": "ml"}),
            revision("missing", image="localhost/nowhere", pull="never"),
        )
    )
    answers = burst(activator.address, 8, request(host="web.test"))
    assert failures(answers) == []
    assert {one.body for one in answers if isinstance(one, Answer)} == {b"hello\n"}
    (made,) = engine.containers(WEB)
    assert made["Labels"]["team"] == "ml"
    assert {one["IP"] for one in made["Ports"]} == {"127.0.0.1"}
    missing_image = get(activator, "missing")
    assert (missing_image.status, missing_image.reason) == (503, "revision_failed")
    assert f"there is no image localhost/nowhere: {engine.TOOL} pull localhost/nowhere".encode() in missing_image.body
    eventually(lambda: copies(activator, "web") == 0, "back at zero")
    eventually(lambda: engine.containers(WEB) == [], "nothing of it is left")


@pytest.mark.deep
def test_when_containers_are_ready_and_why_they_are_not(run_activator: RunActivator, engine: RealEngine) -> None:
    says = ["sh", "-c", "echo 'cannot open the model' >&2; exit 3"]
    healthy = ["sh", "-c", "test -e /tmp/healthy"]
    activator = run_activator(
        on(
            engine,
            {**revision("web", image=IMAGE, max_scale=2), "container_concurrency": 1},
            revision("line", image=IMAGE, readiness={"log": "listening on port [0-9]+"}),
            revision("asked", image=IMAGE, readiness={"command": healthy}),
            revision("crash", image=IMAGE, command=says),
            {**revision("mute", image=IMAGE, command=["sleep", "60"]), "timeouts": {"startup": "1s"}},
        )
    )
    assert failures(burst(activator.address, 8, request(host="web.test"))) == []
    assert 1 <= len(engine.containers(WEB)) <= 2
    activator.command("/load/crash")
    with ThreadPoolExecutor(3) as clients:
        line, asked, mute = clients.map(lambda name: get(activator, name), ("line", "asked", "mute"))
    assert line.body == asked.body == b"hello\n"
    assert b"the program did not answer on port 8080 within 1 s" in mute.body
    activator.wait_log("default/crash#[0-9]+: the program exited with code 3: cannot open the model")
    shown = cli("logs", "line", "--admin", activator.admin)
    assert "listening on port 8080" in shown.stdout
    eventually(lambda: copies(activator, "web") == 0, "back at zero")


@pytest.mark.deep
def test_a_container_at_its_own_address(run_activator: RunActivator, engine: RealEngine) -> None:
    if not engine.HAS_ADDRESSES:
        pytest.skip("containers without root have no address that this machine can reach")
    activator = run_activator(on(engine, revision("web", image=IMAGE, address="own")))
    assert get(activator, "web").body == b"hello\n"
    (made,) = engine.containers(WEB)
    assert [one for one in made["Ports"] if one.get("PublicPort")] == []


@pytest.mark.deep
def test_a_container_that_needs_more_memory_than_it_may(run_activator: RunActivator, engine: RealEngine) -> None:
    if not engine.HAS_CGROUPS:  # it would take what this machine has
        activator = run_activator(on(engine, revision("modest", image=IMAGE, memory="16MiB")))
        assert get(activator, "modest").body == b"hello\n"
        activator.wait_log("default/modest#1: the container engine limits no memory")
        return
    greedy = ["sh", "-c", "tail /dev/zero"]  # it looks for the end of a line, and keeps what it has seen
    activator = run_activator(on(engine, revision("greedy", image=IMAGE, command=greedy, memory="16MiB")))
    answer = get(activator, "greedy")
    assert (answer.status, answer.reason) == (503, "revision_failed")
    assert b"more memory than allowed (`memory: 16777216`)" in answer.body


def test_a_container_that_exists_is_started_and_stopped_and_never_removed(
    run_activator: RunActivator, engine: RealEngine
) -> None:
    engine.run("create", "--name", "old", "-p", published(), IMAGE)
    activator = run_activator(on(engine, revision("old", existing="old"), revision("none", existing="nobody")))
    assert engine.state("old") in ("created", "configured")
    assert get(activator, "old").body == b"hello\n"
    assert b"there is no container nobody" in get(activator, "none").body
    eventually(lambda: engine.state("old") == "exited", "it is idle")
    activator.close()
    assert engine.state("old") == "exited"
    engine.remove("old")


@pytest.mark.deep
def test_a_container_that_somebody_else_stops_and_starts(run_activator: RunActivator, engine: RealEngine) -> None:
    engine.run("create", "--name", "old", "-p", published(), IMAGE)
    activator = run_activator(on(engine, revision("old", existing="old", idle="3s")))
    assert get(activator, "old").body == b"hello\n"
    # Stopped by somebody else: no crash, and there again with the next request.
    engine.run("stop", "-t", "2", "old")
    activator.wait_log("default/old#[0-9]+ was stopped by another program")
    assert get(activator, "old").body == b"hello\n"
    assert activator.revision("old")["processes"]["crashes"] == 0
    # Started by somebody else: stopped when it is idle.
    eventually(lambda: engine.state("old") == "exited", "it is idle")
    engine.run("start", "old")
    eventually(lambda: copies(activator, "old") == 1, "it counts as asked for")
    eventually(lambda: engine.state("old") == "exited", "it is idle again")
    # Left as it is at the end.
    assert get(activator, "old").body == b"hello\n"
    activator.close()
    assert engine.state("old") == "running"
    engine.remove("old")


def create_labelled(engine: RealEngine, name: str, *labels: str) -> None:
    words = [word for one in ("enable=true", "idle_timeout=500ms", *labels) for word in ("-l", f"activator.{one}")]
    engine.run("create", "--name", name, "-p", published(), *words, IMAGE)


def test_labels_declare_revisions(run_activator: RunActivator, engine: RealEngine) -> None:
    create_labelled(engine, "first", "host=first.test,second.test", "concurrency=5", "container.stop.grace=2s")
    create_labelled(engine, "wrong", "host=wrong.test", "concurrency=many")
    activator = run_activator(on(engine, discover=True))
    activator.wait_log('container wrong, label activator.concurrency: container_concurrency: found "many"')
    assert get(activator, "first").body == b"hello\n"
    assert get(activator, "second").body == b"hello\n"
    assert get(activator, "wrong").status == 404
    engine.remove("first", "wrong")
    eventually(lambda: "first" not in activator.revisions(), "it has gone")


@pytest.mark.deep
def test_containers_with_labels_come_and_go(run_activator: RunActivator, engine: RealEngine) -> None:
    create_labelled(engine, "first", "host=first.test,second.test")
    activator = run_activator(on(engine, discover=True))
    activator.wait_log("the container first is the revision default/first for first.test, second.test")
    create_labelled(engine, "rival", "host=second.test")
    activator.wait_log("container rival: the container first, which is older, has the host second.test already")
    create_labelled(engine, "late", "host=late.test")
    activator.wait_log("the container late is the revision default/late")
    assert get(activator, "late").body == b"hello\n"
    engine.remove("first")
    activator.wait_log("the container rival is the revision default/rival for second.test")
    eventually(lambda: "first" not in activator.revisions(), "it has gone")
    assert get(activator, "second").body == b"hello\n"
    assert get(activator, "first").status == 404
    activator.close()
    engine.remove("rival", "late")


def test_the_reaper_removes_the_containers_of_an_activator_that_was_killed(
    run_activator: RunActivator, engine: RealEngine
) -> None:
    engine.run("create", "--name", "bystander", "-l", "activator.instance=foreign", IMAGE)
    activator = run_activator(on(engine, revision("web", image=IMAGE, idle="60s")))
    assert get(activator, "web").status == 200
    activator.signal(signal.SIGKILL)
    activator.wait_end()
    eventually(lambda: engine.names_made() == ["bystander"], "the reaper has removed it")
    engine.run("rm", "bystander")


@pytest.mark.deep
def test_where_the_reaper_was_killed_the_next_activator_removes_them(
    run_activator: RunActivator, engine: RealEngine
) -> None:
    engine.run("create", "--name", "bystander", "-l", "activator.instance=foreign", IMAGE)
    web = revision("web", image=IMAGE, idle="60s")
    killed = run_activator(on(engine, web))
    assert get(killed, "web").status == 200
    for pid in killed.processes():
        os.kill(pid, signal.SIGKILL)
    killed.wait_end()
    assert len(engine.names_made()) == 2
    after = run_activator(on(engine, web))
    after.wait_log("removed the container .* of an activator that has ended")
    assert engine.names_made() == ["bystander"]
    engine.run("rm", "bystander")


@pytest.mark.deep
def test_programs_that_serve_go_on_while_the_engine_is_away(run_activator: RunActivator, engine: RealEngine) -> None:
    activator = run_activator(
        on(engine, revision("web", image=IMAGE, idle="60s"), revision("cold", image=IMAGE), patience="500ms")
    )
    assert get(activator, "web").status == 200
    engine.kill()
    with ThreadPoolExecutor(1) as client:
        try:
            meanwhile = client.submit(get, activator, "web")
            if engine.PUBLISHES_ALONE:
                assert meanwhile.result().body == b"hello\n"
            answer = get(activator, "cold")
            assert (answer.status, answer.reason) == (503, "revision_failed")
            assert b"cannot be reached: No such file or directory" in answer.body
        finally:
            engine.start()
        assert meanwhile.result().body == b"hello\n"  # it was held
    eventually(lambda: get(activator, "cold").status == 200, "it comes back by itself")
    engine.remove(*(one["Id"] for one in engine.containers(WEB)))
    # Of Docker the end is seen before the removal.
    activator.wait_log("default/web#[0-9]+: the (container was removed by another|program was ended by SIGKILL)")
    eventually(lambda: get(activator, "web").status == 200, "another is made in its place")


@pytest.mark.deep
def test_the_recipe_of_the_cookbook(run_activator: RunActivator, engine: RealEngine, tmp_path: Path) -> None:
    (recipe,) = re.findall(r"# recipe: containers\n(.*?)```", (ROOT / "docs/cookbook.md").read_text(), re.DOTALL)
    (tmp_path / "activator.yaml").write_text(recipe)
    engine.run("tag", IMAGE, "docker.io/traefik/whoami")
    engine.run("create", "--name", "wiki", "-p", published(), IMAGE)
    activator = run_activator(
        arguments=["-c", str(tmp_path / "activator.yaml")],
        ACTIVATOR_LISTEN="127.0.0.1:0",
        ACTIVATOR_ADMIN="127.0.0.1:0",
        ACTIVATOR_CONTAINERS__ENGINE=engine.engine,
    )
    for host in ("whoami.localhost", "wiki.localhost"):
        assert ask(activator.address, request(host=host)).body == b"hello\n"
    activator.close()
    engine.remove("wiki")


def test_check_says_what_is_missing(engine: RealEngine, tmp_path: Path) -> None:
    file = tmp_path / "activator.yaml"
    revisions = [revision("a", existing="nobody"), revision("b", image="localhost/nowhere", pull="never")]
    file.write_text(json.dumps(on(engine, *revisions), indent=1))
    told = cli("check", str(file)).stderr
    assert 'container.existing: there is no container "nobody"' in told
    assert f"{engine.TOOL} pull localhost/nowhere" in told
    file.write_text(json.dumps(on(engine, revision("a", image=IMAGE), engine=f"unix:{tmp_path}/none"), indent=1))
    assert "cannot be reached: No such file or directory" in cli("check", str(file)).stderr


def test_an_upgrade_takes_over_containers(run_activator: RunActivator, engine: RealEngine) -> None:
    """Created ones, existing ones and those that labels declare go on, and nothing is started twice."""
    engine.run("create", "--name", "old", "-p", published(), IMAGE)
    create_labelled(engine, "found", "host=found.test", "idle_timeout=60s")
    web, old = revision("web", image=IMAGE, idle="60s"), revision("old", existing="old", idle="60s")
    activator = run_activator(on(engine, web, old, discover=True))
    names = ("web", "old", "found")
    assert [get(activator, name).body for name in names] == [b"hello\n"] * 3
    (made,) = engine.containers(WEB)
    ids = {name: engine.run("inspect", "--format", "{{.Id}} {{.State.StartedAt}}", name) for name in ("old", "found")}
    with ThreadPoolExecutor(1) as clients:
        is_over = threading.Event()
        load = clients.submit(until_set, activator, names, is_over)
        try:
            for _ in range(2):  # the second one replaces a process that ends
                status, _, body = activator.command("/upgrade")
                told = json.loads(body)
                assert (status, told["problems"]) == (200, []), told
                assert [get(activator, name).body for name in names] == [b"hello\n"] * 3
        finally:
            is_over.set()
        assert load.result() > 3
    eventually(lambda: is_dead(told["former_process"]), "the second process has ended")
    other = run_activator(on(engine, revision("other", image=IMAGE)))
    assert get(other, "other").status == 200  # after its first sweep
    other.close()
    assert [one["Id"] for one in engine.containers(WEB)] == [made["Id"]]
    for name, before in ids.items():
        assert engine.run("inspect", "--format", "{{.Id}} {{.State.StartedAt}}", name) == before
    assert "httpd" not in cli("logs", "web", "--admin", activator.admin).stdout  # the reader goes on
    activator.close()
    assert engine.containers(WEB) == []
    engine.remove("old", "found")


def until_set(activator: Activator, names: Sequence[str], is_over: threading.Event) -> int:
    """Ask for each name in turn until the event; all must answer. Return how many did."""
    count = 0
    while not is_over.is_set():
        for name in names:
            answer = get(activator, name)
            assert (answer.status, answer.body) == (200, b"hello\n"), (name, answer)
            count += 1
    return count
