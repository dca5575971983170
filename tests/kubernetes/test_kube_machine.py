"""A long random life of one selection: whatever is written, dropped, delayed, cut or forgotten, in the end the store is
what the server has, and the handler was told exactly that, one identity after the other."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from activator.kubernetes.objects import ConfigMap, KubeObject
from activator.kubernetes.reflector import KUBE_STEADY_S, Reflector
from activator.kubernetes.relister import Relister
from activator.kubernetes.resources import CONFIG_MAPS, Selection
from lb.rng import Rng
from tests.conftest import storms
from tests.kubernetes.fake_cluster import Cluster, fake_cluster, on_a_loop, running, until
from tests.kubernetes.fake_objects import RefusalError
from tests.kubernetes.kube_samples import Recorder, config_map

NAMES = [f"m{number}" for number in range(6)]
STEPS = 150


class Strict(Recorder):
    """ToControl of a change only of what it was told to be there, with the same UID, and really changed."""

    def changed(self, old: KubeObject | None, new: KubeObject) -> None:
        assert self.last.get(new.key) == old or old is not None
        before = self.last.get(new.key)
        assert (before is None) == (old is None)
        if before is not None:
            assert before.metadata.uid == new.metadata.uid
            assert isinstance(before, ConfigMap) and isinstance(new, ConfigMap)
            assert (before.data, before.metadata.labels) != (new.data, new.metadata.labels)
        super().changed(old, new)

    def removed(self, old: KubeObject) -> None:
        assert self.last[old.key].metadata.uid == old.metadata.uid
        super().removed(old)


class Life:
    def __init__(self, cluster: Cluster, reflector: Reflector[ConfigMap], relister: Relister[ConfigMap], seed: int):
        self.cluster = cluster
        self.reflector = reflector
        self.relister = relister
        self.chance = random.Random(seed)

    async def step(self) -> None:
        server, chance = self.cluster.server, self.chance
        name = chance.choice(NAMES)
        there = ("default", name) in server.collection("configmaps").objects
        match chance.randrange(12):
            case 0 | 1 | 2 if there:
                server.update("configmaps", name, {"data": {"x": str(chance.randrange(3))}})
            case 0 | 1 | 2 | 3 if not there:
                server.create("configmaps", config_map(name, {"ours": "1"}, x="0"))
            case 3:
                server.delete("configmaps", name)
            case 4 if there:
                server.update("configmaps", name, {"metadata": {"labels": {"ours": chance.choice(["1", None])}}})
            case 5:
                server.cut_next_line = True
            case 6:
                lossy = chance.random() < 0.5
                server.dropped = lambda event: lossy
            case 7:
                server.compact("configmaps")
            case 8:
                server.gone_watches = chance.randrange(3)
                server.gone_by_status = chance.random() < 0.5
            case 9:
                server.refusals = [("*", RefusalError(chance.choice([429, 500, 503]), "Busy", "busy"))]
            case 10:
                self.cluster.clock.pass_time(chance.choice([1.0, KUBE_STEADY_S, 100.0]))
                self.reflector.abort_if_stalled()
            case _:
                await self.relister.run_due_rounds()
        for _ in range(chance.randrange(4)):
            await self.cluster.pauses(0.0)

    async def calm(self) -> None:
        """No more faults; the watch is up and one comparison is made."""
        server = self.cluster.server
        server.dropped = lambda event: False
        server.cut_next_line, server.gone_watches, server.refusals = False, 0, []
        await until(lambda: self.reflector.watching and server.watchers and self.reflector.synced)
        await self.relister.reconcile()
        server.create("configmaps", config_map("last", {"ours": "1"}))
        await until(lambda: ("default", "last") in self.reflector.store)


@pytest.mark.parametrize("seed", storms(range(12)))
@on_a_loop
async def test_in_the_end_the_store_is_what_the_server_has(tmp_path: Path, seed: int) -> None:
    async with fake_cluster(tmp_path) as cluster:
        handler = Strict()
        reflector = cluster.reflector(Selection(CONFIG_MAPS, labels="ours"), handler, page_objects=2)
        relister = Relister(cluster.client, reflector, cluster.clock.now, Rng(seed), cluster.pauses)
        life = Life(cluster, reflector, relister, seed)
        async with running(reflector):
            for _ in range(STEPS):
                await life.step()
            await life.calm()
            there = {
                key: (one["metadata"]["uid"], one["metadata"]["resourceVersion"], one.get("data", {}))
                for key, one in cluster.server.collection("configmaps").objects.items()
                if "ours" in one["metadata"]["labels"]
            }
            known = {
                key: (one.metadata.uid, one.metadata.resource_version, one.data) for key, one in reflector.store.items()
            }
            assert known == there
            assert {key: one.metadata.uid for key, one in handler.last.items()} == {
                key: uid for key, (uid, _, _) in there.items()
            }
            assert reflector.contents.handler_errors_total == 0
            assert "internal" not in reflector.errors_total
