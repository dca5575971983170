"""Loads and ready pods come in, numbers of pods go out: up at once, down with patience, to zero when idle."""

from __future__ import annotations

from math import ceil

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given, settings

from activator.config.model.kinds import Duration
from activator.config.model.programs import Process
from activator.config.model.revision import Revision
from activator.config.model.scaling import PROCESS_STABLE_WINDOW_S, Scaling, ScheduledScale
from activator.control_plane.scaling.autoscaler import SCALING_INTERVAL_S, Autoscaler
from activator.control_plane.scaling.decision import Decision
from activator.control_plane.scaling.explanation import ScalingReason
from activator.control_plane.scaling.rule import ScalingRule, process_rule
from activator.messages import Load
from activator.runtime.clock import NEVER
from tests.manual_clock import ManualClock

KEY = "default/app"
MONDAY_S = 1_795_996_800.0  # 2026-11-30 00:00 UTC


class Scaled:
    """An autoscaler with one revision, what it asked for, and pods that are ready as soon as they are asked for."""

    def __init__(self, rule: ScalingRule) -> None:
        self.clock = ManualClock(1000.0)
        self.wall_s = MONDAY_S - 1000.0
        self.asked: list[int] = []
        self.decisions: list[Decision] = []
        self.requests = 0
        self.seconds = 0.0
        self.here = (0, 0)
        self.scaler = Autoscaler(self.clock.now, lambda: self.wall_s + self.clock.now(), self._scale)
        self.scaler.set_revision(KEY, rule)
        self._settle()

    def _scale(self, key: str, decision: Decision) -> None:
        self.asked.append(decision.wanted)
        self.decisions.append(decision)

    def _settle(self) -> None:
        self.scaler.ready(KEY, self.wanted)

    def load(self, in_flight: int, queued: int = 0) -> None:
        self.requests += max(in_flight + queued - sum(self.here), 0)
        self.here = (in_flight, queued)
        self._report()

    def _report(self) -> None:
        carried = sum(self.here)
        self.scaler.load(Load(KEY, *self.here, self.requests, carried, self.seconds, self.clock.now()))
        self._settle()

    def tick(self, seconds: float) -> None:
        """Time passes as the loop has it: a load every 100 ms while there is one, and a tick."""
        for _ in range(round(seconds / 0.1)):
            self.clock.pass_time(0.1)
            self.seconds += 0.1 * sum(self.here)
            if sum(self.here):
                self._report()
            self.scaler.tick()
            self._settle()

    @property
    def wanted(self) -> int:
        return self.asked[-1] if self.asked else 0

    @property
    def reason(self) -> ScalingReason:
        decision = self.scaler.decision(KEY)
        assert decision is not None
        return decision.reason


def processes(idle_s: float = 60.0, min_scale: int = 0, max_scale: int = 4, concurrency: int = 10) -> ScalingRule:
    """The rule of a revision with a command."""
    process = Process(command=["x"], idle=Duration(idle_s), min_scale=min_scale, max_scale=max_scale)
    return process_rule(Revision(name="app", container_concurrency=concurrency, process=process))


# --- processes, as they have always been ---


def test_the_first_request_asks_for_one_at_once() -> None:
    scaled = Scaled(processes())
    scaled.load(0, 1)
    assert scaled.asked == [1]
    assert scaled.decisions[-1].reason is ScalingReason.WAITING_REQUESTS
    assert scaled.decisions[-1].explanation == (
        "1 request is here, 1 of them waiting, at a target of 10 for each pod: 1 pod at once."
    )


@given(st.integers(0, 500), st.integers(0, 500), st.integers(1, 50), st.integers(1, 20))
def test_the_formula(in_flight: int, queued: int, target: int, max_scale: int) -> None:
    scaled = Scaled(processes(max_scale=max_scale, concurrency=target))
    scaled.load(in_flight, queued)
    assert scaled.wanted == min(max_scale, ceil((in_flight + queued) / target))


def test_what_an_operator_unloads_is_not_asked_for_by_requests_that_its_pods_finish() -> None:
    scaled = Scaled(processes())
    scaled.load(3)
    scaled.tick(5.0)
    scaled.scaler.unload(KEY)
    assert scaled.asked == [1, 0], "at once, though three requests are in flight"
    scaled.tick(20.0)
    scaled.load(1)
    scaled.load(0)
    scaled.tick(120.0)
    assert scaled.asked == [1, 0]
    scaled.load(0, 1)
    assert scaled.asked == [1, 0, 1], "a new request waits"
    scaled.load(1)
    scaled.tick(50.0)
    scaled.load(0)
    scaled.tick(70.0)
    assert scaled.asked == [1, 0, 1, 0], "and is seen when it is in flight, as any other"


def test_an_unload_is_explained_as_what_it_is() -> None:
    """The revision was in use a moment ago, so no idle time explains it. Reported work ends with its pod."""
    scaled = Scaled(processes(idle_s=30.0))
    scaled.load(1)
    scaled.tick(5.0)
    scaled.scaler.busy(KEY, 1)
    scaled.scaler.unload(KEY)
    decision = scaled.decisions[-1]
    assert (decision.before, decision.wanted, decision.reason) == (1, 0, ScalingReason.UNLOADED)
    assert decision.seen.idle_s < 1.0
    assert "unloaded the revision" in decision.explanation
    scaled.load(1)
    scaled.tick(3.0)
    scaled.load(0)
    scaled.tick(60.0)
    assert (scaled.asked, scaled.reason) == ([1, 0], ScalingReason.UNLOADED)
    scaled.load(0, 1)
    assert scaled.reason is ScalingReason.WAITING_REQUESTS


def test_an_unload_stops_what_a_delay_or_a_retention_would_keep() -> None:
    kept = msgspec.structs.replace(processes(), scale_down_delay_s=300.0, last_pod_retention_s=NEVER)
    scaled = Scaled(kept)
    scaled.load(1)
    scaled.tick(5.0)
    scaled.scaler.unload(KEY)
    scaled.tick(5.0)
    assert scaled.asked == [1, 0]


def test_a_request_that_nobody_knew_of_yet_does_not_undo_an_unload() -> None:
    """It ended before, and the load that tells of it comes after."""
    scaled = Scaled(processes())
    scaled.load(0, 1)
    scaled.load(1)
    scaled.load(0)
    scaled.scaler.unload(KEY)
    scaled.requests += 2
    scaled.load(0)
    scaled.tick(10.0)
    assert scaled.asked == [1, 0]


def test_an_unload_does_not_stop_what_a_waiting_request_needs() -> None:
    scaled = Scaled(processes())
    scaled.load(0, 1)
    scaled.scaler.unload(KEY)
    scaled.load(0, 2)
    scaled.tick(10.0)
    assert scaled.asked == [1]
    scaled.load(2)
    scaled.scaler.unload(KEY)
    assert scaled.scaler.keep_for_operator(KEY, None)
    assert scaled.asked == [1, 0, 1], "an operator loads it again"
    scaled.tick(70.0)
    assert scaled.wanted == 1, "its requests are in flight"


def test_a_request_that_waited_may_have_been_served_when_its_revision_is_unloaded() -> None:
    scaled = Scaled(processes())
    scaled.load(0, 1)
    scaled.scaler.unload(KEY)
    scaled.load(1)
    assert scaled.asked == [1, 0]
    scaled.load(0)
    scaled.tick(10.0)
    assert scaled.asked == [1, 0]


def test_more_at_once_while_it_runs() -> None:
    scaled = Scaled(processes())
    scaled.load(5)
    scaled.tick(30.0)
    scaled.load(10, 21)
    assert scaled.asked == [1, 4], "no tick is awaited"


def test_down_only_when_the_window_has_not_needed_more() -> None:
    scaled = Scaled(processes())
    scaled.load(40)
    assert scaled.wanted == 4
    scaled.load(15)
    scaled.tick(PROCESS_STABLE_WINDOW_S - 1.0)
    assert scaled.wanted == 4
    scaled.load(25)
    scaled.tick(1.0 + 1.0 + SCALING_INTERVAL_S)
    assert scaled.wanted == 3
    scaled.load(15)
    scaled.tick(PROCESS_STABLE_WINDOW_S + 1.0 + SCALING_INTERVAL_S)
    assert scaled.wanted == 2


def test_to_zero_after_idle_and_not_before() -> None:
    scaled = Scaled(processes(idle_s=30.0))
    scaled.load(0, 1)
    scaled.load(0)
    scaled.tick(29.8)
    assert (scaled.wanted, scaled.reason) == (1, ScalingReason.GRACE)
    scaled.tick(0.4)
    assert (scaled.wanted, scaled.reason) == (0, ScalingReason.IDLE_TO_ZERO)
    scaled.load(0, 1)
    assert scaled.wanted == 1


@pytest.mark.parametrize("idle_s", [0.3, 1.0, 5.0])
def test_a_short_idle_is_kept_to_the_tick(idle_s: float) -> None:
    scaled = Scaled(processes(idle_s=idle_s))
    scaled.load(40)
    scaled.tick(20.0)
    scaled.load(0)
    busy_s = scaled.clock.now()
    while scaled.wanted:
        scaled.tick(0.1)
    assert idle_s <= scaled.clock.now() - busy_s <= idle_s + 0.11


def test_requests_between_two_reports_count_as_busy() -> None:
    scaled = Scaled(processes(idle_s=30.0))
    scaled.load(1)
    for _ in range(4):
        scaled.load(0)
        scaled.requests += 5  # came and went
        scaled.load(0)
        scaled.tick(20.0)
    assert scaled.wanted == 1


def test_one_long_request_keeps_its_process() -> None:
    scaled = Scaled(processes(idle_s=5.0))
    scaled.load(1)
    scaled.tick(600.0)
    assert scaled.wanted == 1
    scaled.clock.pass_time(600.0)  # without a report
    scaled.scaler.tick()
    assert scaled.wanted == 1


def test_min_scale_is_there_without_requests() -> None:
    scaled = Scaled(processes(min_scale=2, idle_s=5.0))
    assert scaled.asked == [2]
    scaled.load(40)
    scaled.load(0)
    scaled.tick(60.0)
    assert scaled.wanted == 2


def test_a_changed_rule_takes_effect_at_once() -> None:
    scaled = Scaled(processes())
    scaled.load(40)
    scaled.scaler.set_revision(KEY, processes(max_scale=2))
    assert scaled.wanted == 2
    assert scaled.reason is ScalingReason.MAX_SCALE


def test_defaults_follow_the_concurrency() -> None:
    unlimited = process_rule(Revision(name="a", process=Process(command=["x"])))
    assert (unlimited.max, unlimited.target) == (1, 100.0)
    limited = process_rule(Revision(name="a", container_concurrency=3, process=Process(command=["x"])), 8)
    assert (limited.max, limited.target, limited.burst) == (8, 3.0, True)


# --- Knative's way ---

CLUSTER = ScalingRule(target=10.0, max=20)


def test_without_burst_the_first_request_is_decided_on_at_once_and_the_rest_by_averages() -> None:
    scaled = Scaled(CLUSTER)
    scaled.load(0, 1)
    assert scaled.asked == [1]
    scaled.load(60)
    assert scaled.asked == [1]
    scaled.tick(SCALING_INTERVAL_S)
    assert scaled.wanted == 6
    decision = scaled.scaler.decision(KEY)
    assert decision is not None and decision.panicking


def test_the_windows_outlive_a_changed_rule() -> None:
    scaled = Scaled(CLUSTER)
    scaled.load(40)
    scaled.tick(60.0)
    before = scaled.scaler.decision(KEY)
    scaled.scaler.set_revision(KEY, ScalingRule(target=5.0, max=20, stable_window_s=30.0, panic_window_s=3.0))
    after = scaled.scaler.decision(KEY)
    assert before is not None and after is not None
    assert (before.seen.stable, after.seen.stable) == pytest.approx((40.0, 40.0))
    assert (before.wanted, after.wanted) == (4, 8)


def test_requests_per_second() -> None:
    scaled = Scaled(ScalingRule(metric="rps", target=50.0, max=20))
    for _ in range(600):
        scaled.requests += 12  # 120 a second
        scaled.load(1)
        scaled.tick(0.1)
    decision = scaled.scaler.decision(KEY)
    assert decision is not None
    assert decision.seen.stable == pytest.approx(120.0, rel=0.02)
    assert scaled.wanted == 3


def test_what_runs_already_is_kept_until_something_is_known() -> None:
    clock = ManualClock()
    asked: list[int] = []
    scaler = Autoscaler(clock.now, clock.now, lambda key, decision: asked.append(decision.wanted))
    scaler.set_revision(KEY, CLUSTER, ready=5)
    scaler.ready(KEY, 5)
    clock.pass_time(50.0)
    scaler.tick()
    assert asked == []
    first = scaler.decision(KEY)
    assert first is not None and first.panicking
    for _ in range(400):
        clock.pass_time(0.5)
        scaler.tick()
        scaler.ready(KEY, asked[-1] if asked else 5)
    assert asked[-1] == 0
    assert asked == sorted(asked, reverse=True)


def test_the_first_count_of_ready_pods_is_what_runs_already() -> None:
    clock = ManualClock()
    asked: list[int] = []
    scaler = Autoscaler(clock.now, clock.now, lambda key, decision: asked.append(decision.wanted))
    scaler.set_revision(KEY, CLUSTER)
    scaler.ready(KEY, 1)
    assert asked == []
    clock.pass_time(CLUSTER.scale_to_zero_grace_s)
    scaler.tick()
    assert asked == [0]


def test_the_initial_scale_lasts_until_it_was_reached() -> None:
    clock = ManualClock()
    asked: list[int] = []
    scaler = Autoscaler(clock.now, clock.now, lambda key, decision: asked.append(decision.wanted))
    scaler.set_revision(KEY, ScalingRule(initial_scale=3))
    assert asked == [3]
    for _ in range(100):
        clock.pass_time(2.0)
        scaler.tick()
    assert asked == [3]
    scaler.ready(KEY, 3)
    for _ in range(4):
        clock.pass_time(2.0)
        scaler.tick()
    assert asked[-1] == 0


def test_an_initial_scale_that_is_never_reached_is_given_up() -> None:
    clock = ManualClock()
    asked: list[int] = []
    scaler = Autoscaler(clock.now, clock.now, lambda key, decision: asked.append(decision.wanted))
    scaler.set_revision(KEY, ScalingRule(initial_scale=3))
    for _ in range(301):
        clock.pass_time(2.0)
        scaler.tick()
    assert asked == [3, 0]


def test_the_last_pod_stays_for_its_retention() -> None:
    rule = ScalingRule(target=10.0, scale_to_zero_grace_s=20.0, last_pod_retention_s=40.0)
    scaled = Scaled(rule)
    scaled.load(35)
    scaled.tick(2.0)
    scaled.load(0)
    scaled.tick(21.0)
    assert (scaled.wanted, scaled.reason) == (1, ScalingReason.RETENTION)
    scaled.tick(38.5)
    assert scaled.wanted == 1
    scaled.tick(1.0)
    assert scaled.wanted == 0


# --- what it costs, and what it shows ---


def test_revisions_that_sleep_are_not_looked_at() -> None:
    clock = ManualClock()
    asked: list[tuple[str, int]] = []
    scaler = Autoscaler(clock.now, clock.now, lambda key, decision: asked.append((key, decision.wanted)))
    for number in range(1000):
        scaler.set_revision(f"default/{number}", processes())
    assert scaler.awake() == 0
    scaler.load(Load("default/7", 0, 1, 1, 1, 0.0, clock.now()))
    assert (scaler.awake(), asked) == (1, [("default/7", 1)])
    scaler.load(Load("default/7", 0, 0, 1, 0, 0.1, clock.now()))
    clock.pass_time(61.0)
    scaler.tick()
    assert (scaler.awake(), asked[-1]) == (0, ("default/7", 0))
    shown = scaler.shown("default/7")
    assert shown is not None and shown.changed is not None
    assert not shown.is_awake
    assert shown.changed.before == 1


def test_one_at_its_minimum_sleeps_as_well() -> None:
    scaled = Scaled(processes(min_scale=2, idle_s=30.0))
    scaled.load(30)
    scaled.load(0)
    scaled.tick(60.0)
    assert (scaled.wanted, scaled.scaler.awake()) == (2, 0)
    scaled.load(0, 30)
    assert scaled.wanted == 3


def test_a_dropped_revision_is_not_scaled_any_more() -> None:
    scaled = Scaled(processes())
    scaled.load(40)
    scaled.scaler.drop_revision(KEY)
    scaled.load(400)
    scaled.tick(100.0)
    scaled.scaler.ready(KEY, 3)
    assert (scaled.asked, scaled.scaler.awake(), scaled.scaler.shown(KEY)) == ([4], 0, None)


def test_decisions_are_counted_by_reason() -> None:
    scaled = Scaled(processes())
    scaled.load(0, 1)
    totals = scaled.scaler.decision_totals
    assert set(totals) == set(ScalingReason)
    assert totals[ScalingReason.WAITING_REQUESTS] == 1
    assert sum(totals.values()) == 2, "and the first, when the revision became known"


def test_a_schedule_wakes_a_revision_that_sleeps() -> None:
    scaling = Scaling(max=4, schedule=[ScheduledScale(2, "08:00", "18:00", ["mon"], "UTC")])
    scaled = Scaled(process_rule(Revision(name="app", process=Process(command=["x"]), scaling=scaling)))
    assert scaled.asked == []
    changes: list[tuple[int, int, ScalingReason]] = []
    for second in range(0, 86400, 30):
        scaled.clock.pass_time(30.0)
        scaled.scaler.tick()
        scaled.scaler.ready(KEY, scaled.wanted)
        if len(scaled.asked) > len(changes):
            changes.append((second + 30, scaled.wanted, scaled.reason))
    assert changes[0] == (8 * 3600, 2, ScalingReason.SCHEDULE)
    assert changes[-1][1] == 0
    assert 18 * 3600 <= changes[-1][0] <= 18 * 3600 + 60


def test_reloads_with_other_schedules_keep_few_looks() -> None:
    scaled = Scaled(processes())
    for number in range(1000):
        scaling = Scaling(max=4, schedule=[ScheduledScale(2, f"0{number % 9}:{number % 60:02}", "18:00")])
        revision = Revision(name="app", process=Process(command=["x"]), scaling=scaling)
        scaled.scaler.set_revision(KEY, process_rule(revision))
    assert len(scaled.scaler._schedule_changes) <= 70


# --- any load ---

loads = st.lists(
    st.tuples(
        st.sampled_from([0, 0, 1, 5, 9, 10, 11, 40, 120]),
        st.sampled_from([0, 0, 3, 50]),
        st.sampled_from([0.1, 0.7, 3.0, 8.0]),
    ),
    min_size=1,
    max_size=25,
)


@settings(max_examples=60)
@given(loads, st.sampled_from([0.3, 5.0, 60.0]), st.integers(0, 2))
def test_processes_are_always_enough_and_never_more_than_the_last_seconds_needed(
    steps: list[tuple[int, int, float]], idle_s: float, min_scale: int
) -> None:
    """The rule that processes had before: what the most requests of the window need, at once up, to `min` when idle."""
    scaled = Scaled(processes(idle_s, min_scale, max_scale=9))
    past: list[tuple[float, int]] = []
    for in_flight, queued, seconds in steps:
        scaled.load(in_flight, queued)
        carried = in_flight + queued
        for _ in range(max(round(seconds / 0.1), 1)):
            past.append((scaled.clock.now(), carried))
            scaled.tick(0.1)
            needed = min(9, max(min_scale, ceil(carried / 10)))
            assert scaled.wanted >= needed
            slack_s = PROCESS_STABLE_WINDOW_S + 1.0 + SCALING_INTERVAL_S
            most = max(one for when_s, one in past if when_s >= scaled.clock.now() - slack_s)
            halving_s = 4.0 * SCALING_INTERVAL_S  # from nine to one
            longer = max(one for when_s, one in past if when_s >= scaled.clock.now() - slack_s - halving_s)
            assert scaled.wanted <= min(9, max(min_scale, 1, ceil(max(most, longer) / 10)))


# --- a day ---


def test_a_day_of_an_office() -> None:
    """Nothing at night, a slow rise in the morning, a peak at noon, a burst in the evening."""
    scaled = Scaled(processes(max_scale=12))
    pod_seconds = 0.0

    def hour(requests: int) -> None:
        nonlocal pod_seconds
        scaled.load(requests)
        for _ in range(36):
            scaled.tick(10.0)
            pod_seconds += 10.0 * scaled.wanted
            assert scaled.wanted >= ceil(requests / 10), "never fewer than the load needs"

    for requests in (0, 12, 35, 80, 115, 60, 20, 0):
        hour(requests)
    scaled.load(0, 95)
    assert scaled.wanted == 10, "at once"
    hour(3)
    hour(0)
    assert scaled.wanted == 0
    assert len(scaled.asked) <= 20, "one change for each step of the load, and a few on the way down"
    needed = 360.0 * sum(ceil(one / 10) for one in (12, 35, 80, 115, 60, 20, 3))
    assert pod_seconds <= 1.05 * needed + 120.0


# --- work without a request ---


def test_a_program_that_is_busy_is_kept_and_goes_when_the_grace_after_that_is_over() -> None:
    scaled = Scaled(
        process_rule(Revision(name="app", process=Process(command=["x"], idle=Duration(20.0), max_scale=3)))
    )
    scaled.load(1)
    scaled.tick(1.0)
    scaled.load(0)
    scaled.scaler.busy(KEY, 1)
    for _ in range(30):
        scaled.tick(10.0)
        scaled.scaler.busy(KEY, 1)
    assert scaled.wanted == 1
    decision = scaled.scaler.decision(KEY)
    assert decision is not None and decision.reason in {ScalingReason.BUSY, ScalingReason.GRACE}
    scaled.scaler.busy(KEY, 0)
    scaled.tick(15.0)
    assert scaled.wanted == 1, "the grace begins when it stops to be busy"
    scaled.tick(10.0)
    assert scaled.wanted == 0


def test_a_program_that_others_need_is_kept_and_goes_when_the_grace_after_that_is_over() -> None:
    scaled = Scaled(processes(idle_s=10.0))
    scaled.scaler.needed("ns/unknown", 1)
    scaled.scaler.needed(KEY, 2)
    assert (scaled.wanted, scaled.reason) == (1, ScalingReason.NEEDED)
    scaled.tick(100.0)
    scaled.scaler.needed(KEY, 1)
    scaled.tick(100.0)
    decision = scaled.scaler.decision(KEY)
    assert decision is not None and (decision.wanted, decision.kept) == (1, 1)
    scaled.scaler.needed(KEY, 0)
    scaled.tick(9.0)
    assert scaled.wanted == 1, "the grace begins when nobody needs it any more"
    scaled.tick(2.5)
    assert scaled.wanted == 0 and scaled.scaler.awake() == 0


@given(
    st.floats(0.5, 30.0),
    st.floats(0.0, 20.0),
    st.lists(st.tuples(st.integers(0, 25), st.floats(0.1, 20.0)), max_size=5),
)
def test_the_end_of_the_last_pod_is_known_before(
    grace_s: float, retention_s: float, loads: list[tuple[int, float]]
) -> None:
    """Whatever came before: from the end of the last request on, each decision names the time of the last one."""
    rule = msgspec.structs.replace(processes(idle_s=grace_s), last_pod_retention_s=retention_s)
    scaled = Scaled(rule)
    for here, seconds in [*loads, (1, SCALING_INTERVAL_S + 0.3)]:  # a decision is made while there is one
        scaled.load(here)
        scaled.tick(seconds)
    decision = scaled.scaler.decision(KEY)
    assert decision is not None and decision.unloads_at_s() is None, "it has a request"
    scaled.load(0)
    scaled.tick(0.2)
    told: list[float] = []
    for _ in range(1_000):
        decision = scaled.scaler.decision(KEY)
        assert decision is not None
        at_s = decision.unloads_at_s()
        if scaled.wanted == 0:
            assert at_s is None
            break
        if decision.seen.carried == 0:
            assert at_s is not None
            told.append(at_s)
        scaled.tick(0.1)
    assert scaled.wanted == 0
    assert all(abs(at_s - scaled.clock.now()) < 0.5 for at_s in told)


def test_as_many_are_kept_as_are_busy() -> None:
    scaled = Scaled(
        process_rule(Revision(name="app", container_concurrency=1, process=Process(command=["x"], max_scale=4)))
    )
    scaled.load(4)
    scaled.tick(1.0)
    scaled.load(0)
    scaled.scaler.busy(KEY, 2)
    for _ in range(20):
        scaled.tick(10.0)
        scaled.scaler.busy(KEY, 2)
    assert scaled.wanted == 2
    decision = scaled.scaler.decision(KEY)
    assert decision is not None and "2 pods of it report work without a request" in decision.explanation


def test_a_time_of_the_last_activity_counts_like_a_request_then() -> None:
    scaled = Scaled(process_rule(Revision(name="app", process=Process(command=["x"], idle=Duration(20.0)))))
    scaled.load(1)
    scaled.load(0)
    scaled.tick(15.0)
    scaled.scaler.touched(KEY, 3.0)
    scaled.tick(15.0)
    assert scaled.wanted == 1
    scaled.scaler.touched(KEY, 300.0)
    scaled.tick(10.0)
    assert scaled.wanted == 0
