"""How one revision is scaled: a rule in which nothing is left to be resolved, the same for processes and Deployments.

Rules
  1. Plain values only. Times are seconds; a maximum of 0 is no maximum. `process_rule` and `resolve_rule` make a rule
     of what stands in a file (`config.model.scaling.Scaling`).
  2. Where a default differs from Knative's, docs/scaling.md says so and why.

Source of names and defaults: knative.dev/serving config/core/configmaps/autoscaler.yaml,
pkg/reconciler/autoscaling/kpa/resources/decider.go, pkg/reconciler/autoscaling/resources/target.go (v1.23).
"""

from __future__ import annotations

from typing import Final

import msgspec

from activator.config.model.revision import Revision
from activator.config.model.scaling import (
    METRIC_CONCURRENCY,
    PANIC_WINDOW_SHARE,
    PROCESS_STABLE_WINDOW_S,
    SCALE_TO_ZERO_GRACE_S,
    STABLE_WINDOW_S,
    TARGET_CONCURRENCY,
    TARGET_RPS,
    Scaling,
)
from activator.config.specs import resolve_program
from activator.control_plane.scaling.schedule import ScheduledMinimum, scheduled
from activator.runtime.clock import NEVER

TARGET_MIN: Final = 0.01  # per pod, with utilization: less would be more pods than anybody can start

_DEFAULTS: Final = Scaling()


class ScalingRule(msgspec.Struct, frozen=True):
    """Resolved: each key has its value."""

    min: int = 0
    max: int = 0  # 0: no bound
    metric: str = METRIC_CONCURRENCY  # concurrency | rps
    target: float = float(TARGET_CONCURRENCY)  # per pod, of the metric
    utilization: float = _DEFAULTS.utilization  # the share of the target that is aimed at
    stable_window_s: float = STABLE_WINDOW_S
    panic_window_s: float = STABLE_WINDOW_S * PANIC_WINDOW_SHARE
    panic_threshold: float = _DEFAULTS.panic_threshold  # pods that are needed / pods that are ready
    scale_up_rate: float = _DEFAULTS.scale_up_rate  # wanted / ready, at one decision
    scale_down_rate: float = _DEFAULTS.scale_down_rate  # ready / wanted, at one decision
    scale_down_delay_s: float = 0.0
    initial_scale: int = 0
    activation_scale: int = 1  # while there is load: at least so many
    scale_to_zero_grace_s: float = SCALE_TO_ZERO_GRACE_S  # without a request until zero is decided
    last_pod_retention_s: float = 0.0  # from there on, of the last pod
    schedule: tuple[ScheduledMinimum, ...] = ()
    burst: bool = False  # what is here at this moment counts, not only averages

    @property
    def effective_target(self) -> float:
        """Per pod, with utilization."""
        return max(self.target * self.utilization, TARGET_MIN)


def resolve_rule(scaling: Scaling, container_concurrency: int) -> ScalingRule:
    """The rule of a revision that something else than our supervisor runs: a Deployment, say."""
    return _resolve(
        scaling, container_concurrency, STABLE_WINDOW_S, SCALE_TO_ZERO_GRACE_S, scaling.min, scaling.max, False
    )


def process_rule(revision: Revision, processors: int | None = None) -> ScalingRule:
    """The rule of a revision that local programs run; `process.min_scale` and its neighbours are part of it."""
    process = resolve_program(revision, processors)
    scaling = revision.scaling
    rule = _resolve(
        scaling,
        process.target_concurrency,  # which is the limit where it is not set
        PROCESS_STABLE_WINDOW_S,
        float(process.idle),
        process.min_scale,
        process.max_scale,
        scaling.metric == METRIC_CONCURRENCY,
    )
    initial_scale = max(rule.initial_scale, 1) if process.preload else rule.initial_scale
    retention_s = NEVER if process.pinned else rule.last_pod_retention_s
    return msgspec.structs.replace(rule, initial_scale=initial_scale, last_pod_retention_s=retention_s)


def _resolve(
    scaling: Scaling,
    concurrency: int,
    stable_window_s: float,
    grace_s: float,
    least: int,
    most: int,
    burst: bool,
) -> ScalingRule:
    stable_s = stable_window_s if scaling.stable_window is None else float(scaling.stable_window)
    panic_s = float(max(round(stable_s * PANIC_WINDOW_SHARE), 1))
    if scaling.metric == METRIC_CONCURRENCY:
        target = float(concurrency or TARGET_CONCURRENCY)
    else:
        target = float(TARGET_RPS)
    return ScalingRule(
        min=least,
        max=most,
        metric=scaling.metric,
        target=target if scaling.target is None else scaling.target,
        utilization=scaling.utilization,
        stable_window_s=stable_s,
        panic_window_s=panic_s if scaling.panic_window is None else float(scaling.panic_window),
        panic_threshold=scaling.panic_threshold,
        scale_up_rate=scaling.scale_up_rate,
        scale_down_rate=scaling.scale_down_rate,
        scale_down_delay_s=float(scaling.scale_down_delay),
        initial_scale=scaling.initial_scale,
        activation_scale=scaling.activation_scale,
        scale_to_zero_grace_s=grace_s if scaling.scale_to_zero_grace is None else float(scaling.scale_to_zero_grace),
        last_pod_retention_s=float(scaling.last_pod_retention),
        schedule=tuple(scheduled(one) for one in scaling.schedule),
        burst=burst if scaling.burst is None else scaling.burst,
    )
