"""The metrics of a replica as a member of its group, where there is one (`members`)."""

from __future__ import annotations

from typing import Final, NamedTuple

from activator.telemetry.metrics.families import Family, Kind, counter, gauge

SEAT_STATES: Final = ("this one", "reached", "silent", "vacant", "released")
LOAD_WAYS: Final = ("sent", "received", "left_out")
REFUSALS: Final = ("refused", "no handshake", "too many")


class MemberFigures(NamedTuple):
    """As this replica sees the group; totals count since its start."""

    seats: dict[str, int]  # by state
    unproven: int
    epoch: int
    views_total: int
    may_grant: bool
    refused: dict[str, int]  # connections, by reason
    loads: dict[str, int]  # of revisions that others own, or that are ours: by what became of them


MEMBER_FAMILIES: tuple[Family[MemberFigures], ...] = (
    Family(
        "activator_group_seats",
        Kind.GAUGE,
        "Seats of the group by state, as this replica sees them.",
        lambda it: [((state,), float(it.seats.get(state, 0))) for state in SEAT_STATES],
        ("state",),
        (SEAT_STATES,),
    ),
    gauge(
        "activator_group_unproven",
        "Members that are not in the view and not known to have ended: what they own waits for that.",
        lambda it: float(it.unproven),
    ),
    gauge("activator_group_epoch", "The number of the view in which this replica acts.", lambda it: float(it.epoch)),
    counter("activator_group_views", "Views that took effect here.", lambda it: it.views_total),
    gauge(
        "activator_group_grants",
        "1: this replica grants slots of what it owns. 0: it does not reach a majority.",
        lambda it: float(it.may_grant),
    ),
    Family(
        "activator_group_loads",
        Kind.COUNTER,
        "Loads of revisions that were sent to their owner, received as owner, or left out since a member did not read.",
        lambda it: [((way,), float(it.loads.get(way, 0))) for way in LOAD_WAYS],
        ("way",),
        (LOAD_WAYS,),
    ),
    Family(
        "activator_group_connections_refused",
        Kind.COUNTER,
        "Connections to the port of the members that were refused.",
        lambda it: [((reason,), float(it.refused.get(reason, 0))) for reason in REFUSALS],
        ("reason",),
        (REFUSALS,),
    ),
)
