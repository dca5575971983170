"""Decides how many pods a revision should have: Knative's algorithm, as a pure function of observations.

Rules
  1. `decide` reads no clock and does no I/O: equal rules, observations and states give equal decisions. The state that
     the next decision starts from is part of the decision.
  2. The steps, in this order: the averages, within the rates; panic; the present requests, if the rule has `burst`;
     zero, after the grace without a request; the scale-down delay; the last pod; minimum and maximum. The reason is the
     last step that changed the number. An operator's unload replaces all steps before minimum and maximum.
  3. The number is never zero while a request is in flight or queued.
  4. Without a request a revision at zero stays there, whatever its past averages are.

`burst`, the grace and the last pod are additions (docs/scaling.md has the reasons); the rest is Knative's.

Source: knative.dev/serving pkg/autoscaler/scaling/autoscaler.go (Scale), pkg/autoscaler/aggregation/max/window.go,
pkg/reconciler/autoscaling/kpa/scaler.go (scale, handleScaleToZero), v1.23.
"""

from __future__ import annotations

from math import ceil, floor
from typing import Final, NamedTuple

from activator.control_plane.scaling.explanation import ScalingReason, explain
from activator.control_plane.scaling.observation import Observation
from activator.control_plane.scaling.rule import ScalingRule

INITIAL_SCALE_MAX_S: Final = 600.0  # an initial scale that was not reached after this time counts as reached

# The resolution of the scale-down delay: numbers within one step are one entry, so there are at most 1,200.
_DELAY_STEPS: Final = ((300.0, 0.25), (1200.0, 1.0), (float("inf"), 4.0))


class ScalingState(NamedTuple):
    """The state that one decision passes to the next."""

    wanted: int = 0
    begun_s: float = 0.0  # when the revision became known
    panic_s: float | None = None  # when the load was last over the threshold, in panic mode
    panic_pods: int = 0  # the largest number of this panic
    delayed: tuple[tuple[float, int], ...] = ()  # (time, number), with falling numbers, for the scale-down delay
    zero_s: float | None = None  # since when only the last pod's retention keeps it above zero
    is_initialized: bool = False  # its initial scale was reached

    @classmethod
    def begun(cls, now_s: float, ready: int) -> ScalingState:
        """Return the state of a revision with so many running pods. Its past is unknown, so it begins in panic mode."""
        return cls(ready, now_s, now_s if ready > 1 else None, ready if ready > 1 else 0, is_initialized=ready > 0)


class Decision(NamedTuple):
    """A number of pods, and the figures from which it was computed."""

    wanted: int
    reason: ScalingReason
    panicking: bool
    before: int  # the number until now
    needed: int  # the number for the load alone, without rates, delay and bounds
    rule: ScalingRule
    seen: Observation
    state: ScalingState

    @property
    def kept(self) -> int:
        """The number of pods required whatever the load is: for a minimum, a schedule, an operator, or dependents."""
        initial = 0 if self.state.is_initialized else self.rule.initial_scale
        for_users = min(self.seen.users, 1)
        return min(max(self.rule.min, self.seen.scheduled, self.seen.held, for_users, initial), self.wanted)

    def unloads_at_s(self) -> float | None:
        """Return when the last pod is stopped if no other request comes.

        None: nothing runs, it has work or is kept, or a scale-down delay decides.
        """
        seen = self.seen
        if self.wanted == 0 or self.kept or seen.carried or seen.busy or self.rule.scale_down_delay_s > 0.0:
            return None
        zero_s = self.state.zero_s
        if zero_s is None:
            zero_s = seen.now_s - seen.idle_s + self.rule.scale_to_zero_grace_s
        return zero_s + self.rule.last_pod_retention_s

    @property
    def explanation(self) -> str:
        """One sentence with the numbers."""
        return explain(self.reason, self.wanted, self.needed, self.rule, self.seen)


class _Candidate(NamedTuple):
    """An intermediate number, with its reason and the panic and delay state."""

    wanted: int
    reason: ScalingReason
    needed: int = 0
    panic_s: float | None = None
    panic_pods: int = 0
    delayed: tuple[tuple[float, int], ...] = ()


def decide(rule: ScalingRule, seen: Observation, state: ScalingState) -> Decision:
    """Return the number of pods that are wanted from now on, with its reason."""
    if seen.is_unloaded and not seen.carried:
        candidate = _Candidate(0, ScalingReason.UNLOADED)
        wanted, reason, zero_s = 0, candidate.reason, None
    else:
        candidate = by_load(rule, seen, state)
        wanted, reason, zero_s = _last_pod(rule, seen, state, candidate)
    is_initialized = (
        state.is_initialized or seen.ready >= rule.initial_scale or seen.now_s - state.begun_s >= INITIAL_SCALE_MAX_S
    )
    wanted, reason = _bounded(rule, seen, wanted, reason, is_initialized)
    if wanted == state.wanted and reason is ScalingReason.STABLE_AVERAGE:
        reason = ScalingReason.WITHIN_TARGET
    after = ScalingState(
        wanted, state.begun_s, candidate.panic_s, candidate.panic_pods, candidate.delayed, zero_s, is_initialized
    )
    return Decision(wanted, reason, candidate.panic_s is not None, state.wanted, candidate.needed, rule, seen, after)


def by_load(rule: ScalingRule, seen: Observation, state: ScalingState) -> _Candidate:
    """Return the number that the load asks for, before the last pod and the bounds."""
    candidate = _by_averages(rule, seen, state)
    if rule.burst:
        candidate = _with_burst(rule, seen, state, candidate)
    if seen.carried == 0 and seen.idle_s >= rule.scale_to_zero_grace_s:
        candidate = _Candidate(0, ScalingReason.IDLE_TO_ZERO, 0)
    return _delayed(rule, seen, state, candidate)


# --- Knative's Scale -------------------------------------------------------------------------------------------------


def _by_averages(rule: ScalingRule, seen: Observation, state: ScalingState) -> _Candidate:
    """Return the number for the averages, within the rates, and the new state of the panic mode."""
    ready = max(seen.ready, 1)
    target = rule.effective_target
    stable_needed, panic_needed = ceil(seen.stable / target), ceil(seen.panic / target)
    stable_pods, reason = _within_rates(rule, ready, stable_needed)
    panic_pods, panic_reason = _within_rates(rule, ready, panic_needed)
    panic_s = state.panic_s
    if panic_needed / ready >= rule.panic_threshold:
        panic_s = seen.now_s
    elif panic_s is not None and panic_s + rule.stable_window_s < seen.now_s:
        panic_s = None
    if panic_s is None:
        return _Candidate(stable_pods, reason, stable_needed)
    # The average that calls for more pods counts.
    if panic_pods > stable_pods:
        is_rate_limited = panic_reason is ScalingReason.RATE_LIMITED_UP
        stable_pods, reason = panic_pods, panic_reason if is_rate_limited else ScalingReason.PANIC
    needed = max(stable_needed, panic_needed)
    if stable_pods >= state.panic_pods:
        return _Candidate(stable_pods, reason, needed, panic_s, stable_pods)
    return _Candidate(state.panic_pods, ScalingReason.PANIC_HOLDS, needed, panic_s, state.panic_pods)


def _within_rates(rule: ScalingRule, ready: int, needed: int) -> tuple[int, ScalingReason]:
    """Bound the number by the rates, and raise it to the activation scale if there is load."""
    most = ceil(rule.scale_up_rate * ready)
    least = floor(ready / rule.scale_down_rate)
    if needed > most:
        pods, reason = most, ScalingReason.RATE_LIMITED_UP
    elif needed < least:
        pods, reason = least, ScalingReason.RATE_LIMITED_DOWN
    else:
        pods, reason = needed, ScalingReason.STABLE_AVERAGE
    if needed > 0 and pods < rule.activation_scale:
        return rule.activation_scale, ScalingReason.ACTIVATION_SCALE
    return pods, reason


def _delayed(rule: ScalingRule, seen: Observation, state: ScalingState, candidate: _Candidate) -> _Candidate:
    """Raise the number to the largest one within the scale-down delay."""
    if rule.scale_down_delay_s <= 0.0:
        return candidate
    entries = most_within(state.delayed, seen.now_s, candidate.wanted, rule.scale_down_delay_s)
    most = entries[0][1]
    if most == candidate.wanted:
        return candidate._replace(delayed=entries)
    return candidate._replace(wanted=most, reason=ScalingReason.SCALE_DOWN_DELAY, delayed=entries)


def most_within(
    entries: tuple[tuple[float, int], ...], now_s: float, value: int, window_s: float
) -> tuple[tuple[float, int], ...]:
    """Add `value`; drop entries that can no longer be the largest of the window. The largest is first."""
    step_s = next(step_s for most_s, step_s in _DELAY_STEPS if window_s <= most_s)
    at_s = floor(now_s / step_s) * step_s
    kept = [entry for entry in entries if at_s - entry[0] < window_s and entry[1] > value]
    if not kept or kept[-1][0] != at_s:  # otherwise that entry is larger and has the same time
        kept.append((at_s, value))
    return tuple(kept)


# --- additions to Knative's ------------------------------------------------------------------------------------------


def _with_burst(rule: ScalingRule, seen: Observation, state: ScalingState, candidate: _Candidate) -> _Candidate:
    """Raise the number if the present requests, or a peak within the stable window, need more than the averages."""
    target = rule.effective_target
    now_needed = ceil(seen.carried / target)
    needed = max(ceil(seen.peak / target), now_needed)
    averages_explain = candidate.reason is not ScalingReason.PANIC_HOLDS and state.wanted > 0
    if needed < candidate.wanted or (needed == candidate.wanted and averages_explain):
        return candidate._replace(needed=max(candidate.needed, needed))
    # A rate bounds growth only: it does not remove pods that were wanted already and are not ready yet.
    most = max(ceil(rule.scale_up_rate * max(seen.ready, 1)), state.wanted, candidate.wanted)
    if needed > most:
        return candidate._replace(wanted=most, reason=ScalingReason.RATE_LIMITED_UP, needed=needed)
    if needed > now_needed:
        reason = ScalingReason.RECENT_PEAK
    else:
        reason = ScalingReason.WAITING_REQUESTS if seen.queued else ScalingReason.REQUESTS_AT_ONCE
    return candidate._replace(wanted=needed, reason=reason, needed=needed)


def _last_pod(
    rule: ScalingRule, seen: Observation, state: ScalingState, candidate: _Candidate
) -> tuple[int, ScalingReason, float | None]:
    """Decide between one pod and none; return the number, its reason, and since when only the retention keeps one."""
    wanted, reason = candidate.wanted, candidate.reason
    if seen.carried:
        if wanted > 0:
            return wanted, reason, None
        return max(rule.activation_scale, 1), ScalingReason.REQUESTS_IN_FLIGHT, None
    if state.wanted == 0:
        return 0, ScalingReason.ASLEEP, None
    if wanted > 0:
        return wanted, reason, None
    if seen.idle_s < rule.scale_to_zero_grace_s:
        return 1, ScalingReason.GRACE, None
    zero_s = seen.now_s if state.zero_s is None else state.zero_s
    if seen.now_s < zero_s + rule.last_pod_retention_s:
        return 1, ScalingReason.RETENTION, zero_s
    return 0, ScalingReason.IDLE_TO_ZERO, zero_s


def _bounded(
    rule: ScalingRule, seen: Observation, wanted: int, reason: ScalingReason, is_initialized: bool
) -> tuple[int, ScalingReason]:
    """Raise the number to every minimum, then lower it to the maximum; the last bound that counts is the reason."""
    for least, why in (
        (rule.min, ScalingReason.MIN_SCALE),
        (seen.scheduled, ScalingReason.SCHEDULE),
        (seen.held, ScalingReason.HELD),
        (seen.busy, ScalingReason.BUSY),
        (min(seen.users, 1), ScalingReason.NEEDED),
        (0 if is_initialized else rule.initial_scale, ScalingReason.INITIAL_SCALE),
    ):
        if wanted < least:
            wanted, reason = least, why
    if 0 < rule.max < wanted:
        return rule.max, ScalingReason.MAX_SCALE
    return wanted, reason
