"""The independent comparison: what the watch has missed is repaired, what it has told is not taken back."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from activator.kubernetes.errors import RefusedError
from activator.kubernetes.object_store import ObjectStore
from activator.kubernetes.objects import ConfigMap, EndpointSlice, Metadata, Object
from activator.kubernetes.reflector import Reflector
from activator.kubernetes.relister import (
    KUBE_COMPARED_SINGLY_MAX,
    KUBE_EXPEDITED_MAX,
    KUBE_EXPEDITED_PER_ROUND_MAX,
    Relister,
)
from activator.kubernetes.resources import CONFIG_MAPS, ENDPOINT_SLICES, Scope, Selection
from lb.rng import Rng
from tests.conftest import storms
from tests.kubernetes.fake_api_server import FakeApiServer
from tests.kubernetes.fake_cluster import (
    Cluster,
    fake_cluster,
    on_a_loop,
    running,
    until,
    watching,
)
from tests.kubernetes.fake_objects import Event, RefusalError
from tests.kubernetes.kube_samples import Recorder, by_key, config_map, endpoint_slice

MAPS = Selection(CONFIG_MAPS)
SLICES = Selection(ENDPOINT_SLICES, labels="networking.internal.knative.dev/serviceType=Private")


def relister_of(cluster: Cluster, reflector: Reflector[Object], **settings: Any) -> Relister[Object]:
    return Relister(cluster.client, reflector, cluster.clock.now, Rng(2), cluster.pauses, **settings)


@asynccontextmanager
async def comparing(
    cluster: Cluster, selection: Selection[Object], **settings: Any
) -> AsyncIterator[tuple[Relister[Object], Reflector[Object], Recorder]]:
    """A reflector at its watch, its handler with the first list behind it, and a relister that compares when asked."""
    async with watching(cluster, selection) as (reflector, handler):
        handler.take()
        yield relister_of(cluster, reflector, **settings), reflector, handler


def drop(server: FakeApiServer) -> None:
    server.dropped = lambda event: True


@on_a_loop
async def test_every_kind_of_miss_is_repaired_and_counted(tmp_path: Path) -> None:
    async with fake_cluster(tmp_path) as cluster:
        server = cluster.server
        for name in ("changes", "goes", "replaced", "stays", "touched"):
            server.create("configmaps", config_map(name, x="1"))
        async with comparing(cluster, MAPS) as (relister, reflector, handler):
            assert await relister.reconcile() == 0
            drop(server)
            server.update("configmaps", "changes", {"data": {"x": "2"}})
            server.update("configmaps", "touched", {"unread": 1})
            server.delete("configmaps", "goes")
            server.delete("configmaps", "replaced")
            server.create("configmaps", config_map("replaced", x="1"))
            server.create("configmaps", config_map("comes"))
            assert await relister.reconcile() == 4
            assert handler.take() == [
                ("-", "goes"),
                ("~", "changes"),
                ("+", "comes"),
                ("-", "replaced"),
                ("+", "replaced"),
            ]
            assert handler.missed_names == ["changes", "touched"]
            assert relister.repairs_total == {
                "missed_delete": 1,
                "missed_change": 1,
                "missed_add": 1,
                "missed_recreate": 1,
                "version_only": 1,
            }
            assert await relister.reconcile() == 0
            assert relister.rounds_total == {"whole": 3}
            assert reflector.contents.tombstones == 1
            server.bookmark()
            await until(lambda: reflector.contents.tombstones == 0)
            assert (reflector.lists_total, reflector.watches_total) == (1, 1)


def lists(server: FakeApiServer) -> list[str]:
    """What was asked for since the last call: all, or one by its name."""
    asked = [query.get("fieldSelector", "all") for verb, _, query in server.requests if verb == "list"]
    del server.requests[:]
    return asked


@on_a_loop
async def test_objects_themselves_are_asked_for_where_versions_differ(tmp_path: Path) -> None:
    async with fake_cluster(tmp_path) as cluster:
        server = cluster.server
        names = [f"m{number:02}" for number in range(30)]
        for name in names:
            server.create("configmaps", config_map(name, x="1"))
        async with comparing(cluster, MAPS, page_objects=10) as (relister, reflector, _):
            lists(server)
            assert await relister.reconcile() == 0 and lists(server) == ["all"] * 3
            server.create("secrets", {"metadata": {"name": "s"}})  # the list is of another version
            assert await relister.reconcile() == 0 and lists(server) == ["all"] * 3
            drop(server)
            for name in ("m03", "m07"):
                server.update("configmaps", name, {"data": {"x": "2"}})
            server.delete("configmaps", "m05")
            assert await relister.reconcile() == 3
            asked = lists(server)
            assert asked[:3] == ["all"] * 3
            assert sorted(asked[3:]) == [f"metadata.name=m0{number}" for number in (3, 5, 7)]
            for name in names[10 : 11 + KUBE_COMPARED_SINGLY_MAX]:
                server.update("configmaps", name, {"data": {"x": "3"}})
            assert await relister.reconcile() == KUBE_COMPARED_SINGLY_MAX + 1
            assert lists(server) == ["all"] * 6  # of 29 objects: their versions, then all themselves
            assert relister.rounds_total == {"whole": 4}
            assert {thing.data["x"] for thing in reflector.store.values()} == {"1", "2", "3"}


@on_a_loop
async def test_a_store_that_is_wrong_without_any_event_is_repaired(tmp_path: Path) -> None:
    async with fake_cluster(tmp_path) as cluster:
        for name in ("a", "b", "c"):
            cluster.server.create("configmaps", config_map(name, x="1"))
        async with comparing(cluster, MAPS) as (relister, reflector, handler):
            there = reflector.store["default", "b"]
            reflector.contents.deleted(there.metadata)  # nobody sent that
            assert handler.take() == [("-", "b")]
            assert await relister.reconcile() == 1
            assert handler.take() == [("+", "b")] and reflector.store["default", "b"] == there


@on_a_loop
async def test_an_object_that_cannot_be_read_is_counted_each_time(tmp_path: Path) -> None:
    async with fake_cluster(tmp_path) as cluster:
        cluster.server.create("configmaps", config_map("good", x="1"))
        cluster.server.create("configmaps", {**config_map("bad"), "data": {"x": 1}})
        async with comparing(cluster, MAPS) as (relister, reflector, _):
            before = reflector.decoding.failures_total
            for number in (1, 2, 3):
                assert await relister.reconcile() == 0
                assert reflector.decoding.failures_total == before + number


@on_a_loop
async def test_a_round_that_fails_midway_repairs_the_next_time(tmp_path: Path) -> None:
    async with fake_cluster(tmp_path) as cluster:
        server = cluster.server
        for name in ("a", "b"):
            server.create("configmaps", config_map(name, x="1"))
        async with comparing(cluster, MAPS) as (relister, reflector, _):
            drop(server)
            for name in ("a", "b"):
                server.update("configmaps", name, {"data": {"x": "2"}})
            asked = 0

            def refused(verb: str, path: str) -> RefusalError | None:
                nonlocal asked
                asked += 1
                return RefusalError(500, "InternalError", "no") if asked == 3 else None

            server.refused = refused
            with pytest.raises(RefusedError):
                await relister.reconcile()
            assert sorted(thing.data["x"] for thing in reflector.store.values()) == ["1", "2"]
            assert relister.rounds_total == {} and relister.repairs_total == {"missed_change": 1}
            assert await relister.reconcile() == 1
            assert {thing.data["x"] for thing in reflector.store.values()} == {"2"}


@pytest.mark.parametrize("seed", storms(range(20)))
def test_whatever_is_lost_the_store_is_the_cluster_after_a_comparison(tmp_path: Path, seed: int) -> None:
    """Events are dropped by chance, objects come, change, go and are replaced, and the store itself loses some."""

    @on_a_loop
    async def story() -> None:
        chance = random.Random(seed)
        async with fake_cluster(tmp_path) as cluster:
            server = cluster.server
            names = [f"m{number:02}" for number in range(30)]
            there = {name for name in names if chance.random() < 0.7}
            for name in sorted(there):
                server.create("configmaps", config_map(name, x="0"))
            async with comparing(cluster, MAPS, page_objects=4) as (relister, reflector, _):
                for step in range(40):
                    is_lost = chance.random() < 0.5
                    server.dropped = lambda _: is_lost  # noqa: B023 - asked within this step
                    for name in chance.sample(names, chance.choice([0, 1, 3, 20])):
                        if name not in there:
                            server.create("configmaps", config_map(name, x=str(step)))
                            there.add(name)
                        elif chance.random() < 0.5:
                            server.update("configmaps", name, {"data": {"x": str(step)}})
                        else:
                            server.delete("configmaps", name)
                            there.remove(name)
                    if reflector.store and chance.random() < 0.2:
                        reflector.contents.deleted(chance.choice(list(reflector.store.values())).metadata)
                    await relister.reconcile()
                    listed = await cluster.client.list_page(CONFIG_MAPS.collection(), {})
                    assert reflector.store == {one.key: one for one in reflector.decoding.list(listed).items or ()}

    story()


@on_a_loop
async def test_events_that_come_after_their_repair_are_stale(tmp_path: Path) -> None:
    async with fake_cluster(tmp_path) as cluster:
        server = cluster.server
        for name in ("changes", "goes"):
            server.create("configmaps", config_map(name, x="1"))
        async with comparing(cluster, MAPS) as (relister, reflector, handler):
            held_back: list[Event] = []

            def hold_back(event: Event) -> bool:
                held_back.append(event)
                return True

            server.dropped = hold_back
            server.update("configmaps", "changes", {"data": {"x": "2"}})
            server.update("configmaps", "changes", {"data": {"x": "3"}})
            server.update("configmaps", "goes", {"data": {"x": "4"}})
            server.delete("configmaps", "goes")
            server.create("configmaps", config_map("comes", x="5"))
            assert await relister.reconcile() == 3
            assert handler.take() == [("-", "goes"), ("~", "changes"), ("+", "comes")]
            for event in held_back:
                server.watchers[0].tell(event)
            await until(lambda: reflector.events_total.total() == 5)
            assert handler.take() == []
            assert reflector.store["default", "changes"].data == {"x": "3"}
            assert ("default", "goes") not in reflector.store
            assert reflector.contents.stale_total == 4  # the DELETED found nothing to delete
            server.dropped = lambda event: False
            server.create("configmaps", config_map("goes", x="6"))
            await until(lambda: handler.take() == [("+", "goes")])


@on_a_loop
async def test_what_the_watch_tells_while_a_list_is_under_way_stands(tmp_path: Path) -> None:
    """The list is taken at one version; then, before its answer is here, the watch tells of later ones."""
    async with fake_cluster(tmp_path) as cluster:
        server = cluster.server
        for name in ("changes", "goes", "stays"):
            server.create("configmaps", config_map(name, x="1"))
        async with comparing(cluster, MAPS, page_objects=1) as (relister, _, handler):
            lists = server.verbs().count("list")

            def refused(verb: str, path: str) -> RefusalError | None:
                if verb == "list" and server.verbs().count("list") == lists + 2:  # the second page
                    server.update("configmaps", "changes", {"data": {"x": "2"}})
                    server.delete("configmaps", "goes")
                    server.create("configmaps", config_map("comes"))
                return None

            server.refused = refused
            assert await relister.reconcile() == 0
            await until(lambda: len(handler.told) == 3)
            assert handler.take() == [("~", "changes"), ("-", "goes"), ("+", "comes")]
            assert relister.repairs_total.total() == 0


@on_a_loop
async def test_what_somebody_waits_for_is_compared_more_often(tmp_path: Path) -> None:
    async with fake_cluster(tmp_path) as cluster:
        server = cluster.server
        server.create("endpointslices", endpoint_slice("other", [1], service="other-private"))
        async with comparing(cluster, SLICES, interval_s=30.0) as (relister, _, handler):
            await relister.run_due_rounds()  # whole
            drop(server)
            server.create("endpointslices", endpoint_slice("hello-x", [2], service="hello-private"))
            server.create("endpointslices", endpoint_slice("other-y", [3], service="other-private"))
            scope = Scope("default", (("serving.knative.dev/revision", "hello"),))
            assert relister.expedite(scope) and relister.expedite(scope)
            cluster.clock.pass_time(1.0)
            await relister.run_due_rounds()
            assert handler.take() == [("+", "hello-x")]
            assert relister.rounds_total == {"whole": 1, "expedited": 1}
            _, path, query = server.requests[-1]
            assert path == "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
            assert query["labelSelector"] == f"{SLICES.labels},serving.knative.dev/revision=hello"
            server.delete("endpointslices", "hello-x")
            server.delete("endpointslices", "other")
            await relister.run_due_rounds()  # too early
            assert handler.take() == []
            cluster.clock.pass_time(1.0)
            relister.relax(scope)  # the other still waits
            await relister.run_due_rounds()
            assert handler.take() == [("-", "hello-x")]
            relister.relax(scope)
            cluster.clock.pass_time(1.0)
            requests = len(server.requests)
            await relister.run_due_rounds()
            assert len(server.requests) == requests
            cluster.clock.pass_time(30.0)
            await relister.run_due_rounds()
            assert handler.take() == [("-", "other"), ("+", "other-y")]


@on_a_loop
async def test_it_is_woken_when_something_is_due_and_not_else(tmp_path: Path) -> None:
    async with (
        fake_cluster(tmp_path) as cluster,
        comparing(cluster, MAPS, interval_s=30.0) as (relister, reflector, _),
        running(relister),
    ):
        server, clock = cluster.server, cluster.clock

        async def passed(seconds: int) -> list[str]:
            """What was asked for meanwhile."""
            lists(server)
            for _ in range(seconds):
                clock.pass_time(1.0)
                relister.wake_if_due()
                for _ in range(20):
                    await asyncio.sleep(0)
                await until(lambda: not reflector.list_lock.locked())
            return lists(server)

        assert await passed(14) == [], "the first comes after half of the interval at the earliest"
        assert await passed(16) == ["all"]
        assert await passed(60) == ["all"] * 2
        scope = Scope("default", name="a")
        assert relister.expedite(scope)
        assert [one for one in await passed(5) if one != "all"] == ["metadata.name=a"] * 5
        relister.relax(scope)
        assert [one for one in await passed(5) if one != "all"] == []


@on_a_loop
async def test_an_object_by_name(tmp_path: Path) -> None:
    async with fake_cluster(tmp_path) as cluster:
        cluster.server.create("configmaps", config_map("a"))
        cluster.server.create("configmaps", config_map("b"))
        async with comparing(cluster, MAPS) as (relister, reflector, _):
            drop(cluster.server)
            cluster.server.delete("configmaps", "a")
            cluster.server.delete("configmaps", "b")
            assert await relister.reconcile(Scope("default", name="a")) == 1
            assert list(reflector.store) == [("default", "b")]
            assert cluster.server.requests[-1][2]["fieldSelector"] == "metadata.name=a"


@on_a_loop
async def test_hurries_are_bounded(tmp_path: Path) -> None:
    async with fake_cluster(tmp_path) as cluster:
        relister = relister_of(cluster, cluster.reflector(MAPS, Recorder()))
        assert all(relister.expedite(Scope("default", name=f"m{n}")) for n in range(KUBE_EXPEDITED_MAX))
        assert not relister.expedite(Scope("default", name="one more"))
        assert relister.expedite(Scope("default", name="m0"))


@on_a_loop
async def test_many_expedited_have_their_turns_one_after_the_other(tmp_path: Path) -> None:
    async with fake_cluster(tmp_path) as cluster, comparing(cluster, MAPS) as (relister, _, _):
        await relister.run_due_rounds()
        names = [f"m{number}" for number in range(2 * KUBE_EXPEDITED_PER_ROUND_MAX + 1)]
        for name in names:
            relister.expedite(Scope("default", name=name))
        del cluster.server.requests[:]
        for rounds in (1, 2, 3):
            cluster.clock.pass_time(1.0)
            await relister.run_due_rounds()
            assert len(cluster.server.requests) == rounds * KUBE_EXPEDITED_PER_ROUND_MAX
        asked = [query["fieldSelector"].removeprefix("metadata.name=") for _, _, query in cluster.server.requests]
        assert asked == [*names, *names[: 3 * KUBE_EXPEDITED_PER_ROUND_MAX - len(names)]]


@on_a_loop
async def test_a_failed_round_is_counted_and_the_next_waits_longer(tmp_path: Path) -> None:
    async with fake_cluster(tmp_path) as cluster, comparing(cluster, MAPS, interval_s=5.0) as (relister, reflector, _):
        busy = RefusalError(429, "TooManyRequests", "later", retry_after_s=60)
        cluster.server.refusals = [("list", busy)]
        await relister.run_due_rounds()
        assert relister.failed_rounds_total == 1 and relister.rounds_total == {}
        cluster.clock.pass_time(59.0)
        await relister.run_due_rounds()
        assert cluster.server.verbs().count("list") == 2
        cluster.clock.pass_time(17.0)
        await relister.run_due_rounds()
        assert relister.rounds_total == {"whole": 1}
        assert reflector.errors_total == {} and reflector.watches_total == 1


@on_a_loop
async def test_a_server_whose_time_went_back_is_listed_anew(tmp_path: Path) -> None:
    """As after a restored backup: the watch would wait for versions that may never come."""
    async with fake_cluster(tmp_path) as cluster:
        server = cluster.server
        server.create("configmaps", config_map("a", x="new"))
        async with comparing(cluster, MAPS) as (relister, reflector, handler):
            server.objects.version = 50
            old = server.collection("configmaps").objects["default", "a"]
            old["metadata"]["resourceVersion"] = "40"
            old["data"] = {"x": "old"}
            server.compact("configmaps")
            assert await relister.reconcile() == 0
            await until(lambda: reflector.lists_total == 2 and server.watchers)
            assert handler.take() == [("~", "a"), ("=", 1)]
            assert reflector.version == "50"


def test_versions_that_are_no_numbers() -> None:
    """Then the last telling counts, except for what an event told while the list was under way."""
    handler = Recorder()
    contents = contents_of(handler)
    contents.replace(by_key(a_map("a", "v-x", "1"), a_map("b", "v-x", "1"), a_map("c", "v-x", "1")))
    handler.take()
    contents.begin_comparison()
    contents.added_or_modified(a_map("a", "v-z", "2"))
    repairs = contents.repair(by_key(a_map("a", "v-y", "1"), a_map("b", "v-y", "3")), "v-y", None)
    assert handler.take() == [("~", "a"), ("-", "c"), ("~", "b")]
    assert repairs == {"missed_delete": 1, "missed_change": 1}
    contents.added_or_modified(a_map("b", "v-a", "4"))
    assert handler.take() == [("~", "b")]


def contents_of(handler: Recorder) -> ObjectStore[ConfigMap]:
    return ObjectStore("configmaps", handler)


def a_map(name: str, version: str, value: str) -> ConfigMap:
    return ConfigMap(Metadata(name, "default", f"uid-{name}", version), {"x": value})


@on_a_loop
async def test_the_task_goes_round_by_itself(tmp_path: Path) -> None:
    async with fake_cluster(tmp_path) as cluster:
        handler = Recorder()
        reflector = cluster.reflector(SLICES, handler)
        relister: Relister[EndpointSlice] = relister_of(cluster, reflector)

        class Checks:
            async def run(self) -> None:
                while True:
                    await cluster.pauses(1.0)
                    relister.wake_if_due()

        async with running(reflector), running(relister), running(Checks()):
            await until(lambda: cluster.server.watchers)
            drop(cluster.server)
            cluster.server.create("endpointslices", endpoint_slice("h", [1]))
            await until(lambda: ("+", "h") in handler.told)
            assert relister.spent_s >= 0 and relister.compared_s > 0
