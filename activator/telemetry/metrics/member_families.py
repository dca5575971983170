"""The metrics of a replica as a member of a group (`members`)."""

from __future__ import annotations

from typing import Final, NamedTuple

from activator.telemetry.metrics.families import Family, Kind, counter, gauge

SEAT_STATES: Final = ("this one", "reached", "silent", "vacant", "released")
LOAD_WAYS: Final = ("sent", "received", "left_out")
REFUSALS: Final = ("refused", "no handshake", "too many")


class MemberFigures(NamedTuple):
    """The group as this replica sees it; totals count since its start."""

    seats: dict[str, int]  # by state
    unproven: int
    epoch: int
    views_total: int
    may_grant: bool
    refused: dict[str, int]  # connections, by reason
    loads: dict[str, int]  # load reports by outcome


MEMBER_FAMILIES: tuple[Family[MemberFigures], ...] = (
    Family(
        "activator_group_seats",
        Kind.GAUGE,
        "Seats of the group by state, as this replica sees them.",
        lambda figures: [((state,), float(figures.seats.get(state, 0))) for state in SEAT_STATES],
        ("state",),
        (SEAT_STATES,),
    ),
    gauge(
        "activator_group_unproven",
        "Members that are not in the view but may still run: the revisions that they own are not granted.",
        lambda figures: float(figures.unproven),
    ),
    gauge(
        "activator_group_epoch",
        "The epoch of this replica's view.",
        lambda figures: float(figures.epoch),
    ),
    counter("activator_group_views", "Views that this replica has installed.", lambda figures: figures.views_total),
    gauge(
        "activator_group_grants",
        "1 while this replica grants slots of the revisions that it owns; 0: it does not reach a majority.",
        lambda figures: float(figures.may_grant),
    ),
    Family(
        "activator_group_loads",
        Kind.COUNTER,
        "Load reports of revisions: sent to their owner, received as owner, or left out because a member did not read.",
        lambda figures: [((way,), float(figures.loads.get(way, 0))) for way in LOAD_WAYS],
        ("way",),
        (LOAD_WAYS,),
    ),
    Family(
        "activator_group_connections_refused",
        Kind.COUNTER,
        "Refused connections to the members' port, by reason.",
        lambda figures: [((reason,), float(figures.refused.get(reason, 0))) for reason in REFUSALS],
        ("reason",),
        (REFUSALS,),
    ),
)
