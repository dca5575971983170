"""When the activator is in the path of a Service's requests: the decisions, one by one and in any order."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from activator.control_plane.reconcile.traffic_wanted import Position
from activator.control_plane.sources.activations.path import (
    ALWAYS,
    ObservedPath,
    PathReason,
    PathRule,
    PathState,
    decide,
)
from activator.runtime.clock import NEVER

OUT, BESIDE, ALONE = Position.OUT, Position.BESIDE, Position.ALONE
RULE = PathRule(0, 0, 5.0, 10.0, 300.0, 3600.0, 60.0, 60.0, 0)


class World:
    """One Service: what is written is shown at once, unless `lag` holds it back."""

    def __init__(self, rule: PathRule = RULE, ready: int = 0, shown: Position | None = None) -> None:
        self.rule = rule
        self.now_s = 1_000.0
        self.ready = self.replicas = self.wanted = ready
        self.in_flight = self.queued = self.requests_total = 0
        self.shown = shown or OUT
        self.lag = False
        self.state = PathState.begun(shown, ready, 0)
        self.evaluate()

    def evaluate(self) -> Position:
        for _ in range(4):
            before = self.state.position
            shown = None if self.shown is not before else before
            seen = ObservedPath(
                self.now_s, shown, self.ready, self.replicas, self.wanted, self.in_flight, self.queued,
                self.requests_total,
            )  # fmt: skip
            self.state = decide(self.rule, seen, self.state)
            if self.lag or self.state.position is self.shown:
                break
            self.shown = self.state.position
        return self.state.position

    def wait(self, seconds: float, rate: float = 0.0) -> Position:
        """Time passes; decisions come when they are due. `rate`: requests a second that come here, if they do."""
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            assert self.state.due_s > self.now_s, "it never asks to be looked at again at once"
            step_s = min(max(self.state.due_s - self.now_s, 0.001), until_s - self.now_s)
            if rate:
                step_s = min(step_s, 1.0 / rate)
            self.now_s += step_s
            if rate and self.state.position is not OUT:
                self.requests_total += 1
            self.evaluate()
        return self.state.position

    def is_held(self) -> bool:
        return self.state.keeps_pods

    def pods(self, ready: int, replicas: int | None = None) -> Position:
        self.ready = ready
        self.replicas = ready if replicas is None else replicas
        return self.evaluate()


def test_at_zero_it_stands_beside_the_pods_that_are_to_come() -> None:
    world = World()
    assert world.evaluate() is OUT, "not before all replicas listen on its port"
    assert world.wait(2.0) is BESIDE
    assert world.state.reason is PathReason.NO_POD
    assert world.state.due_s == NEVER, "at zero nothing is looked at"
    assert not world.is_held()


def test_the_first_pod_brings_it_alone_so_that_requests_are_counted() -> None:
    world = World()
    world.wait(20.0)
    assert world.pods(0, 1) is BESIDE
    assert world.state.reason is PathReason.STARTING
    assert world.pods(1) is ALONE
    assert world.is_held(), "nothing is concluded yet"
    world.wait(64.0)
    assert world.is_held()
    world.wait(2.0)
    assert not world.is_held(), "settled, and no request for the grace"
    assert world.state.position is ALONE, "an idle one does not leave the path"


def test_a_busy_one_is_left_alone_after_the_dwell() -> None:
    world = World()
    world.wait(20.0)
    world.pods(1)
    assert world.wait(14.0, rate=10.0) is ALONE
    assert world.wait(2.0, rate=10.0) is BESIDE
    assert world.wait(6.0, rate=10.0) is OUT
    assert world.is_held()
    assert world.wait(290.0, rate=10.0) is OUT
    assert world.wait(15.0, rate=10.0) is not OUT, "it looks"
    assert world.wait(40.0, rate=10.0) is OUT, "and leaves again"
    assert world.is_held()


def test_requests_now_and_then_keep_it_in_the_path() -> None:
    world = World()
    world.wait(20.0)
    world.pods(1)
    for _ in range(20):
        assert world.wait(5.0) is ALONE
        world.requests_total += 1
        world.evaluate()


def test_one_request_is_no_dwell_however_short_that_is() -> None:
    world = World(RULE._replace(dwell_s=0.5, settle_s=0.1))
    world.wait(20.0)
    world.pods(1)
    world.wait(1.0)
    world.requests_total += 1
    world.evaluate()
    assert world.wait(30.0) is ALONE
    assert world.wait(2.0, rate=10.0) is OUT


def test_one_that_is_idle_when_it_is_looked_at_may_go_to_zero() -> None:
    world = World(ready=1)
    world.wait(1_000.0)
    assert world.state.position is ALONE
    assert not world.is_held()
    assert world.pods(0, 0) is BESIDE


def test_the_loss_of_the_last_pod_ends_any_wait() -> None:
    world = World(ready=1)
    world.wait(10.0)
    assert world.state.position is OUT
    assert world.pods(0, 1) is BESIDE
    assert world.pods(1) is BESIDE, "every proxy has to know us before the pods go"
    assert world.wait(6.0) is ALONE


def test_a_limit_keeps_it_in_the_path() -> None:
    world = World(RULE._replace(burst=ALWAYS, limit=1))
    assert world.wait(10.0) is ALONE
    world.pods(3)
    assert world.wait(1_000.0, rate=50.0) is ALONE
    assert world.state.reason is PathReason.LIMIT


def test_a_burst_capacity_is_kept_free() -> None:
    world = World(RULE._replace(burst=5, limit=10))
    assert world.wait(10.0) is ALONE, "also at zero: the first pod has its limit"
    world.pods(1)
    world.in_flight = 6
    assert world.wait(60.0, rate=10.0) is ALONE
    assert world.state.reason is PathReason.LIMIT
    world.in_flight = 5
    assert world.wait(20.0, rate=10.0) is OUT


def test_more_pods_than_are_needed_keep_it_in_the_path_for_the_stable_window() -> None:
    world = World(ready=5)
    world.wait(340.0, rate=10.0)
    assert world.state.position is ALONE
    world.wait(70.0, rate=10.0)
    assert world.state.position is OUT, "five are wanted still, after a window in which all was seen"
    world.wait(300.0, rate=10.0)
    assert world.state.position is ALONE
    world.wanted = 2
    assert world.wait(100.0, rate=10.0) is ALONE, "fewer are wanted: they go first"
    assert not world.is_held()
    world.pods(2)
    assert world.wait(15.0, rate=10.0) is OUT


def test_with_a_minimum_nobody_looks_for_zero() -> None:
    world = World(RULE._replace(least=1), ready=1)
    assert world.wait(10_000.0) is OUT
    assert world.state.due_s == NEVER


def come_back(world: World, after_s: float) -> None:
    """It goes to zero, and a request comes so long after that."""
    world.pods(0, 0)
    world.wait(after_s)
    world.queued = 1
    world.evaluate()
    world.queued = 0
    world.pods(1)


def test_a_request_right_after_zero_may_be_of_a_kept_connection() -> None:
    """Or of a new client: once, it costs as much as a look."""
    world = World(ready=1)
    world.wait(1_000.0)
    come_back(world, 10.0)
    assert world.wait(200.0, rate=10.0) is ALONE
    assert world.state.reason is PathReason.KEPT_CONNECTIONS
    assert world.wait(150.0, rate=10.0) is OUT


def test_several_in_a_row_are_of_kept_connections() -> None:
    world = World(ready=1)
    for stays_s in (300.0, 1_200.0, 3_600.0, 3_600.0):
        world.wait(1_000.0)
        come_back(world, 10.0)
        assert world.wait(stays_s - 20.0, rate=10.0) is ALONE
        assert world.state.reason is PathReason.KEPT_CONNECTIONS
        assert world.wait(70.0, rate=10.0) is OUT
    world.wait(1_000.0)
    come_back(world, 100.0)
    world.wait(40.0, rate=10.0)
    world.wait(1_000.0)
    come_back(world, 10.0)
    assert world.wait(350.0, rate=10.0) is OUT, "a zero that nobody came after ends the row"


def test_a_request_long_after_zero_is_none() -> None:
    world = World(ready=1)
    world.wait(1_000.0)
    world.pods(0, 0)
    world.wait(100.0)
    world.queued = 1
    world.evaluate()
    world.queued = 0
    world.pods(1)
    assert world.wait(40.0, rate=10.0) is OUT


def test_with_zero_only_others_decide_how_many() -> None:
    world = World(RULE._replace(zero_only=True), ready=7)
    world.wanted = 1
    world.wait(300.0, rate=10.0)
    assert world.wait(50.0, rate=10.0) is OUT


def test_what_is_not_shown_is_waited_for() -> None:
    world = World()
    world.wait(20.0)
    world.lag = True
    assert world.pods(1) is ALONE
    world.wait(500.0)
    assert world.is_held(), "it may not have been written"


class PathMachine(RuleBasedStateMachine):
    """Pods, requests, time and lagging watches in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(RULE._replace(settle_s=1.0, dwell_s=2.0, measure_interval_s=10.0, grace_s=5.0, stable_s=8.0))
        self.alone_since_s = NEVER  # as the cluster has it
        self.before = self.world.state.position

    def _evaluate(self) -> None:
        world = self.world
        before_s = world.now_s
        for _ in range(4):
            position = world.state.position
            world_shown = position if world.shown is position else None
            seen = ObservedPath(
                world.now_s, world_shown, world.ready, world.replicas, world.wanted, world.in_flight, world.queued,
                world.requests_total,
            )  # fmt: skip
            world.state = decide(world.rule, seen, world.state)
            new = world.state.position
            order = [OUT, BESIDE, ALONE]
            assert abs(order.index(new) - order.index(position)) <= 1, "one step at a time"
            if new is not position and new is not BESIDE:
                assert world_shown is not None, "no further step before the last one is shown"
            if world.lag or new is world.shown:
                break
            world.shown = new
        if world.shown is not ALONE:
            self.alone_since_s = NEVER
        elif self.alone_since_s == NEVER:
            self.alone_since_s = before_s

    @rule(seconds=st.sampled_from([0.05, 0.5, 1.0, 3.0, 11.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.now_s += seconds
        self._evaluate()

    @rule(ready=st.integers(0, 3), more=st.integers(0, 2))
    def pods_change(self, ready: int, more: int) -> None:
        self.world.ready, self.world.replicas = ready, ready + more
        self.world.wanted = ready + more
        self._evaluate()

    @rule(in_flight=st.integers(0, 3), queued=st.integers(0, 2))
    @precondition(lambda self: self.world.shown is not OUT)
    def requests_come(self, in_flight: int, queued: int) -> None:
        self.world.in_flight, self.world.queued = in_flight, queued
        self.world.requests_total += in_flight
        self._evaluate()

    @rule(lag=st.booleans())
    def watches_lag(self, lag: bool) -> None:
        self.world.lag = lag
        if not lag:
            self.world.shown = self.world.state.position
        self._evaluate()

    @invariant()
    def zero_is_decided_only_where_requests_are_seen(self) -> None:
        world = self.world
        if world.state.keeps_pods or (world.ready == 0 and world.replicas == 0):
            return
        assert world.state.position is ALONE
        assert world.now_s >= self.alone_since_s + world.rule.settle_s + world.rule.grace_s - 1e-9

    @invariant()
    def it_looks_again(self) -> None:
        world = self.world
        assert world.state.due_s > world.now_s or world.state.due_s == NEVER
        if world.state.due_s == NEVER:
            assert world.ready == 0 and world.replicas == 0, "with pods, something is always to come"


TestPathMachine = PathMachine.TestCase
TestPathMachine.settings = settings(stateful_step_count=40, deadline=None)
