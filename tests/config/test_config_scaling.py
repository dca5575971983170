"""`scaling`: what it becomes beside `process`, and each mistake in one line that says what to change."""

from __future__ import annotations

import pytest

from activator.config.file import overlay, parse, resolve
from activator.config.model.file import Config
from activator.config.model.programs import Process
from activator.config.model.revision import Revision
from activator.config.model.scaling import Scaling
from activator.control_plane.scaling.rule import ScalingRule, process_rule, resolve_rule
from activator.runtime.errors import ConfigError


def text(scaling: str, process: str = "command: [x]", more: str = "") -> str:
    return f"revisions: [{{name: a, hosts: [a], {more} process: {{{process}}}, scaling: {{{scaling}}}}}]"


def rule(scaling: str, process: str = "command: [x]", more: str = "") -> ScalingRule:
    config = parse(text(scaling, process, more), "f", {})
    return process_rule(config.revisions[0], processors=8)


def problems(scaling: str, process: str = "command: [x]") -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(text(scaling, process), "f", {})
    return caught.value.problems


def test_the_keys_of_process_mean_what_they_meant() -> None:
    found = rule("", "command: [x], min_scale: 1, max_scale: 5, target_concurrency: 7, idle: 90s")
    assert (found.min, found.max, found.target, found.scale_to_zero_grace_s) == (1, 5, 7.0, 90.0)
    assert (found.burst, found.stable_window_s, found.panic_window_s) == (True, 10.0, 1.0)


def test_the_same_said_in_scaling_is_the_same_rule() -> None:
    process = "command: [x], min_scale: 1, max_scale: 5, target_concurrency: 7, idle: 90s"
    assert rule("min: 1, max: 5, target: 7, scale_to_zero_grace: 90s") == rule("", process)


def test_all_keys() -> None:
    found = rule(
        "min: 1, max: 9, metric: rps, target: 50, utilization: 0.7, stable_window: 90s, panic_window: 9s, "
        "panic_threshold: 3, scale_up_rate: 4, scale_down_rate: 5, scale_down_delay: 2m, initial_scale: 2, "
        "activation_scale: 3, scale_to_zero_grace: 4m, last_pod_retention: 5m, burst: false, "
        "schedule: [{min: 4, from: '08:00', until: '18:30', days: [mon, sun], time_zone: Europe/Berlin}]"
    )
    (scheduled,) = found.schedule
    assert (scheduled.min, scheduled.weekdays, scheduled.from_minute, scheduled.until_minute) == (4, (0, 6), 480, 1110)
    assert found == ScalingRule(
        1, 9, "rps", 50.0, 0.7, 90.0, 9.0, 3.0, 4.0, 5.0, 120.0, 2, 3, 240.0, 300.0, (scheduled,), False
    )
    assert found.effective_target == pytest.approx(35.0)


def test_defaults_that_depend_on_others() -> None:
    assert rule("metric: rps").target == 200.0
    assert rule("metric: rps").burst is False
    assert rule("", more="container_concurrency: 3,").target == 3.0
    assert rule("stable_window: 2m").panic_window_s == 12.0
    assert rule("schedule: [{min: 4}]").max == 4, "a schedule must be possible"
    cluster = resolve_rule(Scaling(), 0)
    assert (cluster.max, cluster.stable_window_s, cluster.panic_window_s, cluster.burst) == (0, 60.0, 6.0, False)
    assert resolve_rule(Scaling(), 5).target == 5.0


def test_the_table_of_slots_knows_the_maximum() -> None:
    config = parse(text("max: 6"), "f", {})
    (spec,) = resolve(config, lambda concurrency: "random")
    assert spec.balancing.max_scale == 6


def test_a_command_line_says_nothing_twice() -> None:
    made = Config(revisions=[Revision(name="a", hosts=["*"], process=Process(["x"], min_scale=2, max_scale=3))])
    assert overlay(made, {}) == made
    read = overlay(made, {"ACTIVATOR_LISTEN": "127.0.0.1:1"})
    assert (read.revisions, read.listen) == (made.revisions, "127.0.0.1:1")


@pytest.mark.parametrize(
    ("scaling", "process", "problem"),
    [
        ("min: 1", "min_scale: 1", "scaling.min: `process.min_scale` and `scaling.min` mean the same: remove one of"),
        ("max: 1", "max_scale: 2", "scaling.max: `process.max_scale` and `scaling.max` mean the same"),
        ("target: 1", "target_concurrency: 0", "`process.target_concurrency` and `scaling.target` mean the same"),
        ("scale_to_zero_grace: 1s", "idle: 1s", "`process.idle` and `scaling.scale_to_zero_grace` mean the same"),
        ("min: 3, max: 2", "", "scaling.min: 3 is more than `max: 2`: lower it, or raise `max`"),
        ("min: 3", "max_scale: 2", "scaling.min: 3 is more than `process.max_scale: 2`: lower it"),
        ("max: 2", "min_scale: 3", "scaling.max: `process.min_scale: 3` is more than `max: 2`"),
        ("initial_scale: 3, max: 2", "", "scaling.initial_scale: 3 is more than `max: 2`"),
        ("activation_scale: 3, max: 2", "", "scaling.activation_scale: 3 is more than `max: 2`"),
        ("max: 2, schedule: [{min: 3}]", "", "scaling.schedule[0].min: 3 is more than `max: 2`"),
        ("metric: cpu", "", 'scaling.metric: found "cpu", expected concurrency or rps'),
        ("metric: rps, burst: true", "", "`burst: true` requires `metric: concurrency`"),
        ("utilization: 1.5", "", 'scaling.utilization: found "1.5", expected a number from 0.01 to 1'),
        ("target: 0", "", 'scaling.target: found "0"'),
        ("stable_window: 1500ms", "", "expected whole seconds from 1s to 1h"),
        ("stable_window: 2h", "", "scaling.stable_window: found"),
        ("panic_window: 11s", "", "scaling.panic_window: 11s is longer than `stable_window`, which is 10s"),
        ("scale_down_delay: 2h", "", 'scaling.scale_down_delay: found "2h", expected at most 1h'),
        ("last_pod_retention: 61m", "", "scaling.last_pod_retention: found"),
        ("panic_threshold: 1", "", "scaling.panic_threshold: found"),
        ("scale_up_rate: 1", "", "scaling.scale_up_rate: found"),
        ("scale_down_rate: 0.5", "", "scaling.scale_down_rate: found"),
        ("activation_scale: 0", "", "scaling.activation_scale: found"),
        ("schedule: [{from: '08:00'}]", "", 'scaling.schedule[0]: found none, expected the key "min"'),
        ("schedule: [{min: 1, from: '8'}]", "", "scaling.schedule[0].from: found"),
        ("schedule: [{min: 1, until: '24:00'}]", "", "scaling.schedule[0].until: found"),
        ("schedule: [{min: 1, days: [monday]}]", "", 'found "monday", expected days of mon, tue'),
        ("schedule: [{min: 1, days: []}]", "", "scaling.schedule[0].days: found an empty list"),
        ("schedule: [{min: 1, time_zone: Berlin}]", "", 'scaling.schedule[0].time_zone: found "Berlin", expected the'),
        ("schedule: [{min: 1, time_zone: ../etc}]", "", "scaling.schedule[0].time_zone: found"),
        ("schedule: [" + "{min: 1}, " * 33 + "]", "", "scaling.schedule: found 33, expected at most 32 entries"),
        ("targets: 1", "", 'found the unknown key "targets", expected "target"'),
    ],
)
def test_one_line_says_what_to_change(scaling: str, process: str, problem: str) -> None:
    (line,) = problems(scaling, f"command: [x], {process}" if process else "command: [x]")
    assert problem in line


def test_fixed_pods_are_not_scaled() -> None:
    with pytest.raises(ConfigError) as caught:
        parse("revisions: [{name: a, hosts: [a], pods: ['h:1'], scaling: {min: 1}}]", "f", {})
    assert caught.value.problems == [
        (
            "f:1: revisions[0].scaling: `scaling` requires `process` or `container`: the number of `pods` is what the "
            "file lists"
        )
    ]
