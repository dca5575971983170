"""Checks of `scaling` beyond the types of its values: conflicts, windows, rates, and the times of a schedule.

Part of `checks.py`, with its rules. Keys that `process` and `scaling` both have may be set in only one of them.
"""

from __future__ import annotations

import re
from typing import Final
from zoneinfo import ZoneInfo

from activator.config.edge_checks import item_at, program_key
from activator.config.model.scaling import (
    METRIC_RPS,
    PROCESS_STABLE_WINDOW_S,
    SCALING_METRICS,
    SCALING_WINDOW_MAX_S,
    SCHEDULE_MAX,
    WEEKDAYS,
)
from activator.config.reader import UNREADABLE, Reader, Values
from activator.config.tree import Item

# Keys of `process` and those of `scaling` with the same meaning.
TWINS: Final = (
    ("min_scale", "min"),
    ("max_scale", "max"),
    ("target_concurrency", "target"),
    ("idle", "scale_to_zero_grace"),
)
_HOUR: Final = re.compile(r"([01]\d|2[0-3]):[0-5]\d")
_WINDOW: Final = f"whole seconds from 1s to {SCALING_WINDOW_MAX_S / 3600.0:g}h"


def check_scaling(reader: Reader, revision: Item, values: Values, path: str) -> None:
    """Check `scaling`, which is at `path`, of one revision."""
    scaling = values.get("scaling")
    if not isinstance(scaling, dict):
        return
    item = item_at(revision, "scaling")
    program = program_key(revision, values)
    process = values.get(program)
    if not program:
        if scaling:
            advice = "`scaling` requires `process` or `container`: the number of `pods` is what the file lists"
            reader.advise(item, path, advice)
        return
    if not isinstance(process, dict):
        return
    _check_twins(reader, item, item_at(revision, program), program, path)
    check_values(reader, item, scaling, path, PROCESS_STABLE_WINDOW_S, process, program)
    least, most = process.get("min_scale", 0), scaling.get("max", 0)
    if most and least > most:
        advice = f"`{program}.min_scale: {least}` is more than `max: {most}`: lower it, or raise `max`"
        reader.advise(item_at(item, "max"), f"{path}.max", advice)


def check_values(
    reader: Reader,
    item: Item,
    scaling: Values,
    path: str,
    stable_window_s: float,
    process: Values | None = None,
    program: str = "process",
) -> None:
    """Check the keys that do not depend on who runs the pods; `stable_window_s` is the default."""
    _check_metric(reader, item, scaling, path)
    _check_bounds(reader, item, scaling, process or {}, program, path)
    _check_windows(reader, item, scaling, path, stable_window_s)
    schedule_item = item_at(item, "schedule")
    schedule = scaling.get("schedule", [])
    if len(schedule) > SCHEDULE_MAX:
        reader.found(schedule_item, f"{path}.schedule", f"at most {SCHEDULE_MAX} entries", str(len(schedule)))
    for place, entry in enumerate(schedule):
        if entry is not UNREADABLE and schedule_item.elements is not None:
            _check_entry(reader, schedule_item.elements[place], entry, f"{path}.schedule[{place}]")


def _check_twins(reader: Reader, item: Item, process: Item, program: str, path: str) -> None:
    for of_process, of_scaling in TWINS:
        if of_process in (process.entries or {}) and of_scaling in (item.entries or {}):
            advice = f"`{program}.{of_process}` and `scaling.{of_scaling}` mean the same: remove one of the two"
            reader.advise(item_at(item, of_scaling), f"{path}.{of_scaling}", advice)


def _check_metric(reader: Reader, item: Item, scaling: Values, path: str) -> None:
    metric = scaling.get("metric", SCALING_METRICS[0])
    if metric not in SCALING_METRICS:
        reader.found(item_at(item, "metric"), f"{path}.metric", " or ".join(SCALING_METRICS))
    if metric == METRIC_RPS and scaling.get("burst") is True:
        advice = "`burst: true` requires `metric: concurrency`: requests that are here say nothing of a rate"
        reader.advise(item_at(item, "burst"), f"{path}.burst", advice)


def _check_windows(reader: Reader, item: Item, scaling: Values, path: str, stable_window_s: float) -> None:
    for key in ("stable_window", "panic_window"):
        value = scaling.get(key)
        if value is not None and not (1.0 <= value <= SCALING_WINDOW_MAX_S and float(value).is_integer()):
            reader.found(item_at(item, key), f"{path}.{key}", _WINDOW)
            return
    stable_s, panic_s = scaling.get("stable_window"), scaling.get("panic_window")
    stable_s = stable_window_s if stable_s is None else stable_s
    if panic_s is not None and panic_s > stable_s:
        advice = f"{panic_s:g}s is longer than `stable_window`, which is {stable_s:g}s: make it shorter"
        reader.advise(item_at(item, "panic_window"), f"{path}.panic_window", advice)
    for key in ("scale_down_delay", "last_pod_retention"):
        if scaling.get(key, 0.0) > SCALING_WINDOW_MAX_S:
            reader.found(item_at(item, key), f"{path}.{key}", f"at most {SCALING_WINDOW_MAX_S / 3600.0:g}h")


def _check_bounds(reader: Reader, item: Item, scaling: Values, process: Values, program: str, path: str) -> None:
    """Compare with the maximum, which may be in the program; `checks.py` compares the program's own minimum."""
    where, most = (
        ("max", scaling["max"]) if scaling.get("max") else (f"{program}.max_scale", process.get("max_scale", 0))
    )
    if not most or most is UNREADABLE:
        return
    for key in ("min", "initial_scale", "activation_scale"):
        if scaling.get(key, 0) > most:
            advice = f"{scaling[key]} is more than `{where}: {most}`: lower it, or raise `{where}`"
            reader.advise(item_at(item, key), f"{path}.{key}", advice)
    schedule = item_at(item, "schedule")
    for place, entry in enumerate(scaling.get("schedule", [])):
        if entry is not UNREADABLE and schedule.elements is not None and entry.get("min", 0) > most:
            advice = f"{entry['min']} is more than `{where}: {most}`: lower it, or raise `{where}`"
            reader.advise(item_at(schedule.elements[place], "min"), f"{path}.schedule[{place}].min", advice)


def _check_entry(reader: Reader, item: Item, entry: Values, path: str) -> None:
    for key in ("from", "until"):
        if key in entry and _HOUR.fullmatch(entry[key]) is None:
            reader.found(item_at(item, key), f"{path}.{key}", 'an hour such as "08:00"')
    days = [day for day in entry.get("days", []) if day is not UNREADABLE]
    for day in days:
        if day not in WEEKDAYS:
            reader.found(item_at(item, "days"), f"{path}.days", "days of " + ", ".join(WEEKDAYS), f'"{day}"')
    if "days" in entry and not entry["days"]:
        reader.found(item_at(item, "days"), f"{path}.days", "at least one day", "an empty list")
    zone = entry.get("time_zone", "UTC")
    if not _is_time_zone(zone):
        expected = "the IANA name of a time zone that this machine knows, such as Europe/Berlin"
        reader.found(item_at(item, "time_zone"), f"{path}.time_zone", expected, f'"{zone}"')


def _is_time_zone(name: str) -> bool:
    try:
        ZoneInfo(name)
    except (OSError, ValueError, KeyError):  # ZoneInfoNotFoundError is a KeyError; malformed names raise the others
        return False
    return True
