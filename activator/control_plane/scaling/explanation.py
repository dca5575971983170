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


def _panic(text: DecisionInputs) -> str:
    threshold = f"panic at {text.rule.panic_threshold:g} times"
    return f"{text.panic} at {text.target} call for {text.needed}, with {text.ready} ({threshold})."


def _panic_holds(text: DecisionInputs) -> str:
    return (
        f"{text.pods}: less than {text.rule.stable_window_s:g} s ago the load was {text.rule.panic_threshold:g} times "
        f"what the ready pods are meant for (panic), so the number does not fall to {text.needed} yet."
    )


def _rate_limited(text: DecisionInputs, rate: float, verb: str) -> str:
    return (
        f"The load calls for {text.needed}, but the number may {verb} by a factor of {rate:g} at most: {text.pods}, "
        f"with {text.ready}."
    )


_SENTENCES: Final[dict[ScalingReason, Callable[[DecisionInputs], str]]] = {
    ScalingReason.WITHIN_TARGET: lambda text: f"{text.stable} at {text.target}: still {text.pods}.",
    ScalingReason.STABLE_AVERAGE: lambda text: f"{text.stable} at {text.target}: {text.pods}.",
    ScalingReason.PANIC: _panic,
    ScalingReason.PANIC_HOLDS: _panic_holds,
    ScalingReason.RATE_LIMITED_UP: lambda text: _rate_limited(text, text.rule.scale_up_rate, "grow"),
    ScalingReason.RATE_LIMITED_DOWN: lambda text: _rate_limited(text, text.rule.scale_down_rate, "fall"),
    ScalingReason.ACTIVATION_SCALE: lambda text: (
        f"The load calls for {text.needed}, and {text.rule.activation_scale} is the least while there is load."
    ),
    ScalingReason.WAITING_REQUESTS: lambda text: (
        f"{text.here}, {text.seen.queued} of them waiting, at {text.target}: {text.pods} at once."
    ),
    ScalingReason.REQUESTS_AT_ONCE: lambda text: f"{text.here} at {text.target}: {text.pods} at once.",
    ScalingReason.RECENT_PEAK: lambda text: (
        f"Up to {text.seen.peak} requests were here at once in the last {text.rule.stable_window_s:g} s, at "
        f"{text.target}: {text.pods}."
    ),
    ScalingReason.REQUESTS_IN_FLIGHT: lambda text: f"{text.here}: {text.pods}, though the average calls for none.",
    ScalingReason.SCALE_DOWN_DELAY: lambda text: (
        f"The load calls for {text.needed}, but {text.pods} were wanted less than {text.rule.scale_down_delay_s:g} s "
        "ago (scale_down_delay)."
    ),
    ScalingReason.IDLE_TO_ZERO: lambda text: (
        f"{text.idle}, and the grace is {text.rule.scale_to_zero_grace_s:g} s: {text.pods}."
    ),
    ScalingReason.UNLOADED: lambda text: (
        f"An operator has unloaded the revision, or stopped its container: {text.pods} until a request waits."
    ),
    ScalingReason.GRACE: lambda text: (
        f"{text.idle}; the last pod stays until that is {text.rule.scale_to_zero_grace_s:g} s (grace)."
    ),
    ScalingReason.RETENTION: lambda text: (
        f"{text.idle}; the last pod stays for {text.rule.last_pod_retention_s:g} s more than the grace "
        "(last_pod_retention)."
    ),
    ScalingReason.ASLEEP: lambda text: "No pod, and no request is here.",
    ScalingReason.MIN_SCALE: lambda text: f"The load calls for {text.needed}, and {text.rule.min} is the minimum.",
    ScalingReason.SCHEDULE: lambda text: (
        f"The load calls for {text.needed}, and {text.seen.scheduled} is the minimum by the schedule at this hour."
    ),
    ScalingReason.HELD: lambda text: (
        f"The load calls for {text.needed}, and an operator has asked for {_pods(text.seen.held)}."
    ),
    ScalingReason.BUSY: lambda text: (
        f"The load calls for {text.needed}, and {_pods(text.seen.busy)} of it "
        f"{'reports' if text.seen.busy == 1 else 'report'} work without a request."
    ),
    ScalingReason.NEEDED: lambda text: (
        f"The load calls for {text.needed}, and {text.seen.users} loaded "
        f"{'revision depends' if text.seen.users == 1 else 'revisions depend'} on it."
    ),
    ScalingReason.INITIAL_SCALE: lambda text: (
        f"The revision is new: it begins with {_pods(text.rule.initial_scale)}, of which {text.seen.ready} are ready."
    ),
    ScalingReason.MAX_SCALE: lambda text: f"The load calls for {text.needed}, and {text.rule.max} is the maximum.",
}
