"""All the watches of one cluster as a whole."""

from __future__ import annotations

from pathlib import Path

from activator.kubernetes.resources import CONFIG_MAPS, SERVICES, Selection
from activator.kubernetes.watches import KubeWatches
from lb.rng import Rng
from tests.kubernetes.fake_cluster import fake_cluster, on_a_loop, until
from tests.kubernetes.fake_objects import RefusalError
from tests.kubernetes.kube_samples import Recorder, config_map


@on_a_loop
async def test_they_are_started_known_as_a_whole_and_ended(tmp_path: Path) -> None:
    async with fake_cluster(tmp_path) as cluster:
        ended: list[str] = []
        watches = KubeWatches(
            cluster.client, cluster.clock.now, Rng(1), lambda name, error: ended.append(name), cluster.pauses
        )
        assert watches.age_s(cluster.clock.now()) == 0.0
        busy = RefusalError(503, "ServiceUnavailable", "starting")
        cluster.server.refused = lambda verb, path: busy if "services" in path else None
        maps, services = Recorder(), Recorder()
        reflector, _ = watches.add(Selection(CONFIG_MAPS), maps)
        other, _ = watches.add(Selection(SERVICES), services)
        await until(lambda: reflector.synced)
        assert watches.age_s(cluster.clock.now()) == float("inf")
        assert not watches.synced
        cluster.server.refused = lambda verb, path: None
        await until(lambda: watches.synced and len(cluster.server.watchers) == 2)
        assert watches.age_s(cluster.clock.now()) < float("inf")
        await watches.remove(reflector)
        await until(lambda: len(cluster.server.watchers) == 1)
        cluster.server.create("configmaps", config_map("a"))
        cluster.server.create("services", {"metadata": {"name": "s"}})
        await until(lambda: ("+", "s") in services.told)
        assert ("+", "a") not in maps.told and watches.reflectors == [other]
        await watches.close()
        await until(lambda: not cluster.server.watchers)
        assert ended == []


@on_a_loop
async def test_silence_is_noticed_without_anybodys_doing(tmp_path: Path) -> None:
    """The check runs on the same clock: a silent watch is ended, though comparisons keep the view fresh."""
    async with fake_cluster(tmp_path) as cluster:
        watches = KubeWatches(cluster.client, cluster.clock.now, Rng(1), lambda name, error: None, cluster.pauses)
        reflector, relister = watches.add(Selection(CONFIG_MAPS), Recorder(), 30.0)
        cluster.server.silent = True
        await until(lambda: reflector.errors_total["stalled"] >= 2)
        assert relister.rounds_total["whole"] >= 2
        await watches.close()


@on_a_loop
async def test_a_check_that_raises_is_reported_and_not_the_last(tmp_path: Path) -> None:
    async with fake_cluster(tmp_path) as cluster:
        failed: list[str] = []
        watches = KubeWatches(
            cluster.client, cluster.clock.now, Rng(1), lambda name, error: failed.append(name), cluster.pauses
        )
        reflector, relister = watches.add(Selection(CONFIG_MAPS), Recorder())
        await until(lambda: reflector.synced)
        relister._next_s = None  # type: ignore[assignment]
        await until(lambda: len(failed) >= 1)
        relister._next_s = 0.0
        rounds = relister.rounds_total["whole"]
        await until(lambda: relister.rounds_total["whole"] > rounds)
        await watches.close()
        assert set(failed) <= {"kubernetes check", "reconcile configmaps"}
