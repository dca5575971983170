"""The scaling settings of one revision, fully resolved, with the same form for processes and Deployments.

Rules
  1. Plain values only. Times are in seconds; a maximum of 0 is no maximum. `process_rule` and `resolve_rule` make a
     rule from the configuration (`config.model.scaling.Scaling`).
  2. docs/scaling.md lists the defaults that differ from Knative's, with the reasons.

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

TARGET_MIN: Final = 0.01  # per pod, with utilization; bounds the number of pods

_DEFAULTS: Final = Scaling()


class ScalingRule(msgspec.Struct, frozen=True):
    """The resolved settings: each key has its value."""

    min: int = 0
    max: int = 0  # 0: no bound
    metric: str = METRIC_CONCURRENCY  # concurrency | rps
    target: float = float(TARGET_CONCURRENCY)  # per pod, of the metric
    utilization: float = _DEFAULTS.utilization  # the share of the target that the autoscaler aims at
    stable_window_s: float = STABLE_WINDOW_S
    panic_window_s: float = STABLE_WINDOW_S * PANIC_WINDOW_SHARE
    panic_threshold: float = _DEFAULTS.panic_threshold  # needed pods / ready pods
    scale_up_rate: float = _DEFAULTS.scale_up_rate  # wanted / ready, at one decision
    scale_down_rate: float = _DEFAULTS.scale_down_rate  # ready / wanted, at one decision
    scale_down_delay_s: float = 0.0
    initial_scale: int = 0
    activation_scale: int = 1  # the least number of pods while there is load
    scale_to_zero_grace_s: float = SCALE_TO_ZERO_GRACE_S  # time without a request before zero
    last_pod_retention_s: float = 0.0  # how much longer the last pod is kept
    schedule: tuple[ScheduledMinimum, ...] = ()
    burst: bool = False  # present requests count, not only averages

    @property
    def effective_target(self) -> float:
        """The target per pod, with utilization."""
        return max(self.target * self.utilization, TARGET_MIN)


def resolve_rule(scaling: Scaling, container_concurrency: int) -> ScalingRule:
    """Return the rule of a revision whose pods another program runs, for example a Deployment."""
    return _resolve(
        scaling, container_concurrency, STABLE_WINDOW_S, SCALE_TO_ZERO_GRACE_S, scaling.min, scaling.max, False
    )


def process_rule(revision: Revision, processors: int | None = None) -> ScalingRule:
    """Return the rule of a revision that runs local programs; it includes `process.min_scale` and its neighbours."""
    process = resolve_program(revision, processors)
    scaling = revision.scaling
    rule = _resolve(
        scaling,
        process.target_concurrency,  # resolved to the limit if it is not set
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
    """Return the rule: what the file sets, and for the rest these defaults."""
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
