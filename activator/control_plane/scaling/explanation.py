"""Explains a number of pods: a closed set of reasons, and for each one sentence with the numbers."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final

from activator.config.model.scaling import METRIC_RPS
from activator.control_plane.scaling.observation import Observation
from activator.control_plane.scaling.rule import ScalingRule


class ScalingReason(Enum):
    """The last step of a decision that changed the number; the values are labels of metrics."""

    WITHIN_TARGET = "within_target"
    STABLE_AVERAGE = "stable_average"
    PANIC = "panic"
    PANIC_HOLDS = "panic_holds"
    RATE_LIMITED_UP = "rate_limited_up"
    RATE_LIMITED_DOWN = "rate_limited_down"
    ACTIVATION_SCALE = "activation_scale"
    WAITING_REQUESTS = "waiting_requests"
    REQUESTS_AT_ONCE = "requests_at_once"
    RECENT_PEAK = "recent_peak"
    REQUESTS_IN_FLIGHT = "requests_in_flight"
    SCALE_DOWN_DELAY = "scale_down_delay"
    IDLE_TO_ZERO = "idle_to_zero"
    UNLOADED = "unloaded"
    GRACE = "grace"
    RETENTION = "retention"
    ASLEEP = "asleep"
    MIN_SCALE = "min_scale"
    SCHEDULE = "schedule"
    HELD = "held"
    BUSY = "busy"
    NEEDED = "needed"
    INITIAL_SCALE = "initial_scale"
    MAX_SCALE = "max_scale"


class DecisionInputs:
    """The figures of one decision, as text."""

    def __init__(self, wanted: int, needed: int, rule: ScalingRule, seen: Observation) -> None:
        is_rate = rule.metric == METRIC_RPS
        unit = "requests per second" if is_rate else "requests at once"
        self.pods = _pods(wanted)
        self.needed = _pods(needed)
        self.stable = f"{seen.stable:.4g} {unit} on average over {rule.stable_window_s:g} s"
        self.panic = f"{seen.panic:.4g} {unit} on average over {rule.panic_window_s:g} s"
        self.target = f"a target of {rule.effective_target:g} for each pod"
        self.here = f"{seen.carried} {'request is' if seen.carried == 1 else 'requests are'} here"
        self.ready = f"{_pods(seen.ready)} ready"
        self.idle = f"No request for {seen.idle_s:.3g} s"
        self.rule = rule
        self.seen = seen


def explain(reason: ScalingReason, wanted: int, needed: int, rule: ScalingRule, seen: Observation) -> str:
    """Return one sentence."""
    return _SENTENCES[reason](DecisionInputs(wanted, needed, rule, seen))


def _pods(count: int) -> str:
    return "no pod" if count == 0 else "1 pod" if count == 1 else f"{count} pods"


def _panic(of: DecisionInputs) -> str:
    return (
        f"{of.panic} at {of.target} call for {of.needed}, with {of.ready} (panic at {of.rule.panic_threshold:g} times)."
    )


def _panic_holds(of: DecisionInputs) -> str:
    return (
        f"{of.pods}: less than {of.rule.stable_window_s:g} s ago the load was {of.rule.panic_threshold:g} times what "
        f"the ready pods are meant for (panic), so the number does not fall to {of.needed} yet."
    )


def _rate_limited(of: DecisionInputs, rate: float, verb: str) -> str:
    return (
        f"The load calls for {of.needed}, but the number may {verb} by a factor of {rate:g} at most: {of.pods}, "
        f"with {of.ready}."
    )


_SENTENCES: Final[dict[ScalingReason, Callable[[DecisionInputs], str]]] = {
    ScalingReason.WITHIN_TARGET: lambda of: f"{of.stable} at {of.target}: still {of.pods}.",
    ScalingReason.STABLE_AVERAGE: lambda of: f"{of.stable} at {of.target}: {of.pods}.",
    ScalingReason.PANIC: _panic,
    ScalingReason.PANIC_HOLDS: _panic_holds,
    ScalingReason.RATE_LIMITED_UP: lambda of: _rate_limited(of, of.rule.scale_up_rate, "grow"),
    ScalingReason.RATE_LIMITED_DOWN: lambda of: _rate_limited(of, of.rule.scale_down_rate, "fall"),
    ScalingReason.ACTIVATION_SCALE: lambda of: (
        f"The load calls for {of.needed}, and {of.rule.activation_scale} is the least while there is load."
    ),
    ScalingReason.WAITING_REQUESTS: lambda of: (
        f"{of.here}, {of.seen.queued} of them waiting, at {of.target}: {of.pods} at once."
    ),
    ScalingReason.REQUESTS_AT_ONCE: lambda of: f"{of.here} at {of.target}: {of.pods} at once.",
    ScalingReason.RECENT_PEAK: lambda of: (
        f"Up to {of.seen.peak} requests were here at once in the last {of.rule.stable_window_s:g} s, at {of.target}: "
        f"{of.pods}."
    ),
    ScalingReason.REQUESTS_IN_FLIGHT: lambda of: f"{of.here}: {of.pods}, though the average calls for none.",
    ScalingReason.SCALE_DOWN_DELAY: lambda of: (
        f"The load calls for {of.needed}, but {of.pods} were wanted less than {of.rule.scale_down_delay_s:g} s ago "
        "(scale_down_delay)."
    ),
    ScalingReason.IDLE_TO_ZERO: lambda of: (
        f"{of.idle}, and the grace is {of.rule.scale_to_zero_grace_s:g} s: {of.pods}."
    ),
    ScalingReason.UNLOADED: lambda of: (
        f"An operator has unloaded the revision, or stopped its container: {of.pods} until a request waits."
    ),
    ScalingReason.GRACE: lambda of: (
        f"{of.idle}; the last pod stays until that is {of.rule.scale_to_zero_grace_s:g} s (grace)."
    ),
    ScalingReason.RETENTION: lambda of: (
        f"{of.idle}; the last pod stays for {of.rule.last_pod_retention_s:g} s more than the grace "
        "(last_pod_retention)."
    ),
    ScalingReason.ASLEEP: lambda of: "No pod, and no request is here.",
    ScalingReason.MIN_SCALE: lambda of: f"The load calls for {of.needed}, and {of.rule.min} is the minimum.",
    ScalingReason.SCHEDULE: lambda of: (
        f"The load calls for {of.needed}, and {of.seen.scheduled} is the minimum by the schedule at this hour."
    ),
    ScalingReason.HELD: lambda of: (
        f"The load calls for {of.needed}, and an operator has asked for {_pods(of.seen.held)}."
    ),
    ScalingReason.BUSY: lambda of: (
        f"The load calls for {of.needed}, and {_pods(of.seen.busy)} of it "
        f"{'reports' if of.seen.busy == 1 else 'report'} work without a request."
    ),
    ScalingReason.NEEDED: lambda of: (
        f"The load calls for {of.needed}, and {of.seen.users} loaded "
        f"{'revision depends' if of.seen.users == 1 else 'revisions depend'} on it."
    ),
    ScalingReason.INITIAL_SCALE: lambda of: (
        f"The revision is new: it begins with {_pods(of.rule.initial_scale)}, of which {of.seen.ready} are ready."
    ),
    ScalingReason.MAX_SCALE: lambda of: f"The load calls for {of.needed}, and {of.rule.max} is the maximum.",
}
