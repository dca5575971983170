"""The reflector against a server over real sockets; time is the test's."""

from __future__ import annotations

from pathlib import Path

from activator.kubernetes.objects import EndpointSlice
from activator.kubernetes.reflector import KUBE_EVENTS_PER_TURN_MAX
from activator.kubernetes.resources import CONFIG_MAPS, ENDPOINT_SLICES, Selection
from tests.kubernetes.fake_cluster import fake_cluster, on_a_loop, running, until, watching
from tests.kubernetes.kube_samples import Recorder, config_map, endpoint, endpoint_slice

SLICES = Selection(ENDPOINT_SLICES, labels="serving.knative.dev/revisionUID")


@on_a_loop
async def test_lists_and_then_follows(tmp_path: Path) -> None:
    async with fake_cluster(tmp_path) as cluster:
        cluster.server.create("configmaps", config_map("a", x="1"))
        cluster.server.create("configmaps", config_map("b"))
        handler = Recorder()
        reflector = cluster.reflector(Selection(CONFIG_MAPS), handler)
        assert reflector.age_s(cluster.clock.now()) == float("inf")
        async with running(reflector):
            await until(lambda: cluster.server.watchers)
            assert reflector.synced
            assert handler.take() == [("+", "a"), ("+", "b"), ("=", 2)]
            cluster.server.update("configmaps", "a", {"data": {"x": "2"}})
            cluster.server.create("configmaps", config_map("c"))
            cluster.server.delete("configmaps", "b")
            await until(lambda: len(handler.told) == 3)
            assert handler.take() == [("~", "a"), ("+", "c"), ("-", "b")]
            assert reflector.store["default", "a"].data == {"x": "2"}
            assert sorted(reflector.store) == [("default", "a"), ("default", "c")]
            assert dict(reflector.events_total) == {"MODIFIED": 1, "ADDED": 1, "DELETED": 1}
            assert (reflector.lists_total, reflector.watches_total) == (1, 1)
            assert reflector.version == str(cluster.server.objects.version)
        verb, path, query = cluster.server.requests[0]
        assert (verb, path, query) == ("list", "/api/v1/configmaps", {"limit": "500"})
        assert cluster.client.requests_total == {("list", "200"): 1, ("watch", "200"): 1}


@on_a_loop
async def test_what_does_not_count_is_not_told(tmp_path: Path) -> None:
    """A slice's annotations and what we do not read change with each write of its controller."""
    async with fake_cluster(tmp_path) as cluster:
        cluster.server.create("endpointslices", endpoint_slice("h", range(3)))
        async with watching(cluster, SLICES) as (reflector, handler):
            stamp = {"endpoints.kubernetes.io/last-change-trigger-time": "2026-01-01T00:00:09Z"}
            cluster.server.update("endpointslices", "h", {"metadata": {"annotations": stamp}})
            cluster.server.update("endpointslices", "h", {"endpoints": [endpoint(0), endpoint(1)]})
            await until(lambda: reflector.events_total["MODIFIED"] == 2)
            assert handler.take() == [("+", "h"), ("=", 1), ("~", "h")]
            assert reflector.contents.unchanged_total == 1
            held = reflector.store["default", "h"]
            assert isinstance(held, EndpointSlice)
            assert [one.addresses for one in held.endpoints or ()] == [["10.0.0.0"], ["10.0.0.1"]]


@on_a_loop
async def test_large_pages_and_many_events_leave_the_loop_its_turns(tmp_path: Path) -> None:
    async with fake_cluster(tmp_path) as cluster:
        for number in range(100):
            cluster.server.create("endpointslices", endpoint_slice(f"h-{number}", range(100)))
        cluster.server.create("endpointslices", {**endpoint_slice("bad", []), "endpoints": 5})
        async with watching(cluster, SLICES) as (reflector, _):
            assert len(reflector.store) == 100 and reflector.decoding.failures_total == 1
            turns = cluster.pauses.asked.count(0)
            assert turns >= 2  # a page of nearly 3 MB
            for number in range(100):
                cluster.server.update("endpointslices", f"h-{number}", {"ports": []})
            await until(lambda: reflector.events_total["MODIFIED"] == 100)


@on_a_loop
async def test_many_events_in_one_read_are_handled_in_steps(tmp_path: Path) -> None:
    async with fake_cluster(tmp_path) as cluster, watching(cluster, Selection(CONFIG_MAPS)) as (_, handler):
        watcher = cluster.server.watchers[0]
        for number in range(2 * KUBE_EVENTS_PER_TURN_MAX):
            cluster.server.create("configmaps", config_map(f"m{number}"))
        watcher.lines = [b"".join(watcher.lines)]
        watcher.wake.set()
        await until(lambda: len(handler.told) == 1 + 2 * KUBE_EVENTS_PER_TURN_MAX)
        assert cluster.pauses.asked.count(0) >= 1
