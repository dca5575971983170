"""The cost of scaling: a load report, and ticks with a decision per active revision, with none, and over sleepers."""

from __future__ import annotations

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from activator.control_plane.scaling.autoscaler import SCALING_INTERVAL_S, Autoscaler
from activator.control_plane.scaling.decision import Decision
from activator.control_plane.scaling.rule import ScalingRule
from activator.messages import Load
from bench.micro.rounds import in_rounds

REVISIONS = 1_000
SLEEPING = 10_000
INTERVAL_S = 0.1  # between two load reports of a revision, and between two ticks


class World:
    """An autoscaler whose active revisions have slightly more or less load than one pod is meant for."""

    def __init__(self, active: int, sleeping: int, burst: bool) -> None:
        self.now_s = 1000.0
        self.seconds = 0.0
        self.round = 0
        self.scaler = Autoscaler(lambda: self.now_s, lambda: self.now_s, self._scale)
        rule = ScalingRule(max=20, target=10.0, burst=burst, stable_window_s=10.0 if burst else 60.0)
        self.keys = [f"default/active-{number}" for number in range(active)]
        for key in (*self.keys, *(f"default/asleep-{number}" for number in range(sleeping))):
            self.scaler.set_revision(key, rule)
        for _ in range(50):
            self.loads()
            self.scaler.tick()

    def _scale(self, key: str, decision: Decision) -> None:
        self.scaler.ready(key, decision.wanted)

    def loads(self) -> None:
        """Submit one load report of each active revision."""
        self.round += 1
        self.now_s += INTERVAL_S
        here = 8 + self.round % 9
        self.seconds += here * INTERVAL_S
        for key in self.keys:
            self.scaler.load(Load(key, here, 0, 10 * self.round, here, self.seconds, self.now_s))

    def decide_all(self) -> None:
        """Run a tick at which each active revision is due."""
        self.now_s += SCALING_INTERVAL_S
        self.scaler.tick()


@pytest.mark.benchmark(group="scaling")
@pytest.mark.parametrize("burst", [True, False])
def test_a_load(benchmark: BenchmarkFixture, burst: bool) -> None:
    world = World(REVISIONS, 0, burst)
    in_rounds(benchmark, world.loads, times=REVISIONS, rounds=20, extra={"burst": burst})
    assert world.scaler.awake() == REVISIONS


@pytest.mark.benchmark(group="scaling")
@pytest.mark.parametrize("burst", [True, False])
def test_a_tick_with_a_decision_per_active_revision(benchmark: BenchmarkFixture, burst: bool) -> None:
    world = World(REVISIONS, 0, burst)
    before = sum(world.scaler.decision_totals.values())
    in_rounds(benchmark, world.decide_all, times=REVISIONS, rounds=20, extra={"burst": burst})
    assert (sum(world.scaler.decision_totals.values()) - before) % REVISIONS == 0


@pytest.mark.benchmark(group="scaling")
def test_a_tick_without_a_decision_per_active_revision(benchmark: BenchmarkFixture) -> None:
    world = World(REVISIONS, 0, burst=True)
    world.decide_all()
    before = sum(world.scaler.decision_totals.values())
    in_rounds(benchmark, world.scaler.tick, times=REVISIONS, rounds=50)
    assert sum(world.scaler.decision_totals.values()) == before


@pytest.mark.benchmark(group="scaling")
def test_a_tick_over_ten_thousand_that_sleep(benchmark: BenchmarkFixture) -> None:
    """Measure the whole tick."""
    world = World(0, SLEEPING, burst=True)
    assert world.scaler.awake() == 0

    def ticks() -> None:
        for _ in range(1_000):
            world.scaler.tick()

    in_rounds(benchmark, ticks, times=1_000, rounds=20)
