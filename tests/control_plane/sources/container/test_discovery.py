"""Which revisions labels declare, who has made a container, and which ones are swept away."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from activator.config.file import parse
from activator.config.labels import revision_of
from activator.control_plane.sources.container.creation import (
    INSTANCE_LABEL,
    MAKER_LABEL,
    OWNER_LABEL,
    address_of,
    port_of,
)
from activator.control_plane.sources.container.discovery import discovered
from activator.control_plane.sources.container.engine import Engine, EngineAwayError
from activator.control_plane.sources.container.owner import Run, has_ended, owner_of, parse_owner
from activator.control_plane.sources.container.sweeper import Sweeper
from activator.control_plane.sources.container.watcher import Watcher
from activator.control_plane.sources.process.reaping import Reaping
from activator.runtime.errors import ConfigError
from activator.runtime.tasks import TaskGroupOwner
from tests.control_plane.sources.container.fake_engine import Image, fake_engine

ENABLED = {"activator.enable": "true"}


def listed(container: str, created: int, **labels: str) -> dict[str, Any]:
    return {
        "Id": f"{created:064x}",
        "Names": [f"/{container}"],
        "Created": created,
        "State": "exited",
        "Labels": {**ENABLED, **{f"activator.{key}": value for key, value in labels.items()}},
    }


# --- labels ---


def test_labels_are_keys_of_a_revision() -> None:
    labels = {
        "activator.host": "a.test, *.b.test",
        "activator.port": "8080",
        "activator.concurrency": "5",
        "activator.idle_timeout": "5m",
        "activator.path": "/api/",
        "activator.health": "/healthz",
        "activator.timeouts.total": "10m",
        "activator.queue.depth": "7",
        "activator.no_wake": "[{path: /metrics}]",
        "traefik.enable": "true",
    }
    found = revision_of("web", labels)
    assert (found.name, found.hosts, found.container_concurrency) == ("web", ["a.test", "*.b.test"], 5)
    assert found.container is not None and found.match is not None
    container = found.container
    assert (container.existing, container.port, container.idle) == ("web", 8080, 300.0)
    assert (container.readiness.http_get, found.match.path) == ("/healthz", "/api/")
    assert (found.timeouts.total, found.queue.depth, found.no_wake[0].path) == (600.0, 7, "/metrics")
    assert revision_of("web", {"activator.host": "a", "activator.name": "b"}).name == "b"


@pytest.mark.parametrize(
    ("labels", "problem"),
    [
        ({}, "container web: hosts: `hosts` is required"),
        ({"activator.host": "a:80"}, 'container web, label activator.host: hosts[0]: found "a:80"'),
        ({"activator.host": "a", "activator.port": "0"}, "container web, label activator.port: container.port: found"),
        ({"activator.host": "a", "activator.hots": "b"}, "container web, label activator.hots:"),
        ({"activator.host": "a", "activator.container.image": "x"}, "set `image`, or `existing`"),
        ({"activator.host": "a", "activator.pods": "[b:1]"}, "set `pods` or `container`, not both"),
        ({"activator.host": "a", "activator.queue": "x", "activator.queue.depth": "7"}, "above it: use one of the two"),
        ({"activator.host": "a", "activator.x": "y" * 5_000}, "at most 4096"),
        ({"activator.host": "a", "activator.no_wake": "[{"}, "container web, label activator.no_wake"),
        ({f"activator.x{number}": "" for number in range(200)}, "more than 100 labels"),
    ],
)
def test_a_mistake_in_labels_names_the_label(labels: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        revision_of("web", labels)
    assert any(problem in one for one in caught.value.problems), caught.value.problems
    assert all(one.startswith("container web") for one in caught.value.problems)


def test_the_older_wins_and_the_file_before_all() -> None:
    text = "[{name: mine, hosts: [file.test], pods: ['h:1']}, {name: x, hosts: [x], container: {existing: named}}]"
    file = parse(f"revisions: {text}", "f", {}).revisions
    found = discovered(
        [
            listed("young", 3, host="a.test"),
            listed("old", 1, host="a.test,b.test"),
            listed("path", 4, host="a.test", path="/x/"),
            listed("wrong", 2, host="a.test", concurrency="many"),
            listed("file", 5, host="FILE.test."),
            listed("mine", 6, host="c.test"),
            listed("same", 7, host="d.test", name="old"),
            {**listed("ours", 8, host="e.test"), "Labels": {**ENABLED, INSTANCE_LABEL: "x"}},
            {**listed("off", 9, host="f.test"), "Labels": {"activator.enable": "false"}},
            listed("named", 10, host="g.test"),
            "nonsense",
            {"Labels": None},
        ],
        {"default/mine": file[0], "default/x": file[1]},
        set(),
    )
    assert sorted(found.found) == ["default/old", "default/path"]
    assert sorted(found.problems) == ["file", "mine", "named", "same", "wrong", "young"]
    assert "the container old, which is older, has the host a.test already" in found.problems["young"]
    assert found.problems["file"] == "container file: the file has the host file.test already: it is left out"
    assert "label activator.concurrency" in found.problems["wrong"]
    assert discovered({"message": "?"}, {}, set()).found == {}


def test_where_a_container_is_reached() -> None:
    container = revision_of("web", {"activator.host": "a"}).container
    assert container is not None
    shown: dict[str, Any] = {
        "Config": {"ExposedPorts": {"80/tcp": {}, "53/udp": {}}},
        "HostConfig": {"NetworkMode": "bridge", "PortBindings": None},
        "NetworkSettings": {
            "Ports": {"80/tcp": [{"HostIp": "::", "HostPort": "4001"}, {"HostIp": "0.0.0.0", "HostPort": "4000"}]},
            "Networks": {"bridge": {"IPAddress": "172.17.0.2"}},
        },
    }
    assert port_of(container, shown) == 80
    assert address_of(container, shown, 80, "published") == "127.0.0.1:4000"
    assert address_of(container, shown, 80, "own") == "172.17.0.2:80"
    assert address_of(container, shown, 81, "published") == "172.17.0.2:81"
    shown["HostConfig"]["NetworkMode"] = "host"
    assert address_of(container, shown, 80, "own") == "127.0.0.1:80"
    assert address_of(container, {}, 80, "published") == ""
    assert port_of(container, {"Config": None}) is None


# --- owners ---


def test_an_owner_has_ended_only_if_that_is_proven() -> None:
    here = owner_of(os.getpid())
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()

    async def running(container: str) -> bool:
        return container == "a" * 12

    def ended(**changed: Any) -> bool:
        return asyncio.run(has_ended(here._replace(**changed), here, running))

    assert parse_owner(here.label) == here
    assert not ended()
    assert ended(process=done.pid)
    assert ended(started="1")  # the number belongs to another process now
    assert ended(boot="before")
    assert not ended(boot="elsewhere", host="another-machine")
    assert not ended(namespace="pid:[1]", host="laptop")
    assert not ended(namespace="pid:[1]", host="a" * 12)
    assert ended(namespace="pid:[1]", host="b" * 12)
    for label in ("", "a/b/c/d/e", "a/b/1/d", "//1//", here.label + "/x"):
        assert parse_owner(label) is None
    assert here.process == os.getpid()


def test_the_sweeper_touches_only_what_is_proven_to_be_left(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with fake_engine(tmp_path / "engine.sock") as fake:
            fake.images["web"] = Image()
            engine = Engine(fake.path)
            sweeper, here = Sweeper(engine, Run("this-run")), owner_of(os.getpid())
            dead = here._replace(started="1").label
            fake.add("bystander", "web", Labels={"team": "ml"})
            fake.add("odd", "web", Labels={INSTANCE_LABEL: "x", OWNER_LABEL: "???"})
            fake.add("unowned", "web", Labels={INSTANCE_LABEL: "x"})
            fake.add("other", "web", Labels={INSTANCE_LABEL: "x", OWNER_LABEL: here.label})
            left = fake.add("left", "web", Labels={INSTANCE_LABEL: "x", OWNER_LABEL: dead})
            await left.start()
            # A process that took over from the maker may still run: the reaper of both tells. A reaper may be killed.
            fake.add("upgraded", "web", Labels={INSTANCE_LABEL: "x", MAKER_LABEL: dead, OWNER_LABEL: here.label})
            fake.add("no reaper", "web", Labels={INSTANCE_LABEL: "x", MAKER_LABEL: here.label, OWNER_LABEL: dead})
            fake.add("both", "web", Labels={INSTANCE_LABEL: "x", MAKER_LABEL: dead, OWNER_LABEL: dead})
            mine = {**sweeper.labels, "activator.identity": "default/app#1"}
            fake.add("known", "web", Labels=mine)
            fake.add("stray", "web", Labels={**mine, "activator.identity": "default/app#2"})
            sweeper.expect("default/app#1")
            await sweeper.sweep()
            assert sorted(one.name for one in fake.containers.values()) == [
                *("bystander", "known", "no reaper", "odd", "other", "stray", "unowned", "upgraded"),
            ]
            await sweeper.sweep()  # the second refresh
            assert "stray" not in {one.name for one in fake.containers.values()}
            assert sweeper.removed_total == 3
            await engine.close()

    asyncio.run(scenario())


def test_the_reaper_removes_what_carries_its_mark(tmp_path: Path) -> None:
    """The whole way: the process of its own reads the path of the socket, and speaks HTTP itself."""

    async def scenario() -> None:
        async with fake_engine(tmp_path / "engine.sock") as fake:
            fake.images["web"] = Image()
            reaping = await asyncio.to_thread(Reaping.start)
            ours = fake.add("ours", "web", Labels={INSTANCE_LABEL: reaping.mark})
            await ours.start()
            fake.add("other", "web", Labels={INSTANCE_LABEL: "another"})
            reaping.add_engine(fake.path)
            reaping.add_engine(str(tmp_path / "nothing.sock"))
            await asyncio.to_thread(reaping.close)
            assert [one.name for one in fake.containers.values()] == ["other"]

    asyncio.run(scenario())


# --- events ---


def test_a_flood_of_events_is_a_few_looks_and_a_break_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with fake_engine(tmp_path / "engine.sock") as fake:
            fake.images["web"] = Image()
            engine = Engine(fake.path)
            errors: list[BaseException] = []
            tasks = TaskGroupOwner(lambda name, error: errors.append(error))
            seen: list[int] = []

            async def refresh() -> None:
                found = await engine.call("GET", "/containers/json", {"filters": json.dumps({"label": []})})
                seen.append(len(found))

            watcher = Watcher(engine, tasks, refresh)
            tasks.start("watch", watcher.run())

            async def until(count: int) -> None:
                until_s = time.monotonic() + 10.0
                while not seen or seen[-1] != count:
                    assert time.monotonic() < until_s
                    await asyncio.sleep(0.01)

            await until(0)
            began_s, refreshes = time.monotonic(), watcher.refreshes_total
            for number in range(200):
                made = fake.add(f"c{number}", "web", Labels={})
                for _ in range(50):
                    fake.say("start", made)
            await until(200)
            assert watcher.refreshes_total - refreshes <= 3 + (time.monotonic() - began_s) / 0.25
            await fake.stop()
            fake.containers.clear()
            await fake.start()
            await until(0)
            fake.faults["/events"] = "garbage"
            fake.add("last", "web", Labels={})
            watcher.expedite()
            await until(1)
            await tasks.close()
            await engine.close()
            assert errors == []
            with pytest.raises(EngineAwayError):
                await Engine("", "DOCKER_HOST: tcp://1.2.3.4: only unix sockets").call("GET", "/version")

    asyncio.run(scenario())


def test_a_look_that_fails_unexpectedly_is_not_the_last(tmp_path: Path) -> None:
    """Of the watcher, of its events, and of the sweeper."""

    async def scenario() -> None:
        async with fake_engine(tmp_path / "engine.sock") as fake:
            engine = Engine(fake.path)
            errors: list[str] = []
            refreshes = 0

            async def refresh() -> None:
                nonlocal refreshes
                refreshes += 1
                if refreshes == 1:
                    raise TypeError("an answer that nobody expects")

            tasks = TaskGroupOwner(lambda name, error: errors.append(name))
            watching = tasks.start("watch", Watcher(engine, tasks, refresh).run())
            sweeper = _Failing(engine, Run("this-run"))
            sweeping = tasks.start("sweep", sweeper.run())
            until_s = time.monotonic() + 10.0
            while refreshes < 2 or sweeper.sweeps < 2:
                assert time.monotonic() < until_s
                await asyncio.sleep(0.01)
            assert not watching.done() and not sweeping.done()
            assert errors == ["discovery of containers"]
            await tasks.close()
            await engine.close()

    asyncio.run(scenario())


class _Failing(Sweeper):
    """Fails at its first refresh."""

    sweeps = 0

    async def sweep(self) -> None:
        self.sweeps += 1
        if self.sweeps == 1:
            raise TypeError("an answer that nobody expects")
        await super().sweep()


def test_discovery_needs_no_revision_in_the_file() -> None:
    config = parse("containers: {discover: true}", "f", {})
    assert config.revisions == []
