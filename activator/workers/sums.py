"""Sums of the figures of several workers, field by field of their messages.

Rules
  1. A field is summed by its type: numbers and histograms are added, dictionaries by key, structs field by field; a
     condition holds if it holds in one worker; of a text the first is taken. So a new figure needs no line here.
  2. All workers have the same table, except for short times: the fields in `_GREATEST` are the maximum.
  3. `lasting` keeps what a worker reported when it has ended, so that totals never fall, without the fields in
     `GAUGES`.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

from activator.runtime.distribution import Distribution

T = TypeVar("T", bound=msgspec.Struct)

_TABLE: Final = frozenset({"capacity", "pods", "length", "slots", "holes", "trailing", "fragmentation"})
# Each worker counts the same starts, growths of the table, and transitions of pods.
_GREATEST: Final = _TABLE | {"trims", "growths", "full_total", "cold_starts_total", "transitions"}
_LEAST: Final = frozenset({"certificate_expiries"})  # a worker that could not read a new certificate counts
OF_FIRST: Final = frozenset({"incarnation", "dropped", "queue_limit"})
GAUGES: Final = _TABLE | {
    "queued", "gathering", "delivering", "held_bytes", "cannot_start", "in_flight", "connections", "tunnels",
    "client_connections", "handshakes", "exchanges", "held_requests", "file_bytes", "answers", "answer_bytes",
    "streams", "resident_bytes", "owned", "held", "overload",
    "user_use", "certificate_expiries",
}  # fmt: skip


def plus(one: T, other: T) -> T:
    """Return the sum of two messages of one type."""
    values = {}
    for name in one.__struct_fields__:
        if name in _LEAST:
            values[name] = _least(getattr(one, name), getattr(other, name))
        elif name not in OF_FIRST:
            values[name] = _sum(getattr(one, name), getattr(other, name), name in _GREATEST)
    return replace(one, **values)


def lasting(one: T) -> T:
    """Return a message without its gauges: they are 0, empty or False."""
    values = {}
    for name in one.__struct_fields__:
        value = getattr(one, name)
        if name in GAUGES:
            values[name] = (0,) * len(value) if isinstance(value, tuple) else type(value)()
        elif isinstance(value, msgspec.Struct):
            values[name] = lasting(value)
    return replace(one, **values)


def _least(one: dict[str, float], other: dict[str, float]) -> dict[str, float]:
    return {key: min(found[key] for found in (one, other) if key in found) for key in one | other}


def _sum(one: Any, other: Any, is_greatest: bool) -> Any:
    """Return the sum of two values of a field, or the greater one."""
    if one is None or other is None:
        return other if one is None else one
    if isinstance(one, Distribution):
        return one.plus(other)
    if isinstance(one, msgspec.Struct):
        return plus(one, other)
    if isinstance(one, dict):
        total = dict(one)
        for key, value in other.items():
            total[key] = _sum(total[key], value, is_greatest) if key in total else value
        return total
    if isinstance(one, tuple):
        return tuple([_sum(a, b, is_greatest) for a, b in zip(one, other, strict=True)])
    if isinstance(one, str):
        return one
    if isinstance(one, bool):
        return one or other
    return max(one, other) if is_greatest else one + other
