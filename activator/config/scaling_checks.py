"""Checks of `scaling` beyond the types of its values: conflicts, windows, rates, and the times of a schedule.

Part of `checks.py`, with its rules. Keys that `process` and `scaling` both have may be set in only one of them.
"""

from __future__ import annotations

import re
from typing import Final
from zoneinfo import ZoneInfo

from activator.config.edge_checks import program_key
from activator.config.key_path import KeyPath
from activator.config.model.programs import Program
from activator.config.model.revision import Revision
from activator.config.model.scaling import (
    METRIC_RPS,
    PROCESS_STABLE_WINDOW_S,
    SCALING_METRICS,
    SCALING_WINDOW_MAX_S,
    SCHEDULE_MAX,
    WEEKDAYS,
    Scaling,
    ScheduledScale,
)

# Keys of `process` and those of `scaling` with the same meaning.
TWINS: Final = (
    ("min_scale", "min"),
    ("max_scale", "max"),
    ("target_concurrency", "target"),
    ("idle", "scale_to_zero_grace"),
)
_HOUR: Final = re.compile(r"([01]\d|2[0-3]):[0-5]\d")
_WINDOW: Final = f"whole seconds from 1s to {SCALING_WINDOW_MAX_S / 3600.0:g}h"


def check_scaling(revision_at: KeyPath, revision: Revision) -> None:
    """Check `scaling` of one revision."""
    at, scaling, program = revision_at["scaling"], revision.scaling, revision.program
    key = program_key(revision_at, revision)
    if not key:
        if any(at.sets(scaling_key) for scaling_key in scaling.__struct_fields__):
            at.advise("`scaling` requires `process` or `container`: the number of `pods` is what the file lists")
        return
    if program is None or "scaling" not in revision_at:
        return
    _check_twins(at, revision_at[key], key)
    check_values(at, scaling, PROCESS_STABLE_WINDOW_S, program, key)
    if scaling.max and program.min_scale > scaling.max:
        advice = f"`{key}.min_scale: {program.min_scale}` is more than `max: {scaling.max}`: lower it, or raise `max`"
        at["max"].advise(advice)


def check_values(
    at: KeyPath, scaling: Scaling, stable_window_s: float, program: Program | None = None, key: str = "process"
) -> None:
    """Check the keys that do not depend on who runs the pods; `stable_window_s` is the default.

    `program` is the program of the revision, which has it as `key`.
    """
    if scaling.metric not in SCALING_METRICS:
        at["metric"].found(" or ".join(SCALING_METRICS))
    if scaling.metric == METRIC_RPS and scaling.burst:
        at["burst"].advise("`burst: true` requires `metric: concurrency`: requests that are here say nothing of a rate")
    where, pods_max = ("max", scaling.max) if scaling.max else (f"{key}.max_scale", program.max_scale if program else 0)
    if pods_max:
        _check_bounds(at, scaling, where, pods_max)
    _check_windows(at, scaling, stable_window_s)
    if len(scaling.schedule) > SCHEDULE_MAX:
        at["schedule"].found(f"at most {SCHEDULE_MAX} entries", str(len(scaling.schedule)))
    for entry_at, entry in at["schedule"].each(scaling.schedule):
        _check_entry(entry_at, entry)


def _check_twins(at: KeyPath, program_at: KeyPath, key: str) -> None:
    for of_program, of_scaling in TWINS:
        if of_program in program_at and of_scaling in at:
            at[of_scaling].advise(
                f"`{key}.{of_program}` and `scaling.{of_scaling}` mean the same: remove one of the two"
            )


def _check_windows(at: KeyPath, scaling: Scaling, stable_window_s: float) -> None:
    for key in ("stable_window", "panic_window"):
        value = getattr(scaling, key)
        if value is not None and not (1.0 <= value <= SCALING_WINDOW_MAX_S and float(value).is_integer()):
            at[key].found(_WINDOW)
            return
    stable_s = stable_window_s if scaling.stable_window is None else scaling.stable_window
    if scaling.panic_window is not None and scaling.panic_window > stable_s:
        advice = f"{scaling.panic_window:g}s is longer than `stable_window`, which is {stable_s:g}s: make it shorter"
        at["panic_window"].advise(advice, beside=(at["stable_window"],))
    for key in ("scale_down_delay", "last_pod_retention"):
        if getattr(scaling, key) > SCALING_WINDOW_MAX_S:
            at[key].found(f"at most {SCALING_WINDOW_MAX_S / 3600.0:g}h")


def _check_bounds(at: KeyPath, scaling: Scaling, where: str, pods_max: int) -> None:
    """Check that no minimum exceeds `pods_max`, the value of the key `where`; `check_scaling` checks `min_scale`."""
    minimums = [(at[key], getattr(scaling, key)) for key in ("min", "initial_scale", "activation_scale")]
    minimums += [(entry_at["min"], entry.min) for entry_at, entry in at["schedule"].each(scaling.schedule)]
    for entry_at, number in minimums:
        if number > pods_max:
            entry_at.advise(f"{number} is more than `{where}: {pods_max}`: lower it, or raise `{where}`")


def _check_entry(at: KeyPath, entry: ScheduledScale) -> None:
    for key, hour in (("from", entry.from_), ("until", entry.until)):
        if _HOUR.fullmatch(hour) is None:
            at[key].found('an hour such as "08:00"')
    for day in entry.days:
        if day not in WEEKDAYS:
            at["days"].found("days of " + ", ".join(WEEKDAYS), f'"{day}"')
    if not entry.days:
        at["days"].found("at least one day", "an empty list")
    if not _is_time_zone(entry.time_zone):
        expected = "the IANA name of a time zone that this machine knows, such as Europe/Berlin"
        at["time_zone"].found(expected, f'"{entry.time_zone}"')


def _is_time_zone(name: str) -> bool:
    try:
        ZoneInfo(name)
    except (OSError, ValueError, KeyError):  # ZoneInfoNotFoundError is a KeyError; malformed names raise the others
        return False
    return True
