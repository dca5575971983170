"""An outage of the API ends once for all: whoever pauses after a failure is woken by the first good answer."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path

from activator.kubernetes.outage import WAKES_APART_MAX_S, WAKES_FORGOTTEN_S, Outage
from activator.kubernetes.resources import CONFIG_MAPS, SERVICES, Selection
from activator.kubernetes.watches import KubeWatches
from activator.runtime.tasks import InterruptibleSleep
from lb.rng import Rng
from tests.kubernetes.fake_cluster import fake_cluster, on_a_loop, until
from tests.kubernetes.fake_objects import RefusalError
from tests.kubernetes.kube_samples import Recorder, config_map
from tests.manual_clock import ManualClock


class LongPauses:
    """Pauses of more than a second never end by themselves; others last for a moment."""

    def __init__(self) -> None:
        self.endless = 0

    async def __call__(self, seconds: float) -> None:
        if seconds <= 1.0:
            await asyncio.sleep(0.001)
            return
        self.endless += 1
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.endless -= 1


@on_a_loop
async def test_all_watches_go_on_with_the_first_answer(tmp_path: Path) -> None:
    async with fake_cluster(tmp_path) as cluster:
        pauses = LongPauses()
        ended: list[str] = []
        watches = KubeWatches(cluster.client, cluster.clock.now, Rng(1), lambda name, error: ended.append(name), pauses)
        maps = Recorder()
        watches.add(Selection(CONFIG_MAPS), maps)
        watches.add(Selection(SERVICES), Recorder())
        await until(lambda: watches.synced and len(cluster.server.watchers) == 2)
        await cluster.server.stop()
        await until(lambda: pauses.endless == 2, "both have failed for long")
        cluster.clock.pass_time(60.0)
        cluster.server.create("configmaps", config_map("new"))
        await cluster.server.start()
        await until(lambda: len(cluster.server.watchers) == 2 and ("+", "new") in maps.told)
        assert pauses.endless == 0
        assert cluster.client.outage.wakes_total == 1
        await watches.close()
        assert ended == []


@on_a_loop
async def test_a_pause_that_the_api_has_asked_for_is_kept(tmp_path: Path) -> None:
    async with fake_cluster(tmp_path) as cluster:
        pauses = LongPauses()
        watches = KubeWatches(cluster.client, cluster.clock.now, Rng(1), lambda name, error: None, pauses)
        busy = RefusalError(503, "ServiceUnavailable", "busy", 20)
        cluster.server.refused = lambda verb, path: busy if "services" in path else None
        reflector, _ = watches.add(Selection(CONFIG_MAPS), Recorder())
        other, _ = watches.add(Selection(SERVICES), Recorder())
        await until(lambda: reflector.synced and pauses.endless == 1 and not cluster.client.outage.is_on)
        assert cluster.client.outage.wakes_total >= 1
        assert not other.synced and pauses.endless == 1
        await watches.close()


def test_an_api_that_comes_and_goes_wakes_more_and_more_rarely() -> None:
    clock = ManualClock()
    outage = Outage(clock.now)
    woken: list[float] = []
    outage.on_end(lambda: woken.append(clock.now()))
    outage.answered()
    assert woken == [], "there was no outage"

    def flap(seconds: int) -> None:
        for _ in range(seconds):
            clock.pass_time(1.0)
            outage.failed()
            outage.failed()
            outage.answered()
            outage.answered()

    flap(300)
    apart = [after - before for before, after in pairwise(woken)]
    assert apart[0] < apart[2] < apart[-1]
    assert max(apart) <= WAKES_APART_MAX_S + 1.0
    clock.pass_time(WAKES_FORGOTTEN_S)
    before = len(woken)
    flap(3)
    assert len(woken) - before == 2, "after a while without an outage, at once again"


@on_a_loop
async def test_a_pause_that_is_ended() -> None:
    waits = InterruptibleSleep(lambda seconds: asyncio.get_running_loop().create_future())
    waits.end()
    task = asyncio.ensure_future(waits(30.0))
    await asyncio.sleep(0)
    assert not task.done()
    waits.end()
    waits.end()
    await asyncio.wait_for(task, 5.0)
    waits.end()
    cancelled = asyncio.ensure_future(waits(30.0))
    await asyncio.sleep(0)
    waits.end()
    cancelled.cancel()
    await asyncio.gather(cancelled, return_exceptions=True)
    assert cancelled.cancelled(), "who is cancelled at the same time ends"
