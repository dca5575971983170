"""The numbers of a table at one moment, for debugging, metrics and logs."""

from __future__ import annotations

from typing import NamedTuple

from lb.pod_table import PodTable


class TableStatistics(NamedTuple):
    policy: str
    used: int  # slots that hold a pod
    free: int  # slots made that hold none
    high_water: int  # one past the highest slot used since the last trim
    slots: int  # made
    holes: int
    trailing: int
    fragmentation: float
    room: int  # pods that a pick could return
    in_flight: int
    capacity: int
    trims: int
    grown: int
    tables_full: int
    late_releases: int


def measure(table: PodTable, policy: str) -> TableStatistics:
    """All numbers of the table, whose policy goes by this name; nothing is walked."""
    return TableStatistics(
        policy=policy,
        used=table.used,
        free=table.capacity_slots - table.used,
        high_water=table.length,
        slots=table.capacity_slots,
        holes=table.holes,
        trailing=table.trailing,
        fragmentation=table.fragmentation,
        room=table.room,
        in_flight=table.in_flight,
        capacity=table.capacity,
        trims=table.trims,
        grown=table.grown,
        tables_full=table.tables_full,
        late_releases=table.late_releases,
    )


def describe(numbers: TableStatistics) -> str:
    """The repr of a table."""
    return (
        f"<TrackerTable {numbers.policy}: {numbers.used} used, {numbers.free} free, high-water {numbers.high_water} "
        f"({numbers.holes} holes, {numbers.trailing} trailing), {numbers.room} with room, "
        f"{numbers.in_flight} in flight>"
    )
