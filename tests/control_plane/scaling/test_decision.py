"""The pure decision: what Knative's own tests expect of it, and what holds for every rule, load and past."""

from __future__ import annotations

from math import ceil, floor
from typing import NamedTuple

import hypothesis.strategies as st
import pytest
from hypothesis import assume, given

from activator.control_plane.scaling.decision import Decision, ScalingState, decide, most_within
from activator.control_plane.scaling.explanation import ScalingReason
from activator.control_plane.scaling.observation import Observation
from activator.control_plane.scaling.rule import ScalingRule

STABLE_WINDOW_S = 60.0  # of Knative's tests

# --- the tables of pkg/autoscaler/scaling/autoscaler_test.go ---------------------------------------------------------


class Case(NamedTuple):
    """One row: the averages, how many pods are ready, and how many are wanted then."""

    name: str
    target: float
    stable: float
    panic: float
    ready: int
    wanted: int
    up: float = 10.0
    down: float = 10.0
    panic_s: float | None = None
    panic_pods: int = 0


# Go's test has these maximal rates, and a panic threshold of 2, for all rows that do not say otherwise.
TEST_AUTOSCALER_SCALE = (
    Case("AutoscalerNoDataAtZeroNoAutoscale", 10, 0, 0, 1, 0),
    Case("AutoscalerStableModeUnlimitedTBC", 181, 21.0, 26, 1, 1),
    Case("Autoscaler0TBC", 10, 50.0, 49, 1, 5),
    Case("AutoscalerStableModeNoChange", 10, 50.0, 50, 1, 5),
    Case("AutoscalerPanicStableLargerThanPanic", 1, 50, 30, 5, 50, panic_s=-5.0, panic_pods=5),
    Case("AutoscalerPanicStableLessThanPanic", 1, 20, 30, 5, 30, panic_s=-5.0, panic_pods=5),
    Case("AutoscalerStableModeNoChangeAlreadyScaled", 10, 50.0, 50, 5, 5),
    Case("AutoscalerStableModeIncreaseWithSmallScaleUpRate", 1, 3, 3.1, 2, 3, up=1.1),
    Case("AutoscalerStableModeDecreaseWithSmallScaleDownRate", 10, 1, 1, 100, 90, down=1.1),
    Case("AutoscalerPanicModeDoublePodCount", 10, 50, 100, 1, 10),
    Case("TestAutoscalerRateLimitScaleUp, first", 10, 1000, 1001, 1, 10),
    Case("TestAutoscalerRateLimitScaleUp, then", 10, 1000, 1001, 10, 100),
    Case("TestAutoscalerRateLimitScaleDown, first", 10, 1, 1, 100, 10),
    Case("TestAutoscalerRateLimitScaleDown, then", 10, 1, 1, 10, 1),
    Case("TestAutoscalerUseOnePodAsMinimumIfEndpointsNotFound", 10, 1000, 888, 0, 10),
)


def go_rule(target: float, up: float = 10.0, down: float = 10.0, **more: float) -> ScalingRule:
    """`newTestAutoscaler`; its idle time is not ours, so it never ends here."""
    return ScalingRule(
        target=target,
        stable_window_s=STABLE_WINDOW_S,
        panic_threshold=2.0,
        scale_up_rate=up,
        scale_down_rate=down,
        scale_to_zero_grace_s=0.0,
        **more,  # type: ignore[arg-type]
    )


class Go:
    """Knative's test as its steps; a revision whose average is 0 is idle, one with an average has a request."""

    def __init__(self, rule: ScalingRule, state: ScalingState | None = None) -> None:
        self.rule = rule
        self.state = ScalingState(wanted=1, is_initialized=True) if state is None else state

    def scale(self, now_s: float, stable: float, panic: float, ready: int) -> int:
        carried = 1 if stable or panic else 0
        seen = Observation(now_s, stable, panic, carried, 0, ready=ready, idle_s=0.0 if carried else 1.0)
        decision = decide(self.rule, seen, self.state)
        self.state = decision.state
        return decision.wanted


@pytest.mark.parametrize("case", TEST_AUTOSCALER_SCALE, ids=lambda case: case.name)
def test_autoscaler_scale(case: Case) -> None:
    state = ScalingState(1, panic_s=case.panic_s, panic_pods=case.panic_pods, is_initialized=True)
    go = Go(go_rule(case.target, case.up, case.down), state)
    assert go.scale(0.0, case.stable, case.panic, case.ready) == case.wanted


def test_autoscaler_stable_mode_increase_and_decrease() -> None:
    """`TestAutoscalerStableModeIncreaseWithConcurrencyDefault`, `TestAutoscalerStableModeDecrease`."""
    go = Go(go_rule(10.0))
    assert [go.scale(0.0, 50.0, 10.0, 1), go.scale(0.0, 100.0, 10.0, 1)] == [5, 10]
    go = Go(go_rule(10.0))
    assert [go.scale(0.0, 100.0, 100.0, 8), go.scale(0.0, 50.0, 50.0, 8)] == [10, 5]


def test_autoscaler_unpanic_after_slow_increase() -> None:
    """`TestAutoscalerUnpanicAfterSlowIncrease`."""
    go = Go(go_rule(1.0))
    assert go.scale(0.0, 11, 25, 10) == 25
    assert go.scale(30.0, 30, 41, 40) == 41
    assert go.state.panic_s == 0.0, "it does not begin anew"
    assert go.scale(62.0, 50, 56, 55) == 50
    assert go.state.panic_s is None


def test_autoscaler_extend_panic_window() -> None:
    """`TestAutoscalerExtendPanicWindow`."""
    go = Go(go_rule(1.0))
    assert go.scale(0.0, 11, 25, 10) == 25
    assert go.scale(30.0, 30, 80, 40) == 80
    assert go.state.panic_s == 30.0


def test_autoscaler_panic_then_unpanic_scale_down() -> None:
    """`TestAutoscalerPanicThenUnPanicScaleDown`."""
    go = Go(go_rule(10.0))
    assert go.scale(0.0, 100, 100, 1) == 10
    assert go.scale(0.0, 100, 1000, 10) == 100
    assert go.scale(30.0, 1, 1, 10) == 100
    assert go.scale(61.0, 1, 1, 10) == 1


def test_autoscaler_panic_mode_exponential_track_and_stabilize() -> None:
    """`TestAutoscalerPanicModeExponentialTrackAndStabilize`."""
    go = Go(go_rule(1.0))
    wanted = [
        go.scale(0.0, load, load, ready) for load, ready in ((6, 1), (36, 6), (216, 36), (1296, 216), (1296, 1296))
    ]
    assert wanted == [6, 36, 216, 1296, 1296]


def test_autoscaler_activation_scale() -> None:
    """`TestAutoscalerActivationScale`."""
    go = Go(go_rule(10.0, activation_scale=2))
    assert [go.scale(0.0, 0, 0, 1), go.scale(0.0, 1, 0, 1)] == [0, 2]


def test_autoscaler_start_metrics() -> None:
    """`newAutoscaler`: with more than one pod it begins in panic mode."""
    begun = ScalingState.begun(7.0, 5)
    assert (begun.panic_s, begun.panic_pods, begun.wanted) == (7.0, 5, 5)
    assert ScalingState.begun(7.0, 1).panic_s is None


def test_autoscaler_scale_down_delay() -> None:
    """`TestAutoscalerScaleDownDelay`: simple, then gradual."""
    go = Go(_delayed_rule())
    assert go.scale(2.0, 40, 40, 1) == 4
    assert go.scale(300.0, 0, 0, 1) == 4
    assert go.scale(302.0, 0, 0, 1) == 0
    assert go.scale(540.0, 40, 40, 1) == 4
    assert go.scale(600.0, 30, 30, 1) == 4
    assert go.scale(660.0, 0, 0, 1) == 4
    assert go.scale(840.0, 0, 0, 1) == 3
    assert go.scale(900.0, 0, 0, 1) == 0


def test_autoscaler_scale_down_delay_zero() -> None:
    """`TestAutoscalerScaleDownDelayZero`."""
    go = Go(_delayed_rule(0.0))
    assert [go.scale(0.0, 40, 40, 1), go.scale(0.5, 20, 20, 1)] == [4, 2]


def _delayed_rule(delay_s: float = 300.0) -> ScalingRule:
    return ScalingRule(
        target=10.0,
        panic_threshold=100.0,
        scale_up_rate=10.0,
        scale_down_rate=10.0,
        scale_down_delay_s=delay_s,
        scale_to_zero_grace_s=0.0,
    )


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([(0.0, 5)], 5),
        ([(0.0, 6), (0.1, 5)], 6),
        ([(0.0, 5), (1.0, 8)], 8),
        ([(0.0, 5), (6.0, 4)], 4),
    ],
)
def test_timed_window_max(values: list[tuple[float, int]], expected: int) -> None:
    """`TestTimedWindowMax` of pkg/autoscaler/aggregation/max/timewindow_test.go."""
    entries: tuple[tuple[float, int], ...] = ()
    for now_s, value in values:
        entries = most_within(entries, now_s, value, 5.0)
    assert entries[0][1] == expected


# --- the table of pkg/reconciler/autoscaling/kpa/scaler_test.go (TestScaler) ------------------------------------------


class ScalerCase(NamedTuple):
    """One row: how many run, how many the averages ask for, since when the revision is inactive, and what is wanted.

    There `stableWindow` is 5 min, after which a revision without load is inactive, and `gracePeriod` is 60 s; here the
    grace is both, and counted from the last request. `wantScaling: false` keeps what runs.
    """

    name: str
    running: int
    asked: int
    wanted: int
    idle_s: float = 0.0
    min: int = 0
    max: int = 0
    retention_s: float = 0.0
    initial: int = 0
    is_initialized: bool = True


GO_STABLE_WINDOW_S, GO_GRACE_S = 300.0, 60.0
GRACE_S = GO_STABLE_WINDOW_S + GO_GRACE_S

TEST_SCALER = (
    ScalerCase("waits to scale to zero (just before idle period)", 1, 0, 1, GO_STABLE_WINDOW_S - 1.0),
    ScalerCase("scale to 1 waiting for idle expires", 10, 0, 1, GO_STABLE_WINDOW_S - 1.0),
    ScalerCase("waits to scale to zero after idle period", 1, 0, 1, GO_STABLE_WINDOW_S),
    ScalerCase("can scale to zero after grace period, but 0 PA retention", 1, 0, 0, GRACE_S),
    ScalerCase(
        "can't scale to zero after grace period, but before last pod retention", 1, 0, 1, GRACE_S, retention_s=120.0
    ),
    ScalerCase("scale to zero after grace period", 1, 0, 0, GRACE_S),
    ScalerCase("waits to scale to zero (just before grace period)", 1, 0, 1, GRACE_S - 1.0),
    ScalerCase("scale down to minScale before grace period", 10, 0, 2, GRACE_S - 1.0, min=2),
    ScalerCase("scale down to minScale after grace period", 10, 0, 2, GRACE_S, min=2),
    ScalerCase("scales up", 1, 10, 10),
    ScalerCase("scales up to maxScale", 1, 10, 8, max=8),
    ScalerCase("scales up from zero to desired one", 0, 1, 1),
    ScalerCase("scales up from zero to desired high scale", 0, 10, 10),
    ScalerCase("initial scale attained, but now time to scale down", 2, 0, 1, 1.0, initial=2),
    ScalerCase(
        "haven't scaled to initial scale, override desired scale with initial scale",
        *(0, 1, 2),
        initial=2,
        is_initialized=False,
    ),
)


@pytest.mark.parametrize("case", TEST_SCALER, ids=lambda case: case.name)
def test_scaler(case: ScalerCase) -> None:
    rule = ScalingRule(
        case.min,
        case.max,
        target=1.0,
        scale_down_rate=10.0,
        panic_threshold=10.0,
        initial_scale=case.initial,
        scale_to_zero_grace_s=GRACE_S,
        last_pod_retention_s=case.retention_s,
    )
    carried = case.asked
    ready = case.running
    seen = Observation(500.0, case.asked, case.asked, carried, 0, carried, ready, case.idle_s)
    state = ScalingState(case.running, is_initialized=case.is_initialized)
    if case.idle_s and case.running > 1:  # there the averages are 0 already, and ten went to one in one step
        seen = seen._replace(ready=1)
    assert decide(rule, seen, state).wanted == case.wanted


# --- for every rule, load and past -----------------------------------------------------------------------------------

rules = st.builds(
    ScalingRule,
    min=st.integers(0, 3),
    max=st.sampled_from([0, 3, 5, 50]),
    target=st.sampled_from([1.0, 10.0, 12.5]),
    utilization=st.sampled_from([0.7, 1.0]),
    stable_window_s=st.sampled_from([10.0, 60.0]),
    panic_threshold=st.sampled_from([1.5, 2.0]),
    scale_up_rate=st.sampled_from([1.1, 2.0, 1000.0]),
    scale_down_rate=st.sampled_from([1.1, 2.0, 10.0]),
    scale_down_delay_s=st.sampled_from([0.0, 10.0, 60.0]),
    initial_scale=st.integers(0, 3),
    activation_scale=st.integers(1, 3),
    scale_to_zero_grace_s=st.sampled_from([0.0, 5.0, 60.0]),
    last_pod_retention_s=st.sampled_from([0.0, 30.0]),
    burst=st.booleans(),
)
averages = st.floats(0.0, 500.0)


@st.composite
def observations(draw: st.DrawFn, now_s: float = 1000.0) -> Observation:
    in_flight, queued = draw(st.integers(0, 100)), draw(st.integers(0, 100))
    idle_s = 0.0 if in_flight + queued else draw(st.sampled_from([0.0, 1.0, 5.0, 59.0, 60.0, 1000.0]))
    peak = in_flight + queued + draw(st.integers(0, 50))
    ready, scheduled = draw(st.integers(0, 60)), draw(st.integers(0, 3))
    return Observation(now_s, draw(averages), draw(averages), in_flight, queued, peak, ready, idle_s, scheduled)


@st.composite
def states(draw: st.DrawFn, now_s: float = 1000.0) -> ScalingState:
    panics = draw(st.booleans())
    return ScalingState(
        draw(st.integers(0, 60)),
        now_s - draw(st.sampled_from([0.0, 50.0, 900.0])),
        now_s - draw(st.sampled_from([0.0, 5.0, 30.0, 100.0])) if panics else None,
        draw(st.integers(0, 60)) if panics else 0,
        is_initialized=draw(st.booleans()),
    )


@given(rules, observations(), states())
def test_within_the_bounds(rule: ScalingRule, seen: Observation, state: ScalingState) -> None:
    decision = decide(rule, seen, state)
    least = max(rule.min, seen.scheduled)
    assert decision.wanted >= (min(least, rule.max) if rule.max else least)
    if rule.max:
        assert decision.wanted <= rule.max
    if seen.carried:
        assert decision.wanted >= 1


@given(rules, observations(), states(), st.integers(0, 50), averages, averages)
def test_more_load_never_wants_less(
    rule: ScalingRule, seen: Observation, state: ScalingState, here: int, stable: float, panic: float
) -> None:
    more = seen._replace(
        stable=seen.stable + stable,
        panic=seen.panic + panic,
        in_flight=seen.in_flight + here,
        peak=seen.peak + here,
        idle_s=0.0 if here or seen.carried else seen.idle_s,
    )
    assert decide(rule, more, state).wanted >= decide(rule, seen, state).wanted


@given(rules, observations(), states())
def test_it_is_pure(rule: ScalingRule, seen: Observation, state: ScalingState) -> None:
    assert decide(rule, seen, state) == decide(rule, seen, state)


@given(rules, observations(), states())
def test_rates_hold(rule: ScalingRule, seen: Observation, state: ScalingState) -> None:
    """But for what a rule demands: bounds, the activation scale, a panic that holds, and zero after the grace."""
    decision = decide(rule, seen, state)
    ready = max(seen.ready, 1)
    most = max(ceil(rule.scale_up_rate * ready), state.wanted, state.panic_pods, rule.min, seen.scheduled)
    assert decision.wanted <= max(most, rule.initial_scale, rule.activation_scale)
    if seen.carried and not rule.max:
        assert decision.wanted >= floor(ready / rule.scale_down_rate)


@given(rules, observations(), states())
def test_every_decision_is_explained(rule: ScalingRule, seen: Observation, state: ScalingState) -> None:
    sentence = decide(rule, seen, state).explanation
    assert sentence.endswith(".") and "\n" not in sentence
    assert sentence[0].isupper() or sentence[0].isdigit()


def test_every_reason_is_given_by_something() -> None:
    given_reasons = {decision.reason for decision in _one_of_each()}
    assert given_reasons == set(ScalingReason)


def _one_of_each() -> list[Decision]:
    plain = ScalingRule(target=10.0)
    two = ScalingState(2, is_initialized=True)
    busy = Observation(1000.0, 20.0, 20.0, 20, 0, 20, 2)
    idle = Observation(1000.0, ready=2, idle_s=10.0)
    burst = ScalingRule(target=10.0, burst=True)
    return [
        decide(plain, busy, two),
        decide(plain, busy._replace(stable=30.0), two),
        decide(plain, busy._replace(panic=80.0), two),
        decide(plain, busy, two._replace(panic_s=990.0, panic_pods=7)),
        decide(ScalingRule(target=10.0, scale_up_rate=2.0), busy._replace(stable=90.0), two),
        decide(plain, busy._replace(stable=1.0, panic=1.0, ready=9), two),
        decide(ScalingRule(target=10.0, activation_scale=3), busy, two),
        decide(burst, busy._replace(queued=70, peak=90), two),
        decide(burst, busy._replace(in_flight=90, peak=90), two),
        decide(burst, busy._replace(peak=90), two),
        decide(plain, busy._replace(stable=0.0, panic=0.0, ready=1), two),
        decide(ScalingRule(target=10.0, scale_down_delay_s=60.0), busy, two._replace(delayed=((999.0, 9),))),
        decide(plain, idle._replace(idle_s=60.0), two),
        decide(plain, idle._replace(ready=1), two),
        decide(plain, idle._replace(is_unloaded=True), two),
        decide(ScalingRule(last_pod_retention_s=9.0), idle._replace(idle_s=60.0), two),
        decide(plain, idle, ScalingState(0, is_initialized=True)),
        decide(ScalingRule(min=4), idle, two),
        decide(plain, idle._replace(scheduled=5), two),
        decide(plain, idle._replace(held=3), two),
        decide(plain, idle._replace(busy=3), two),
        decide(plain, idle._replace(idle_s=60.0, users=2), two),
        decide(ScalingRule(initial_scale=5), idle._replace(now_s=10.0), two._replace(is_initialized=False)),
        decide(ScalingRule(target=10.0, max=1), busy, two),
    ]


# --- over time -------------------------------------------------------------------------------------------------------


@given(rules, st.integers(1, 300), st.integers(0, 20))
def test_a_constant_load_does_not_flap(rule: ScalingRule, load: int, ready: int) -> None:
    """Once the windows are full of it and the pods are ready: at most one way, and then it stays.

    The slowest way down is from 20 pods at a rate of 1.1, with a delay of 60 s before each of 15 steps.
    """
    assume(rule.initial_scale <= (rule.max or rule.initial_scale))
    state = ScalingState.begun(0.0, ready)
    wanted = []
    for step in range(800):
        seen = Observation(2.0 * step, load, load, load, 0, load, ready)
        state = decide(rule, seen, state).state
        wanted.append(state.wanted)
        ready = state.wanted
    settled = wanted[600:]
    assert len(set(settled)) == 1
    least = max(1, rule.min, ceil(load / rule.effective_target), rule.activation_scale)
    expected = min(least, rule.max) if rule.max else least
    assert settled[0] == expected
    turns = sum((b - a) * (c - b) < 0 for a, b, c in zip(wanted, wanted[1:], wanted[2:], strict=False))
    assert turns <= 1


@given(rules, observations(), states())
def test_without_a_request_it_comes_to_its_minimum(rule: ScalingRule, seen: Observation, state: ScalingState) -> None:
    for step in range(700):
        now_s = 1000.0 + 2.0 * step
        idle = Observation(now_s, ready=state.wanted, idle_s=2.0 * step)
        state = decide(rule, idle, state).state
    assert state.wanted == (min(rule.min, rule.max) if rule.max else rule.min)


@given(st.lists(st.tuples(st.sampled_from([0.05, 0.25, 2.0, 50.0]), st.integers(0, 9)), max_size=60))
def test_the_delay_is_the_greatest_of_its_window(steps: list[tuple[float, int]]) -> None:
    entries: tuple[tuple[float, int], ...] = ()
    now_s, seen = 0.0, []
    for step_s, value in steps:
        now_s += step_s
        seen.append((floor(now_s / 0.25) * 0.25, value))
        entries = most_within(entries, now_s, value, 100.0)
        at_s = floor(now_s / 0.25) * 0.25
        assert entries[0][1] == max(value for when_s, value in seen if at_s - when_s < 100.0)
        assert list(entries) == sorted(entries, key=lambda entry: -entry[1])


def test_the_delay_keeps_a_bounded_number_of_entries() -> None:
    entries: tuple[tuple[float, int], ...] = ()
    for step in range(100_000):
        entries = most_within(entries, step * 0.1, 200_000 - step, 3600.0)
    assert len(entries) <= 1_200
