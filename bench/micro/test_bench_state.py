"""The state worker: the cost of a new pod from its discovery to its slot, and of a full list with few or no changes."""

from __future__ import annotations

from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from activator.config.specs import BalancingSpec, RevisionSpec
from activator.control_plane.state.worker import StateWorker
from activator.data_plane.tables.apply import RevisionTables
from activator.data_plane.tables.hooks import TableHooks
from activator.data_plane.throttle.budget import HeldBudget
from activator.data_plane.throttle.interfaces import SlotEvents
from activator.data_plane.throttle.revision import RevisionThrottler
from activator.messages import ObservedPod, PodsListed, PodStatus, RevisionSet
from activator.runtime.clock import TimingWheel
from bench.micro.rounds import in_rounds
from bench.seed_figures import ADD_POD_NS, LIST_NS
from lb.policy import Policy
from lb.registry import create
from lb.rng import Rng
from lb.tracker import PodTracker

KEY = "ns/rev"
PODS = 500
COMERS = 1_000
LISTS = 20  # per round


class Quiet(TableHooks):
    """An observer that ignores everything, so that the measurement ends at the table."""

    def make_policy(self, name: str) -> Policy:
        return create(name, Rng(1))

    def revision_set(self, throttler: RevisionThrottler) -> None:
        pass

    def pod_placed(self, tracker: PodTracker, spec: RevisionSpec) -> None:
        pass


class Timer:
    def cancel(self) -> None:
        pass


def make_worker(pods: int) -> StateWorker:
    """Return a worker and a data plane, connected by a call, with this many ready pods."""
    wheel = TimingWheel(lambda: 1.0, lambda delay_s, callback: Timer(), _raise)
    part = RevisionTables(lambda: 1.0, wheel, lambda callback: None, SlotEvents(), Quiet(), HeldBudget())
    worker = StateWorker(lambda: 1.0, part.apply, lambda orders: None, lambda source, key: None)
    worker.submit(
        RevisionSet(RevisionSpec(key=KEY, container_concurrency=10, balancing=BalancingSpec(max_scale=PODS + COMERS)))
    )
    worker.submit(listed(pods, PodStatus.READY, pods))
    worker.turn()
    table = part.throttlers[KEY].table
    assert (table.used, table.room) == (pods, pods)
    return worker


def _raise(error: Exception) -> None:
    raise error


def seen(number: int, status: PodStatus) -> ObservedPod:
    return ObservedPod(KEY, "list", f"pod-{number}", f"10.0.{number // 250}.{number % 250}:8012", status)


def listed(pods: int, status: PodStatus, changed: int, kept: dict[int, ObservedPod] | None = None) -> PodsListed:
    """Return ready pods, but the first `changed` ones in `status`; the others are the same objects if `kept`."""
    words = []
    for number in range(pods):
        if number < changed or kept is None:
            words.append(seen(number, status if number < changed else PodStatus.READY))
        else:
            words.append(kept.setdefault(number, seen(number, PodStatus.READY)))
    return PodsListed(KEY, "list", tuple(words))


@pytest.mark.benchmark(group="state")
def test_add_pod(benchmark: BenchmarkFixture) -> None:
    """Add 1,000 pods to 500, each submitted and applied separately: fold, reduce, apply."""
    comers = [seen(number, PodStatus.READY) for number in range(PODS, PODS + COMERS)]

    def setup() -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (make_worker(PODS),), {}

    def operation(worker: StateWorker) -> None:
        for comer in comers:
            worker.submit(comer)
            worker.turn()

    in_rounds(benchmark, operation, times=COMERS, rounds=20, setup=setup, extra={"seed_ns": ADD_POD_NS})


@pytest.mark.benchmark(group="state")
@pytest.mark.parametrize("says", ["kept", "anew"])
@pytest.mark.parametrize("changed", ["0", "1", "all"])
@pytest.mark.parametrize("pods", [100, 500])
def test_list(benchmark: BenchmarkFixture, pods: int, changed: str, says: str) -> None:
    """Submit a full list repeatedly; the changed pods alternate between ready and not ready.

    For the others the source submits the same objects (`kept`) or equal new ones (`anew`).
    """
    worker = make_worker(pods)
    count = {"0": 0, "1": 1, "all": pods}[changed]
    kept: dict[int, ObservedPod] | None = {} if says == "kept" else None
    lists = [
        listed(pods, PodStatus.READY if number % 2 else PodStatus.NOT_READY, count, kept) for number in range(LISTS)
    ]

    def operation() -> None:
        for one in lists:
            worker.submit(one)
            worker.turn()

    in_rounds(benchmark, operation, times=LISTS, rounds=50, extra={"seed_ns": LIST_NS[pods]})
    assert not worker.supervision.panics_total
    assert worker.changes_total > LISTS
