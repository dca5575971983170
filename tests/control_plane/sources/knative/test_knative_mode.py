"""Knative mode put together, without a cluster: what it makes of what the control plane tells it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from activator.config.cluster_settings import ClusterSettings
from activator.config.model.file import Config
from activator.config.model.kubernetes import Kubernetes
from activator.config.model.pods import Health
from activator.config.specs import RevisionSpec
from activator.control_plane.scaling.concurrency import POKE_INTERVAL_S
from activator.control_plane.sources.knative.environment import KnativeEnvironment
from activator.control_plane.sources.knative.mode import KnativeMode
from activator.control_plane.sources.knative.object_handlers import REVISION_LABEL
from activator.control_plane.state.worker import StateWorker
from activator.kubernetes.resources import CONFIG_MAPS, Scope, Selection
from activator.messages import DropRevision, Effect, Load, PodRefused, Probed, SetRevision
from activator.runtime.controller_counts import Controllers
from activator.runtime.tasks import TaskGroupOwner, pause
from lb.rng import Rng
from tests.control_plane.sources.knative.knative_fakes import (
    ENVIRONMENT,
    KEY,
    OWN_IP,
    endpoint,
    endpoint_slice,
    revision,
)
from tests.manual_clock import ManualClock


class World:
    """The mode and a state worker; nobody watches, and no data plane carries anything."""

    def __init__(self, sharing: str, tasks: TaskGroupOwner, environment: KnativeEnvironment = ENVIRONMENT) -> None:
        self.clock = ManualClock()
        self.expedited: list[str] = []
        self.worker = StateWorker(self.clock.now, self._applied, lambda _orders: None, lambda _source, _key: None)
        self.mode = KnativeMode(
            environment,
            Config(kubernetes=Kubernetes(sharing=sharing)),
            self.worker.submit,
            self.expedited.append,
            self.clock.now,
            Rng(1),
            tasks,
            Controllers(self.clock.now),
            lambda _settings: None,
            lambda _tls: None,
            self.worker.supervision.panicked,
        )

    def _applied(self, effects: list[Effect]) -> None:
        self.mode.applied(effects)

    def settle(self) -> None:
        """The source and the state worker do what there is to do."""
        while self.mode.source.is_behind() or len(self.worker.queue):
            self.mode.source.passes.flush()
            self.worker.turn()

    def limits(self) -> list[int]:
        """Of the pods, in the order of their addresses."""
        record = self.worker.model.revisions[KEY]
        return [record.limit_of(pod) for pod in sorted(record.pods.values(), key=lambda pod: pod.address)]


def run(scenario: Callable[[World], None], sharing: str = "none") -> None:
    async def main() -> None:
        failures: list[BaseException] = []
        tasks = TaskGroupOwner(lambda _name, error: failures.append(error))
        world = World(sharing, tasks)
        scenario(world)
        await world.mode.close()
        await tasks.close()
        assert failures == []

    asyncio.run(main())


def test_what_is_told_of_a_revision_until_its_end_is_not_taken_for_its_successors() -> None:
    """Between the API's word that it is gone and its end in the data plane, its last requests are still told."""

    def scenario(world: World) -> None:
        mode, now_s = world.mode, world.clock.now()
        stream = mode.stream  # nobody is there to hear: what is sent is dropped, and counted
        mode.receive_load(Load(KEY, 3, 0, 40, 3, 1.0, now_s))
        assert stream.dropped_total == 1
        mode.source.revision_gone(KEY)
        mode.receive_load(Load(KEY, 3, 0, 41, 3, 2.0, now_s))
        mode.applied([DropRevision(KEY), SetRevision(RevisionSpec(key=KEY))])
        before = stream.dropped_total
        mode.reporter.report()
        assert stream.dropped_total == before, "it is not reported for ever"
        mode.receive_load(Load(KEY, 0, 1, 1, 1, 0.0, now_s))
        assert stream.dropped_total == before + 1, "its successor's first request is told at once"

    run(scenario)


def test_a_reload_reaches_the_revisions_of_the_cluster() -> None:
    """What the file says of all revisions holds for those that the cluster declares, too."""

    def scenario(world: World) -> None:
        mode = world.mode
        mode.source.revision_objects.changed(None, revision())
        world.settle()
        before = world.worker.model.revisions[KEY].spec
        mode.configure(Config(trailing_fragmentation_threshold=0.25, health=Health(strikes=7)))
        world.settle()
        after = world.worker.model.revisions[KEY].spec
        assert (after.balancing.trailing_fragmentation_threshold, after.health.strikes) == (0.25, 7)
        assert after == replace(
            before,
            balancing=replace(before.balancing, trailing_fragmentation_threshold=0.25),
            health=replace(before.health, strikes=7),
        )

    run(scenario)


def test_shares_are_of_the_pods_that_have_answered_be_they_in_quarantine() -> None:
    """The other activators know nothing of our quarantine: they take their shares as if it were not."""

    def scenario(world: World) -> None:
        source = world.mode.source
        source.revision_objects.changed(None, revision(limit=1))
        source.slice_objects.changed(None, endpoint_slice(endpoint(OWN_IP), endpoint("10.9.0.2"), kind="Public"))
        pods = [endpoint(f"10.0.0.{number}") for number in range(1, 5)]
        source.slice_objects.changed(None, endpoint_slice(*pods))
        world.settle()
        for pod in list(world.worker.model.revisions[KEY].pods):
            world.worker.submit(Probed(KEY, pod))
        world.settle()
        assert world.limits() == [1, 1, 0, 0]
        epoch = world.worker.model.revisions[KEY].pods["pod-10.0.0.1"].epoch
        world.worker.submit(PodRefused(KEY, "pod-10.0.0.1", epoch, True))
        world.settle()
        assert world.limits() == [1, 1, 0, 0]

    run(scenario, "knative")


def test_a_report_or_a_look_that_raises_is_counted_and_the_next_one_comes_all_the_same() -> None:
    async def main() -> list[str]:
        failures: list[str] = []
        tasks = TaskGroupOwner(lambda name, _error: failures.append(name))
        mode = World("none", tasks).mode
        mode._awaited = None  # type: ignore[assignment]
        mode.fallback._changed = None  # type: ignore[assignment]
        mode.reporter._entries = None  # type: ignore[assignment]
        mode._start_checks()
        async with asyncio.timeout(60.0):
            while min(failures.count(name) for name in ("mesh", "reports", "scale fallback")) < 2:
                await pause(0.05)
        await mode.close()
        return failures

    assert set(asyncio.run(main())) == {"mesh", "reports", "scale fallback"}


def test_requests_of_a_revision_that_cannot_start_have_its_pods_probed_at_once_though_they_are_refused() -> None:
    def scenario(world: World) -> None:
        failed = {"type": "ContainerHealthy", "status": "False", "reason": "ContainerMissing", "message": ""}
        world.mode.source.revision_objects.changed(None, revision(conditions=[failed]))
        world.settle()
        for key in (KEY, "default/other"):
            world.mode.receive_load(Load(key, 0, 0, 1, 0, 0.0, world.clock.now()))
        assert world.expedited == [KEY]

    run(scenario)


def test_the_probe_timeout_of_the_environment_is_that_of_the_probes_for_a_mesh() -> None:
    async def main() -> tuple[float, list[float]]:
        tasks = TaskGroupOwner(lambda _name, _error: None)
        world = World("none", tasks, replace(ENVIRONMENT, probe_timeout_s=0.7))
        mode, source = world.mode, world.mode.source
        source.revision_objects.changed(None, revision())
        source.slice_objects.changed(None, endpoint_slice(endpoint("10.0.0.1")))
        world.settle()
        dues = [mode.fallback.step()]
        world.clock.pass_time(0.6)
        dues.append(mode.fallback.step())
        await mode.close()
        await tasks.close()
        return mode._prober.timeout_s, dues

    timeout_s, dues = asyncio.run(main())
    assert timeout_s == 0.7 and dues == pytest.approx([0.7, 0.1])


class Looker:
    """Stands for what compares a watch with a list, and remembers whom it was told to expedite."""

    def __init__(self) -> None:
        self.expedited: list[Scope] = []

    def expedite(self, scope: Scope) -> bool:
        self.expedited.append(scope)
        return True

    def relax(self, scope: Scope) -> None:
        self.expedited.remove(scope)


def test_who_waits_for_a_pod_is_told_of_at_once_and_looked_for_every_second_until_there_is_one() -> None:
    def scenario(world: World) -> None:
        mode, looker, clock = world.mode, Looker(), world.clock
        mode._pod_relisters = [looker]  # type: ignore[list-item]
        mode.source.revision_objects.changed(None, revision())
        mode.source.slice_objects.changed(None, endpoint_slice(endpoint("10.0.0.1")))
        world.settle()

        def load(queued: int) -> int:
            """How many messages to the autoscaler it comes to; nobody is there, so they are dropped and counted."""
            before = mode.stream.dropped_total
            mode.receive_load(Load(KEY, 0, queued, 5, queued, 1.0, clock.now()))
            return mode.stream.dropped_total - before

        assert (load(0), looker.expedited) == (1, []), "the first request, which did not wait"
        clock.pass_time(POKE_INTERVAL_S + 0.1)
        namespace, _, name = KEY.partition("/")
        assert (load(1), looker.expedited) == (1, [Scope(namespace, ((REVISION_LABEL, name),))])
        assert (load(2), len(looker.expedited)) == (0, 1), "once"
        world.worker.submit(Probed(KEY, "pod-10.0.0.1"))
        world.settle()
        assert (load(2), looker.expedited) == (0, [])
        epoch = world.worker.model.revisions[KEY].pods["pod-10.0.0.1"].epoch
        world.worker.submit(PodRefused(KEY, "pod-10.0.0.1", epoch, True))
        world.settle()
        load(1)
        assert len(looker.expedited) == 1
        mode.applied([DropRevision(KEY)])
        assert looker.expedited == [], "of a revision that is gone nothing is looked for"

    run(scenario)


def test_tls_that_is_switched_on_while_serving_makes_no_replica_unready() -> None:
    """Its Secret and bundles have not been listed yet, and pods are reached without TLS until they have been."""

    def scenario(world: World) -> None:
        mode = world.mode
        settings, _ = mode._watch(Selection(CONFIG_MAPS, "knative-serving"), mode.source.config_objects)
        mode._settings = settings
        assert mode.pending() == [f"the first list of {settings.name}"]
        settings.synced = True
        assert mode.pending() == []
        mode.settings_changed(ClusterSettings(internal_tls=True))
        assert mode.tls is not None and len(mode.watches.reflectors) == 3
        assert mode.pending() == []

    run(scenario)
